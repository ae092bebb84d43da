"""Reward functions in worker processes, each score under a deadline.

A reward that never returns is killed with everything that it started; its neighbours go on in another worker. Workers
import no torch, see no secrets of the environment, and end when this process does, however it ends.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rft_core.config import RewardSpec
from rft_core.errors import DeadlineError, RewardError
from rft_core.rewards.processes import KILL_LIMIT_S, kill_tree
from rft_core.rewards.wire import HEADER_BYTES, body_size, framed, pack_task, unpack_reply
from rft_core.rewards.worker import LOAD_LIMIT_S
from rft_core.types import Reward, Task

ENVIRONMENT = ("PATH", "HOME", "LANG", "PYTHONPATH", "PYTHONHASHSEED", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME")
ENVIRONMENT_PREFIXES = ("LC_", "HF_", "OMP_", "MKL_", "OPENBLAS_", "TIDEMILL_")
"""What a worker is given of the environment."""
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")
"""Names with one of these in them are left out all the same."""

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rft_core.rewards.worker import main; main(int(sys.argv[2]))"


class ScorerPool:
    """Scores answers in worker processes. It belongs to one event loop.

    A process that a reward started and left behind is ended after each score, so a reward can't keep a pool of its own.

    Args:
        specs: The rewards; at least one.
        workers: How many answers are scored at a time.
        folder: Where a user's own modules may be: the run's working directory. It is appended to the search path, so
            that nothing in it can take the place of an installed package.

    Example:
        >>> import asyncio
        >>> async def score():
        ...     async with ScorerPool([RewardSpec(name="exact")], workers=1) as pool:
        ...         return await pool.score(Task("t", (), answer="4"), " 4", timeout_s=60.0)
        >>> asyncio.run(score()).value
        1.0
    """

    def __init__(self, specs: Sequence[RewardSpec], workers: int, folder: Path | None = None) -> None:
        self._hello = framed({"rewards": [spec.model_dump(mode="json") for spec in specs], "folder": str((folder or Path.cwd()).resolve())})
        self._idle: asyncio.Queue[_Worker | None] = asyncio.Queue()
        self._all: set[_Worker] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._size = workers

    def start(self) -> None:
        """Start the workers, in the background: this does not wait for them."""
        while len(self._all) < self._size:
            worker = _Worker(self._hello)
            self._all.add(worker)
            self._idle.put_nowait(worker)

    async def ready(self) -> None:
        """Wait until one worker has loaded the rewards.

        Raises:
            ConfigError: A reward can't be loaded.
            RewardError: The worker ended while it loaded them.
            DeadlineError: Loading took more than `LOAD_LIMIT_S`.
        """
        reply = await self._ask({"ready": True}, 0.0)
        if "error" in reply:
            unpack_reply(reply)

    async def score(self, task: Task, answer: str, timeout_s: float) -> Reward:
        """Score one answer.

        Args:
            task: The task.
            answer: What the policy said last.
            timeout_s: How long the rewards may take in all, from when a worker begins with this answer: waiting for a
                worker is the doing of others, and doesn't count.

        Raises:
            DeadlineError: A reward did not return in time; names it.
            RewardError: A reward raised, did not return one finite number, or ended its process; names it.
            ConfigError: A reward can't be loaded.
        """
        if timeout_s <= 0:
            raise DeadlineError("no time was left for scoring", "raise `rollout.timeout_s`")
        reply = await self._ask({"task": pack_task(task), "answer": answer, "timeout_s": timeout_s}, timeout_s)
        return unpack_reply(reply)

    async def close(self) -> None:
        """End the workers and wait until they are gone. Scores that are under way or waiting fail; so do later ones."""
        self._size = 0
        for worker in list(self._all):
            self._end(worker)
        self._idle.put_nowait(None)
        await asyncio.gather(*self._ending)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        message = framed(request)
        self.start()
        worker = await self._idle.get()
        if worker is None:
            self._idle.put_nowait(None)
            raise self._lost()
        answered = False
        try:
            # The worker keeps the time itself; this only guards against one that is stopped.
            async with asyncio.timeout(LOAD_LIMIT_S + timeout_s + KILL_LIMIT_S):
                reply = await worker.ask(message)
            answered = True
        except (OSError, EOFError):
            raise self._lost() from None
        except TimeoutError:
            raise DeadlineError("a scorer's keeper does not answer", "it was killed") from None
        finally:
            # Also when this call is cancelled: its worker is busy with something that nobody waits for.
            if answered:
                self._idle.put_nowait(worker)
            else:
                self._end(worker)
                self.start()
        return reply

    def _lost(self) -> RewardError:
        if self._size == 0:
            return RewardError("the scorer pool is closed", "score before `close`")
        return RewardError("a worker of the scorer pool was killed from outside", "the machine may be out of memory")

    def _end(self, worker: "_Worker") -> None:
        if worker not in self._all:
            return
        self._all.discard(worker)
        ending = asyncio.create_task(worker.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _Worker:
    """One worker process and the socket to it."""

    def __init__(self, hello: bytes) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-u", "-P", "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=_environment(), start_new_session=True
            )
        self._socket.setblocking(True)
        self._socket.sendall(hello)
        self._socket.setblocking(False)

    async def ask(self, message: bytes) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, message)
        size = body_size(await self._receive(HEADER_BYTES))
        return dict(json.loads(await self._receive(size)))

    async def end(self) -> None:
        """Hang up, wait until the process is gone, and see to it that it goes.

        The keeper ends the scorer, what that started, and itself when the pool hangs up.
        """
        # Not closed yet: a call that waits for this socket would never be told.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(self._wait)
        self._socket.close()

    def _wait(self) -> None:
        try:
            self._process.wait(KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            kill_tree(self._process.pid)
            self._process.wait()

    async def _receive(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        parts = bytearray()
        while len(parts) < size:
            part = await loop.sock_recv(self._socket, size - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


def _environment() -> dict[str, str]:
    def allowed(name: str) -> bool:
        return (name in ENVIRONMENT or name.startswith(ENVIRONMENT_PREFIXES)) and not any(word in name for word in SECRET)

    return {name: value for name, value in os.environ.items() if allowed(name)}
