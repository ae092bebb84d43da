"""Starts the workers, kills them at random moments and at named points, starts them again, and listens to what they say."""

import json
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from random import Random
from typing import Any

from benchmarks.torture.compactor import Compactor, Reader
from benchmarks.torture.explorer import Explorer
from benchmarks.torture.journal import Journal, Line, Said
from benchmarks.torture.labeller import Labeller
from benchmarks.torture.place import Place
from benchmarks.torture.role import Role
from benchmarks.torture.trainer import Trainer

FORK = get_context("forkserver")
FORK.set_forkserver_preload([__name__])

ROLES: dict[str, type[Role]] = {
    "explorer": Explorer,
    "labeller": Labeller,
    "compactor": Compactor,
    "trainer": Trainer,
    "reader": Reader,
}
WORKERS = {
    **{f"explorer-{number}": "explorer" for number in range(3)},
    **{f"labeller-{number}": "labeller" for number in range(2)},
    "compactor": "compactor",
    "trainer": "trainer",
    "reader": "reader",
}
"""The role of each worker; all are killed but the reader."""
POINTS = {
    "explorer": ("lease.before", "lease.after", "segment.intended", "segment.renamed", "segment.committed"),
    "labeller": ("label.before", "label.after"),
    "compactor": ("compact.renamed", "compact.committed", "collect.deleted"),
    "trainer": (
        *("overlay.renamed", "claim.before", "claim.after", "train.after"),
        *("checkpoint.renamed", "publish.after", "step.before", "step.after"),
    ),
}
AT_POINT_FRAC = 0.3
"""Workers that are started to die at a named point; the others are killed from outside, at any moment."""
PAUSE_S = (0.03, 0.25)
"""Between two kills from outside."""
VICTIMS = {"explorer": 3, "labeller": 2, "compactor": 2, "trainer": 2}
"""How often workers of a role are killed from outside, relative to each other."""
WORDS = (0, 1, 2, 4)
"""How much a worker has said at least before it is killed: so the table grows on a slow machine too, and nobody is safe at its start."""
ABSENT_FRAC = 0.15
ABSENT_S = 2.0
"""Killed ones that are started again only after a while, so that others take over their leases."""
REST_S = {"explorer": 0.03, "labeller": 0.1, "compactor": 0.1, "trainer": 0.0, "reader": 0.3}
"""Between two rounds of a worker; those who ask in SQL need most of the machine."""
WARM_UP_S = 30.0
"""Most time until there are rows, labels and a claim."""
STOP_LIMIT_S = 90.0


@dataclass(slots=True)
class Worker:
    """A process, and the line to it."""

    process: BaseProcess
    line: Connection
    point: str | None
    """Where it is to die by itself; null for one that is to be killed from outside."""
    num_words: int = 0
    """How much it has said."""


