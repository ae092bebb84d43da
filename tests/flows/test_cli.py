"""The `rft` command and what it prints, without a flow: mistakes are one line, JSON is strict, printed commands work."""

import asyncio
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import show
from flows.cli import _finish
from flows.table import export_version, open_run
from flows.terminal import Lines, duration, program, strict_json
from rft_core.buffer import ExperienceStore
from rft_core.catalog import HELD_OUT, Catalog, Evaluation, best
from rft_core.config import RunConfig, dump, parse
from rft_core.disk import write_whole
from rft_core.errors import UserError
from rft_core.processes import this_process
from rft_core.run_dir import RunDir
from rft_core.storage import open_storage
from rft_core.weights import WeightStore
from tests.flows.conftest import ROOT, free_port
from tests.tiny_files import recipe

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"}


def rft(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=cwd, env={**ENVIRONMENT, **environment}, capture_output=True, text=True
    )


def write(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def started(tmp_path: Path, tiny_shape: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunDir, Catalog, RunConfig]]:
    """A run that has a catalog and published weights, in the working folder."""
    monkeypatch.chdir(tmp_path)
    config = parse(recipe(tmp_path, tiny_shape, name="asked", runs_dir="runs"))
    run_dir = RunDir(Path("runs/asked"))
    run_dir.create()
    write_whole(run_dir.recipe_file, dump(config))
    catalog = Catalog(f"sqlite:///{run_dir.catalog_file}")
    generation = catalog.trainers.take_over(this_process())
    WeightStore(run_dir, catalog, generation, "tiny").publish(1, 1, tiny_shape)
    catalog.trainers.release(generation)
    yield run_dir, catalog, config
    catalog.close()


