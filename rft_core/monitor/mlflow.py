"""The MLflow monitor: one MLflow run for one Tidemill run, however often it is killed and resumed."""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from rft_core.config import MonitorConfig
from rft_core.monitor import place, store, traces
from rft_core.monitor.base import NEWEST, StepMetrics, finite, flat
from rft_core.types import Experience

_MOST_METRICS = 1000
_MOST_PARAMS = 100
"""What MLflow takes in one request."""
_LONGEST_PARAM = 500
"""Characters; the recipe artifact holds the whole value."""

P = ParamSpec("P")
T = TypeVar("T")


def _answering(method: "Callable[Concatenate[MlflowMonitor, P], T]") -> "Callable[Concatenate[MlflowMonitor, P], T]":
    @wraps(method)
    def call(self: "MlflowMonitor", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store.answering(self.uri):
            return method(self, *args, **kwargs)

    return call


class MlflowMonitor:
    """See `Monitor`; every method raises `UserError` where the store fails.

    Args:
        config: The recipe's section.
        runs_dir: Where the default store is kept.
        run_id: What the run is found by, whatever its name.
        run_name: What people see.
        recipe: The resolved recipe, as YAML.
        settings: The same as nested values.

    Raises:
        UserError: The store can't be reached, or refuses.
    """

    def __init__(self, config: MonitorConfig, runs_dir: Path, run_id: str, run_name: str, recipe: str, settings: Mapping[str, Any]) -> None:
        self.uri = place.uri_of(config, runs_dir)
        self._client = store.connect(self.uri)
        self._tidemill_run_id = run_id
        artifacts = None if place.is_server(self.uri) else (runs_dir.resolve() / "mlflow-artifacts").as_uri()
        with store.answering(self.uri):
            run = store.enter(self._client, config.experiment, artifacts, run_id, run_name)
            self.mlflow_run_id: str = run.info.run_id
            self.experiment_id: str = run.info.experiment_id
            self._log_params(run, flat(settings))
            self._client.log_text(self.mlflow_run_id, recipe, "recipe.yaml")
            self._artifact_uri: str = run.info.artifact_uri
        self._shown: set[tuple[str, int]] | None = None
        """Name and step of each figure in the store; read once, at the first export."""

    @_answering
    def export_steps(self, rows: Sequence[StepMetrics]) -> None:
        """See `Monitor`."""
        self._log((key, value, step, committed_at) for step, committed_at, metrics in rows for key, value in finite(metrics).items())

    @_answering
    def log_evaluation(self, step: int, name: str, rows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> None:
        """See `Monitor`."""
        columns = list(rows[0]) if rows else []
        table = {"columns": columns, "data": [[row[column] for column in columns] for row in rows]}
        path = f"evaluations/{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"
        # MLflow's own `log_table` appends to a table that is there, so that one told twice would have each row twice.
        self._client.log_dict(self.mlflow_run_id, table, path)
        self._list_table(path)
        self._log((key, value, step, time.time()) for key, value in finite(metrics).items())

    @_answering
    def log_samples(self, step: int, samples: Sequence[Experience]) -> None:
        """See `Monitor`."""
        client = TracingClient(self.uri)
        for sample in samples:
            traces.write(client, self.experiment_id, self.mlflow_run_id, step, sample)

    @_answering
    def log_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        """See `Monitor`."""
        self._client.set_tag(self.mlflow_run_id, "tidemill.snapshot", json.dumps(snapshot))

    @_answering
    def register(self, name: str, folder: Path, version: int) -> str:
        """See `Monitor`."""
        known = self._registered(name, version)
        if known is None:
            tags = {"tidemill.run_id": self._tidemill_run_id, "tidemill.version": str(version)}
            source = self._source(folder, version)
            known = str(self._client.create_model_version(name, source, run_id=self.mlflow_run_id, tags=tags).version)
        self._client.set_registered_model_alias(name, NEWEST, known)
        return known

    @_answering
    def finish(self, status: str, reason: str = "") -> None:
        """See `Monitor`."""
        self._client.set_tag(self.mlflow_run_id, "tidemill.reason", reason)
        self._client.set_terminated(self.mlflow_run_id, status=status)

    def _log_params(self, run: Run, params: Mapping[str, Any]) -> None:
        """Log what is not there: MLflow's parameters can't change, and a kill may have left some out."""
        missing = [Param(key, _short(value)) for key, value in params.items() if key not in run.data.params]
        for start in range(0, len(missing), _MOST_PARAMS):
            self._client.log_batch(self.mlflow_run_id, params=missing[start : start + _MOST_PARAMS])

    def _log(self, figures: Iterable[tuple[str, float, int, float]]) -> None:
        """Log figures (name, value, step, seconds since the epoch) that are not in the store.

        MLflow tells figures apart by value and time too: a step that was redone after a crash would show twice.
        Each batch is one transaction of the store, so a kill leaves it whole or out.
        """
        shown = self._read_shown()
        fresh = [figure for figure in figures if (figure[0], figure[2]) not in shown]
        for start in range(0, len(fresh), _MOST_METRICS):
            batch = [Metric(key, value, int(at * 1e3), step) for key, value, step, at in fresh[start : start + _MOST_METRICS]]
            self._client.log_batch(self.mlflow_run_id, metrics=batch)
            shown.update((metric.key, metric.step) for metric in batch)

    def _read_shown(self) -> set[tuple[str, int]]:
        if self._shown is None:
            keys = self._client.get_run(self.mlflow_run_id).data.metrics
            self._shown = {(key, metric.step) for key in keys for metric in self._client.get_metric_history(self.mlflow_run_id, key)}
        return self._shown

    def _list_table(self, path: str) -> None:
        """Name a table in the tag by which MLflow's review page finds tables."""
        listed = json.loads(self._client.get_run(self.mlflow_run_id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
        entry = {"path": path, "type": "table"}
        if entry not in listed:
            self._client.set_tag(self.mlflow_run_id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([*listed, entry]))

    def _registered(self, name: str, version: int) -> str | None:
        """The registry's number of a version of this run, after making sure that the model is there."""
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = self._client.search_model_versions(f"name = '{name}' and run_id = '{self.mlflow_run_id}'")
        numbers = [str(known.version) for known in found if known.tags.get("tidemill.version") == str(version)]
        return numbers[0] if numbers else None

    def _source(self, folder: Path, version: int) -> str:
        """Where the registry points to: the folder itself, or its copy on a server that can't see it."""
        if not place.is_server(self.uri):
            return folder.resolve().as_uri()
        folder_name = f"model/v{version:06d}"
        self._client.log_artifacts(self.mlflow_run_id, str(folder), folder_name)
        return f"{self._artifact_uri}/{folder_name}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_PARAM else f"{text[: _LONGEST_PARAM - 1]}…"