class Killer:
    """The process that is never killed.

    Args:
        place: The run.
        seed: Decides who dies, when and where; what the workers do meanwhile depends on the machine too.
        journal: Where everything that is said is written.
    """

    def __init__(self, place: Place, seed: int, journal: Journal) -> None:
        self._place = place
        self._rng = Random(seed)
        self._journal = journal
        self._live: dict[str, Worker] = {}
        self._due: dict[str, float] = {}
        self._stopping = False
        self.kills: Counter[str] = Counter()
        """By role."""
        self.points: Counter[str] = Counter()
        """Those kills that were at a named point, by point."""

    def run(self, num: int) -> None:
        """Kill so many times, and then let everybody end."""
        try:
            self._warm_up()
            while self.kills.total() < num:
                self._listen(self._rng.uniform(*PAUSE_S))
                victims = self._victims()
                if victims and self.kills.total() < num:
                    self._kill(self._rng.choice(victims))
            self._stop()
        finally:
            for worker in self._live.values():
                worker.process.kill()
                worker.process.join()

    def _victims(self) -> list[str]:
        """Workers of one role that may be killed from outside now."""
        (role,) = self._rng.choices(list(VICTIMS), list(VICTIMS.values()))
        words = self._rng.choice(WORDS)
        mine = {name: worker for name, worker in self._live.items() if WORKERS[name] == role}
        return [name for name, worker in mine.items() if worker.point is None and worker.num_words >= words]

    def _warm_up(self) -> None:
        """Start everybody, and let them do something before the first one is killed."""
        for name in WORKERS:
            self._start(name, armed=False)
        until = time.monotonic() + WARM_UP_S
        while time.monotonic() < until and any(not self._journal.counts[kind] for kind in ("appended", "labelled", "claimed")):
            self._listen(0.1)

    def _start(self, name: str, armed: bool) -> None:
        """Start a worker; an armed one dies by itself at a named point."""
        point = self._rng.choice(POINTS[WORKERS[name]]) if armed else None
        nth = self._rng.choice((1, 1, 2))
        ours, theirs = FORK.Pipe()
        kill_at = None if point is None else f"{point}:{nth}"
        args = (name, self._place, theirs, self._rng.getrandbits(32), self._journal.redo(name), kill_at)
        process = FORK.Process(target=_work, args=args, name=name)
        process.start()
        theirs.close()
        self._live[name] = Worker(process, ours, point)

    def _listen(self, seconds: float) -> None:
        """Write down what is said for a while, and start again who is gone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for name in [name for name, at in self._due.items() if at <= time.monotonic()]:
                del self._due[name]
                self._start(name, armed=self._rng.random() < AT_POINT_FRAC)
            self._hear_whoever_speaks(min(left, 0.05))

    def _hear_whoever_speaks(self, within_s: float) -> None:
        names: dict[Any, str] = {worker.line: name for name, worker in self._live.items()}
        for line in wait(list(names), within_s):
            self._hear(names[line])

    def _hear(self, name: str) -> bool:
        """Write down one thing that a worker says; false if it says nothing any more, and is gone."""
        try:
            said = json.loads(self._live[name].line.recv_bytes())
        except (EOFError, OSError):  # the end, perhaps in the middle of a word: that was not acknowledged
            self._bury(name)
            return False
        self._live[name].num_words += 1
        self._journal.hear(name, said)
        return True

    def _kill(self, name: str) -> None:
        self._live[name].process.kill()
        while self._hear(name):  # what it said before it died counts
            pass

    def _bury(self, name: str) -> None:
        worker = self._live.pop(name)
        worker.process.join()
        worker.line.close()
        if worker.process.exitcode == -signal.SIGKILL:
            self.kills[WORKERS[name]] += 1
            self.points.update([worker.point] if worker.point else [])
        elif worker.process.exitcode != 0 or not self._stopping:
            self._journal.wrong.append(f"{name} ended with exit code {worker.process.exitcode}")
        if not self._stopping:
            late = self._rng.random() < ABSENT_FRAC
            self._due[name] = time.monotonic() + (self._rng.uniform(0.0, ABSENT_S) if late else 0.0)

    def _stop(self) -> None:
        """Ask everybody to end after what it does now."""
        self._stopping = True
        for worker in self._live.values():
            with suppress(OSError):  # it died at its point just now
                worker.line.send_bytes(b"stop")
        give_up = time.monotonic() + STOP_LIMIT_S
        while self._live and time.monotonic() < give_up:
            self._hear_whoever_speaks(1.0)
        self._journal.wrong += [f"{name} did not end within {STOP_LIMIT_S:.0f} s" for name in self._live]


def _work(name: str, place: Place, connection: Connection, seed: int, unfinished: Sequence[Said], kill_at: str | None) -> None:
    """What a worker's process does until it is told to end, or dies."""
    if kill_at is not None:
        os.environ["TIDEMILL_KILL_AT"] = kill_at
    line = Line(lambda said: connection.send_bytes(json.dumps(said).encode()), connection.poll)
    rng = Random(seed)
    try:
        worker = ROLES[WORKERS[name]](place, name, line, rng)
        worker.begin(unfinished)
        while not line.stopping():
            worker.round()
            time.sleep(rng.uniform(0.5, 1.5) * REST_S[WORKERS[name]])
    except Exception:  # whatever a worker died of is what the killer reports
        line.say("wrong", what=traceback.format_exc())
        raise
