"""The `rft` command. Each command imports what it needs inside the command, so that it starts quickly."""

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import yaml

from rft_core.config import RunConfig, read_recipe
from rft_core.errors import TidemillError, UserError
from rft_core.run_dir import find_run

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help="Reinforcement fine-tuning as a workflow."
)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

T = TypeVar("T")
Recipe = Annotated[Path, typer.Argument(help="A recipe: a YAML file.")]
Run = Annotated[str, typer.Argument(help="A run: its name under the runs folder, or a path.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe, as in --set rollout.group_size=4.")
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="The folder that holds the runs.")]


@app.command()
def init(path: Annotated[Path, typer.Argument(help="Where to write the recipe.")] = Path("recipe.yaml")) -> None:
    """Write a commented recipe to start from."""
    from flows.recipe import commented
    from flows.terminal import program

    if path.exists():
        raise UserError(f"{path} is there already", "name a new file")
    try:
        path.write_text(commented(), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path} can't be written ({error.strerror})", "name a file in a folder that is there and can be written to"
        ) from None
    print(
        f"wrote {path}; put your tasks into tasks.jsonl or name another source in it, then: {program('rft')} plan {shlex.quote(str(path))}"
    )


@app.command()
def plan(recipe: Recipe, changes: Changes = None, as_json: Json = False) -> None:
    """Check a recipe and print everything that a run would do, with the reasons; writes nothing."""
    from flows.terminal import strict_json, table
    from rft_core.plan import as_json as plain
    from rft_core.plan import resolve

    resolved = resolve(read_recipe(recipe, _changes(changes)))
    if as_json:
        print(strict_json(plain(resolved), indent=1))
        return
    print(table([{"what": d.name, "value": d.value, "why": d.reason} for d in resolved.derived]))
    for number, sample in enumerate(resolved.samples, start=1):
        print(f"\n--- prompt of task {number}\n{sample.rstrip()}")
    for line in resolved.unchecked:
        print(f"\n{line}")


@app.command()
def run(recipe: Recipe, changes: Changes = None, as_json: Json = False) -> None:
    """Run a recipe; the same command again goes on where it stopped."""
    config = read_recipe(recipe, _changes(changes))
    from rft_core.plan import resolve

    resolve(config)
    from flows.command import run_in_terminal

    summary = _finish(run_in_terminal(config, as_json))
    _print_summary(config, summary, as_json)


@app.command()
def bench(
    run: Run,
    versions: Annotated[list[int] | None, typer.Option("--version", help="A version to score; all that have files if left out.")] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Score published versions of a run on its held-out tasks."""
    found = find_run(run, runs_dir)
    from flows.command import bench_in_terminal
    from flows.terminal import strict_json, table

    scores = _finish(bench_in_terminal(str(found.root), versions))
    print(strict_json(scores) if as_json else table(scores))


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(help="A run; all runs are listed if left out.")] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show how a run stands: steps, fates, versions, evaluations."""
    from flows.show import describe, list_runs, render
    from flows.terminal import strict_json

    shown = describe(find_run(run, runs_dir)) if run else list_runs(runs_dir)
    print(strict_json(shown, indent=1) if as_json else render(shown))


@app.command()
def sql(
    run: Run,
    question: Annotated[str, typer.Argument(help="A question in DuckDB's SQL.")],
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Ask a run a question in SQL; `rft sql RUN "show tables"` lists what can be asked."""
    from flows.show import questions
    from flows.terminal import strict_json, table

    answer = questions(find_run(run, runs_dir)).ask(question)
    rows = answer.to_pylist()
    print(strict_json(rows) if as_json else table(rows))


@app.command()
def export(
    run: Run,
    target: Annotated[Path, typer.Argument(help="The folder to write.")],
    version: Annotated[str, typer.Option(help="A version's number, `newest`, or `best`.")] = "newest",
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write a version as a Hugging Face folder."""
    from flows.show import export_version

    number = export_version(find_run(run, runs_dir), version, target)
    print(f"wrote version {number} to {target}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what is installed, what works, and what is missing for which feature."""
    from flows.doctor import examine
    from flows.terminal import strict_json, table

    findings = examine()
    rows: list[Any] = [finding.as_row() for finding in findings]
    print(strict_json(rows, indent=1) if as_json else table(rows))
    if any(finding.required and not finding.works for finding in findings):
        raise typer.Exit(1)


def main() -> None:
    """Run the command; a failure is one line, and the exit code says whose it was: 2 the user's, 1 the run's."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last, so that nothing in the working folder shadows an installed package
    _quieten_prefect()
    try:
        app()
    except TidemillError as error:
        print(f"rft: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UserError) else 1) from None
    except KeyboardInterrupt:
        raise SystemExit(_stopped()) from None
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # Typer makes this of Ctrl-C, without a word
            _stopped()
        raise


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a flow to its end. Ctrl-C cancels it; where Prefect cancels once more, that is what comes out."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _stopped() -> int:
    print("rft: stopped; a run goes on with the same command, from its newest checkpoint", file=sys.stderr)
    return INTERRUPTED


def _changes(changes: list[str] | None) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise UserError(f"--set {change}", "KEY=VALUE is right, as in --set steps=20")
        try:
            parsed[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--set {change}: the value is not YAML", "KEY=VALUE is right, as in --set steps=20") from None
    return parsed


def _quieten_prefect() -> None:
    """Before anything imports Prefect: its console stays quiet, the command shows the run itself; the server still gets the logs."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")  # its own 20 s are too few for a busy laptop
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _print_summary(config: RunConfig, summary: dict[str, Any], as_json: bool) -> None:
    from flows.show import closing_words
    from flows.terminal import strict_json

    print(strict_json(summary) if as_json else closing_words(config, summary))


if __name__ == "__main__":
    main()
