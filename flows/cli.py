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
    print("\n" + "\n".join(resolved.timeline))
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
def train(recipe: Recipe, changes: Changes = None, as_json: Json = False) -> None:
    """Run the trainer of a recipe of mode `async` alone; explorers are started by `rft explore`, on any machine."""
    config = read_recipe(recipe, _changes(changes))
    from rft_core.plan import resolve

    resolve(config)
    if config.mode != "async":
        raise UserError(f"the recipe has mode {config.mode}", "`rft run` runs it; only in mode async is the trainer a process of its own")
    from flows.command import train_in_terminal

    summary = _finish(train_in_terminal(config, as_json))
    _print_summary(config, summary, as_json)


@app.command()
def explore(
    run: Run,
    name: Annotated[str | None, typer.Option(help="By which it is known in the table; of machine and process if left out.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What this explorer does otherwise, as in --set rollout.temperature=0.8"),
    ] = None,
    after: Annotated[Path | None, typer.Option(help="Wait until the run's trainer has begun with this recipe.", hidden=True)] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Join a run of mode `async` as an explorer, until it is over; Ctrl-C leaves it, and others go on."""
    root = run if after is not None else str(find_run(run, runs_dir).root)
    values = _changes(changes)
    wrong = next((key for key in values if not key.startswith("rollout.")), None)
    if wrong is not None:
        raise UserError(f"--set {wrong}", "an explorer may differ in keys of `rollout` alone, as in --set rollout.temperature=0.8")
    from flows.command import explore_in_terminal
    from flows.explore import wait_until_begun

    if after is not None:
        wait_until_begun(root, after)
    groups = _finish(explore_in_terminal(root, name, {key.removeprefix("rollout."): value for key, value in values.items()}, as_json))
    print(f"tried {groups} groups")


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
    """Show how a run stands: steps, what it waits for, who is at work, fates, versions, evaluations."""
    from flows.show import describe, list_runs, render
    from flows.terminal import complain, strict_json

    shown: Any = describe(find_run(run, runs_dir)) if run else list_runs(runs_dir)
    print(strict_json(shown, indent=1) if as_json else render(shown))
    if run and shown["damaged"]:
        complain([f"{len(shown['damaged'])} files are missing or damaged; `rft fsck {run}` says what to do"])
        raise typer.Exit(1)


@app.command()
def sql(
    run: Run,
    question: Annotated[str | None, typer.Argument(help="A question in DuckDB's SQL.")] = None,
    state: Annotated[
        str | None, typer.Option("--at", help="Ask the rows, labels and shaped rewards as they were when they were pinned under this name.")
    ] = None,
    views: Annotated[bool, typer.Option("--views", help="Say what can be asked.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Ask a run a question in SQL; --views says what can be asked."""
    from flows.table import open_run
    from flows.terminal import complain, strict_json, table
    from rft_core.buffer import STATE_VIEWS, VIEWS, plain_rows

    if views == (question is not None):
        raise UserError("a question or --views is wanted, one of both", 'as in: rft sql RUN "select * from ledger"')
    if question is None:
        described = [{"view": name, "--at": "yes" if name in STATE_VIEWS else "no", "holds": text} for name, text in VIEWS.items()]
        print(strict_json(described, indent=1) if as_json else table(described))
        return
    with open_run(find_run(run, runs_dir)) as opened:
        questions = opened.questions(state)
        rows = plain_rows(questions.ask(question))
    print(strict_json(rows) if as_json else table(rows))
    if questions.damaged:
        complain(f"{uri} {problem}, and is left out; `rft fsck {run}` says what to do" for uri, problem in questions.damaged.items())
        raise typer.Exit(1)


@app.command()
def label(
    run: Run,
    file: Annotated[
        Path, typer.Option("--file", help='JSONL, one label a line: {"experience_id": "...", "value": 1}; also field, author, note.')
    ],
    author: Annotated[str | None, typer.Option(help="Who says so in the lines that name nobody.")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Leave out labels of unknown experiences, rather than refuse all.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Add labels to experiences, also while the run goes on; groups that waited for their rewards go on then."""
    from flows.table import label as apply
    from flows.table import open_run
    from flows.terminal import complain, strict_json

    with open_run(find_run(run, runs_dir), "label") as opened:
        labelled = apply(opened, file, author, partial)
    applied = labelled.applied
    unknown = [line.experience_id for line in labelled.unknown]
    if as_json:
        print(strict_json({"added": applied.added, "repeated": applied.repeated, "completed": applied.completed, "unknown": unknown}))
    else:
        print(f"added {applied.added} labels; {applied.repeated} were there already; {len(applied.completed)} groups are complete now")
        for group in applied.completed:
            print(f"  {group}")
    complain(f"{file} line {line.line}: no experience {line.experience_id} in this run; it was left out" for line in labelled.unknown)


@app.command()
def pin(
    run: Run,
    name: Annotated[str, typer.Argument(help="A name for the present state of the table.")],
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Name the present state of a run's table, and keep what it needs; `rft sql --at NAME` asks it."""
    from flows.table import open_run
    from flows.table import pin as pin_state

    with open_run(find_run(run, runs_dir), "pin") as opened:
        number, known = pin_state(opened, name)
    print(f"{name} is pinned already, at state {number}" if known else f"pinned state {number} as {name}")


@app.command()
def unpin(run: Run, name: Annotated[str, typer.Argument(help="A pinned state.")], runs_dir: RunsDir = Path("runs")) -> None:
    """Let a pinned state go; the next compaction deletes what nothing else needs."""
    from flows.table import open_run
    from flows.table import unpin as unpin_state

    with open_run(find_run(run, runs_dir), "pin") as opened:
        number = unpin_state(opened, name)
    print(f"let {name} go, which was state {number}")


@app.command()
def compact(
    run: Run,
    now: Annotated[bool, typer.Option("--now", help="Delete at once what ended just now; whoever reads it at this moment fails.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Merge small files of a run's table, let old rows go as its recipe says, and delete what nothing needs any more."""
    from dataclasses import asdict

    from flows.table import compact_table, open_run
    from flows.terminal import complain, strict_json

    with open_run(find_run(run, runs_dir), "compaction") as opened:
        done = compact_table(opened, now)
    print(
        strict_json(asdict(done))
        if as_json
        else f"merged {done.merged} files into {done.made}, let the rows of {done.let_go} go, deleted {done.deleted} files"
    )
    if done.damaged:
        complain(f"{problem}; it was left as it is, `rft fsck {run}` says what to do" for problem in done.damaged)
        raise typer.Exit(1)


@app.command()
def fsck(
    run: Run,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong; mend nothing.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Verify every file and every sum of a run, and mend what can be mended safely; exit code 1 when something is left."""
    from dataclasses import asdict

    from flows.table import open_run, verify
    from flows.terminal import strict_json

    with open_run(find_run(run, runs_dir), "fsck") as opened:
        report = verify(opened, repair=not check)
    if as_json:
        print(strict_json(asdict(report), indent=1))
    else:
        print("checked " + ", ".join(f"{number} {what}" for what, number in report.checked.items()))
        for line in report.repaired:
            print(f"mended: {line}")
        for line in report.left:
            print(f"left: {line}")
        print("all is well" if not report.left else f"{len(report.left)} problems are left")
    if report.left:
        raise typer.Exit(1)


@app.command()
def export(
    run: Run,
    target: Annotated[Path, typer.Argument(help="What to write: a folder of weights, a file of rows ending in .parquet or .jsonl.")],
    version: Annotated[str | None, typer.Option(help="A version's number, `newest` (if left out), or `best`.")] = None,
    form: Annotated[str | None, typer.Option("--as", help="weights, parquet, jsonl, or datasets (a folder for `datasets`).")] = None,
    question: Annotated[str | None, typer.Option(help="Which rows, in DuckDB's SQL; every row of `experiences` if left out.")] = None,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Write a version as a Hugging Face folder, or rows as Parquet, JSONL or a data set."""
    from flows.table import export_answer, export_form, export_version, open_run

    wanted = export_form(target, form, version, question)
    with open_run(find_run(run, runs_dir), "export") as opened:
        if wanted == "weights":
            print(f"wrote version {export_version(opened, version or 'newest', target)} to {target}")
        else:
            print(f"wrote {export_answer(opened, question, target, wanted)} rows to {target}")


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
    except OSError as error:  # a name too long, a folder that is closed, a full disk behind stdout
        print(
            f"rft: {error.filename or 'the output'}: {error.strerror or error}; it must be possible to read and write there",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
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