def evaluate(run_dir: RunDir, catalog: Catalog, version: int, answers: dict[str, str], metrics: dict[str, float]) -> None:
    rows = [
        {"version": version, "task_id": task, "prompt_text": f"say {task}", "response_text": text, "answer": task}
        | {"reward": 1.0, "exact": text == task, "reason": "", "error": None}
        for task, text in answers.items()
    ]
    file = ExperienceStore(open_storage(run_dir.root), catalog).write_answers(f"{HELD_OUT}-v{version:06d}", rows)
    catalog.versions.record_evaluation(Evaluation(HELD_OUT, version, metrics, file.uri, file.sha256))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("plan", "recipe.yaml", "--set", "steps=[1"), "rft: --set steps=[1: the value is not YAML; "),
        (("init", "nowhere/x.yaml"), "rft: nowhere/x.yaml can't be written (No such file or directory); "),
        (("export", "asked", "a-file/out"), "rft: can't write below a-file ("),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, started: tuple[RunDir, Catalog, RunConfig]
) -> None:
    (tmp_path / "a-file").write_text("")
    write(tmp_path, started[2].model_dump(mode="json"))
    done = rft(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_a_prefect_server_that_does_not_answer_is_one_line(tmp_path: Path, tiny_policy: Path) -> None:
    path = write(tmp_path, recipe(tmp_path, tiny_policy))
    url = f"http://me:s3cr3t@127.0.0.1:{free_port()}/api"
    done = rft("run", str(path), cwd=tmp_path, PREFECT_API_URL=url, PREFECT_HOME=str(tmp_path / "prefect"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"rft: no Prefect server answers at {url.replace('s3cr3t', '***')} (")
    assert "Traceback" not in done.stderr
    assert "s3cr3t" not in done.stderr
    assert not (tmp_path / "runs").exists()


def heed_ctrl_c() -> None:
    """A process that was started in the background ignores Ctrl-C, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


SLEEPY = """
import time

print("asleep", flush=True)
time.sleep(60)
"""


def test_ctrl_c_is_one_line_and_exit_code_130(tmp_path: Path, tiny_shape: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    path = write(tmp_path, recipe(tmp_path, tiny_shape, rewards=[{"name": "sleepy:reward"}]))
    command = [sys.executable, "-m", "flows.cli", "plan", str(path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heeding = {"preexec_fn": heed_ctrl_c}
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, **pipes, **heeding) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "asleep\n"
        child.send_signal(signal.SIGINT)
        assert child.stderr.read() == "rft: stopped; a run goes on with the same command, from its newest checkpoint\n"
        assert child.wait(30) == 130


def test_a_flow_that_ends_as_cancelled_was_stopped() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(KeyboardInterrupt):
        _finish(cancelled())


def on_a_terminal(arguments: list[str], cwd: Path, stop_at: str | None = None, **environment: str) -> tuple[int, str]:
    """Run Python on a pseudo-terminal, and press Ctrl-C when it shows something; returns exit code and output."""
    ours, theirs = pty.openpty()
    look = {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**ENVIRONMENT, **look, **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - it calls nothing that a thread could hold
    )
    os.close(theirs)
    shown = b""
    while data := read(ours):
        shown += data
        if stop_at and stop_at in shown.decode(errors="ignore"):
            os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to every process in it
            stop_at = None
    os.close(ours)
    return child.wait(), shown.decode()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when nobody has the other side open any more
        return b""


@pytest.mark.long
def test_ctrl_c_in_a_terminal_ends_a_run_with_a_server_of_its_own(tmp_path: Path, tiny_policy: Path) -> None:
    """The terminal sends Ctrl-C to the server too: a run whose server ended first waits for it without end."""
    path = write(tmp_path, recipe(tmp_path, tiny_policy, name="stopped", steps=2000))
    command = ["-m", "flows.cli", "run", str(path)]
    code, shown = on_a_terminal(command, tmp_path, " 3/2000", PREFECT_HOME=str(tmp_path / "prefect"))
    assert code == 130
    assert shown.splitlines()[-1].endswith("rft: stopped; a run goes on with the same command, from its newest checkpoint")
    assert "Traceback" not in shown


BAR = """
from flows.terminal import LiveBar
from rft_core import metrics

figures = {metrics.REWARD_MEAN: 0.25, metrics.LOSS: -0.5, metrics.GRAD_NORM: 1.0, metrics.RESPONSE_TOKENS: 7.5, metrics.FAILED_FRAC: 0.0}
with LiveBar() as bar:
    bar.begin("a-run-with-a-name", 1, 3)
    bar.note("[note] as it is")
    bar.stage(2, "evaluate")
    bar._bar.refresh()
    bar.step(2, 3, figures)
    bar._bar.refresh()
"""


def test_the_progress_bar_is_one_line_that_names_run_steps_and_figures() -> None:
    code, shown = on_a_terminal(["-c", BAR], ROOT)
    assert code == 0
    frames = [frame.strip() for frame in shown.replace("\x1b[2K", "\n").splitlines()]
    bars = [frame for frame in frames if frame.startswith("a-run-with-a-name")]
    assert any("1/3" in bar and "scoring the held-out" in bar for bar in bars)
    assert any("2/3" in bar and "reward 0.250" in bar for bar in bars)
    assert all(len(bar) <= 80 for bar in bars)
    assert "[note] as it is" in frames


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    value = {"a": float("nan"), "b": [1.5, float("inf")], "c": {"d": (float("-inf"), "NaN")}, "e": Path("x"), "f": Decimal(3)}
    plain = {"a": None, "b": [1.5, None], "c": {"d": [None, "NaN"]}, "e": "x", "f": 3}
    assert json.loads(strict_json(value), parse_constant=refuse) == plain
    Lines(json_lines=True).step(1, 2, {"trainer/loss": float("nan")})
    assert json.loads(capsys.readouterr().err, parse_constant=refuse)["metrics"] == {"trainer/loss": None}


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7199.0, "120 min"), (7200.0, "2 h"), (200_000.0, "2 d")]
)
def test_a_time_is_said_in_the_unit_that_fits(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_program_is_named_so_that_a_shell_here_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b" / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "rft").write_text("#!/bin/sh\n")
    (folder / "rft").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path / "a b")
    assert program("rft") == ".venv/bin/rft"
    assert program("no-such-program") == "no-such-program"
    monkeypatch.chdir("/")
    assert program("rft") == program("rft").strip() != "rft"
    assert subprocess.run(["/bin/sh", "-c", program("rft")]).returncode == 0
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin")
    assert program("rft") == "rft"


def test_printed_commands_find_the_run(started: tuple[RunDir, Catalog, RunConfig], tmp_path: Path) -> None:
    _, _, config = started
    assert show.commands(config)[0].endswith(" show asked")
    shutil.move("runs", "other runs")
    elsewhere = config.model_copy(update={"runs_dir": "other runs"})
    (command, *_) = show.commands(elsewhere)
    shell = f'rft() {{ "{sys.executable}" -m flows.cli "$@"; }}\nrft {command.partition(" ")[2]}'
    done = subprocess.run(["/bin/sh", "-c", shell], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run: asked" in done.stdout


def test_answers_before_and_after_are_joined_by_task(started: tuple[RunDir, Catalog, RunConfig]) -> None:
    run_dir, catalog, _ = started
    evaluate(run_dir, catalog, 0, {"a": "before-a", "b": "before-b"}, {"evaluation/reward": 0.1})
    evaluate(run_dir, catalog, 1, {"c": "after-c", "b": "after-b", "d": "after-d"}, {"evaluation/reward": 0.2})
    (shown,) = show._three_answers(run_dir)
    assert [line.split() for line in shown.splitlines()[1:]] == [["say", "b", "b", "before-b", "after-b"]]


def test_the_best_version_is_the_first_of_the_most_exact() -> None:
    def scored(version: int, reward: float, **more: float) -> Evaluation:
        return Evaluation(HELD_OUT, version, {"evaluation/reward": reward, **{f"evaluation/{k}": v for k, v in more.items()}}, "")

    assert best([]) is None
    assert best([scored(0, 0.1), scored(5, 0.4), scored(10, 0.4), scored(15, 0.2)]) == 5
    assert best([scored(0, 0.9, exact=0.1), scored(5, 0.1, exact=0.5), scored(10, 0.2, exact=0.5)]) == 5


def test_a_file_that_is_linked_twice_counts_once(started: tuple[RunDir, Catalog, RunConfig]) -> None:
    run_dir, _, _ = started
    before = show.describe(run_dir)["megabytes"]
    (run_dir.root / "weights" / "big").write_bytes(bytes(3_000_000))
    os.link(run_dir.root / "weights" / "big", run_dir.root / "checkpoint")
    assert show.describe(run_dir)["megabytes"] == pytest.approx(before + 3.0, abs=0.11)


def test_files_that_go_while_they_are_counted_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stays").write_bytes(bytes(10))
    monkeypatch.setattr(os, "walk", lambda root: [(str(root), [], ["gone", "stays"])])
    assert show._num_bytes(tmp_path) == 10


def test_an_export_is_whole_or_not_there(started: tuple[RunDir, Catalog, RunConfig], tmp_path: Path) -> None:
    run_dir, _, _ = started
    with open_run(run_dir) as run:
        assert export_version(run, "newest", tmp_path / "deep" / "out") == 1
        assert (tmp_path / "deep" / "out" / "config.json").exists()
        with pytest.raises(UserError, match="no version of this run was scored"):
            export_version(run, "best", tmp_path / "other")
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["out"]
