"""Keeps the processes of an async run going as children of one parent, and leaves none behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from rft_core.children import launcher
from rft_core.children.records import MARK, PATIENCE_S, PAUSE_S, Record, unkillable
from rft_core.disk import make_folder
from rft_core.errors import ChildError
from rft_core.processes import identity_of

MARGIN_S = 5.0
"""Seconds that a launcher has beyond its child's grace before it counts as stuck and is killed itself."""

_TAIL_BYTES = 8192
_UNSEEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Child:
    """A process to be kept going."""

    name: str
    """Names it in messages, and its files: letters, digits, `.`, `_` and `-`."""
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What it has beside the parent's environment, or instead. Never written down, for it may hold secrets."""
    stop_signal: signal.Signals = signal.SIGINT
    """What its process group is asked to stop with."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a child can't be named {self.name!r}: its name is that of its files")


@dataclass(frozen=True, slots=True)
class Limits:
    """How often a child may fail, and how long it may take to stop."""

    restarts: int
    """So many times a child that failed is started again..."""
    within_s: float
    """... within so many seconds; older restarts are forgotten."""
    backoff_s: float
    """Seconds before the first of these restarts; doubled for each further one."""
    grace_s: float
    """Seconds between the stop signal and SIGKILL."""


class Supervisor:
    """Starts children, starts again those that fail, and stops them all together.

    Args:
        folder: Holds `<name>.json`, the record of a child that runs, and `<name>.log`, which all its lives are appended to.
        limits: The same for every child.
        tell: Gets one line for every start, end and restart.
    """

    def __init__(self, folder: Path, limits: Limits, tell: _Tell = lambda line: None) -> None:
        self._folder = folder
        self._limits = limits
        self._tell = tell

    async def run(self, children: Sequence[Child], done_when: str | None = None) -> None:
        """Run children until all have ended with 0; whatever ends this, also its cancellation, leaves none of their processes.

        Call `reap` first, for what a killed parent left. A second cancellation does not wait for the grace period.

        Args:
            children: They are started at once, and are told apart by their names.
            done_when: The child whose end with 0 is the end of the run: the others are stopped then.

        Raises:
            ChildError: A child failed beyond the limits. The others were stopped.
        """
        names = [child.name for child in children]
        if len({*names}) < len(names) or (done_when is not None and done_when not in names):
            raise ValueError(f"children {names} must have different names, and {done_when!r} must be one of them")
        make_folder(self._folder)
        tasks = [asyncio.create_task(self._keep(child), name=child.name) for child in children]
        waiting = {*tasks}
        try:
            while waiting:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(task.get_name() == done_when and task.exception() is None for task in ended):
                    break
                for task in ended:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception) and error is not sys.exception():  # failed beside what ended the run
                    self._tell(str(error))

    async def _keep(self, child: Child) -> None:
        """Start a child until it ends with 0."""
        limits = self._limits
        restarts: list[float] = []
        while True:
            life = _Life(child, self._folder, limits.grace_s)
            code = await self._live(life)
            if code == 0:
                self._tell(f"{child.name} ended")
                return
            restarts = [at for at in restarts if time.monotonic() - at < limits.within_s]
            if len(restarts) >= limits.restarts:
                self._tell(f"{child.name} {_how(code)}")
                raise ChildError(f"{child.name} {_how(code)}{_after(restarts, limits)}: {life.last_line()}", f"its log is {life.log}")
            pause_s = limits.backoff_s * 2 ** len(restarts)
            self._tell(f"{child.name} {_how(code)}; restart {len(restarts) + 1} of {limits.restarts} in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            restarts.append(time.monotonic())

    async def _live(self, life: "_Life") -> int:
        """Watch a life to its end, and return its exit code; a cancellation first ends it."""
        watch = asyncio.create_task(life.watch(self._tell))
        try:
            return await asyncio.shield(watch)
        except asyncio.CancelledError:
            life.ask_to_stop()
            try:
                await asyncio.wait_for(asyncio.shield(watch), self._limits.grace_s + MARGIN_S)
            except (TimeoutError, asyncio.CancelledError):  # the launcher is stuck, or whoever cancels once more can't wait
                life.kill_launcher()
            self._tell(f"{life.child.name} stopped: it {_how(await watch)}")
            raise


class _Life:
    """One start of a child, and all that comes of it. To make it is to start it.

    Args:
        child: What to start.
        folder: For its record and its log.
        grace_s: Seconds between the stop signal and SIGKILL.
    """

    def __init__(self, child: Child, folder: Path, grace_s: float) -> None:
        self.child = child
        self.log = folder / f"{child.name}.log"
        self._record_path = folder / f"{child.name}.json"
        self._mark = uuid4().hex
        # As a file, alone: neither the child's environment nor the working folder has a say in what the launcher imports.
        python = [sys.executable, "-I", "-S", launcher.__file__]
        with self.log.open("ab") as log:
            self._begins = log.tell()
            self._launcher = subprocess.Popen(
                [*python, str(int(child.stop_signal)), str(grace_s), *child.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **child.environment, MARK: self._mark},
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )

    async def watch(self, tell: _Tell) -> int:
        """Wait until the child and all it started have ended; the launcher's exit code, or -n if signal n killed the launcher.

        That the launcher has ended shows at the end of what it prints; `asyncio`'s own way takes a thread a child before Python 3.12.
        """
        assert self._launcher.stdout is not None
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._launcher.stdout)
        try:
            record = await self._announce(reader, tell)
        except BaseException:  # it can't be written down: it must not run, and is waited for before this is raised again
            self.ask_to_stop()
            raise
        finally:
            await reader.read()
            transport.close()
            self._launcher.stdout.close()  # the transport would do so later, when there may be no loop any more
            self.ask_to_stop()
            code = self._launcher.wait()
        deadline = time.monotonic() + PATIENCE_S
        while record.kill():  # what a killed launcher left
            if time.monotonic() > deadline:
                raise unkillable(self.child.name, self._record_path)
            await asyncio.sleep(PAUSE_S)
        self._record_path.unlink()
        return code

    async def _announce(self, printed: asyncio.StreamReader, tell: _Tell) -> Record:
        pid = (await printed.readline()).decode().strip()
        record = Record(identity_of(self._launcher.pid), identity_of(int(pid)) if pid else "", self._mark)
        record.write(self._record_path)
        tell(f"{self.child.name} started as process {pid}" if pid else f"{self.child.name} lost its launcher before it started")
        return record

    def ask_to_stop(self) -> None:
        """Let go of the launcher, which then stops the child."""
        assert self._launcher.stdin is not None
        self._launcher.stdin.close()

    def kill_launcher(self) -> None:
        """End the launcher by force, and the child with it."""
        self._launcher.kill()

    def last_line(self) -> str:
        """The last line that it wrote in this life, as a person would have seen it."""
        with self.log.open("rb") as log:
            log.seek(max(self._begins, self.log.stat().st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
        seen = (_UNSEEN.sub("", line.rstrip("\r").rpartition("\r")[2]).strip() for line in text.split("\n"))
        return next((line[:300] for line in reversed([*seen]) if line), "it wrote nothing")


def _how(code: int) -> str:
    """How a child ended, as its launcher's exit code tells."""
    if code < 0:
        return f"lost its launcher to {_signal(-code)}"
    return f"was ended by {_signal(code - 128)}" if code > 128 else f"ended with exit code {code}"


def _signal(number: int) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")


def _after(restarts: Sequence[float], limits: Limits) -> str:
    return f" after {len(restarts)} restart{'s' * (len(restarts) > 1)} within {limits.within_s:g} s" if restarts else ""
