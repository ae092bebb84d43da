"""A worker of the scorer pool, as two processes.

The *keeper* talks with the pool and runs no reward, so it always answers. Its child, the *scorer*, runs the rewards.
When a score does not come in time the keeper kills everything below itself, reaps it, and forks a new scorer. When the
pool's end of the socket closes, whatever the reason, the keeper ends all of it and itself.

Between the two go: to the scorer a request {task, answer}; back `{"ready"}` once, then `{"scoring": name}` before each
reward, and last the reward or an error.
"""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from rft_core.config import RewardSpec
from rft_core.errors import DeadlineError, RewardError, TidemillError
from rft_core.rewards.combine import RewardSet
from rft_core.rewards.processes import become_subreaper, die_with_parent, kill_descendants
from rft_core.rewards.wire import pack_error, pack_reward, receive, send, unpack_task

LOAD_LIMIT_S = 120.0
"""How long the rewards may take to be imported and built; it is not counted against an attempt."""


class Keeper:
    """The process that watches over a scorer.

    Args:
        pool: The socket to the pool.
        specs: The rewards.
        folder: The run's working directory, where a user's own modules may be.
    """

    def __init__(self, pool: int, specs: list[RewardSpec], folder: str) -> None:
        self._pool = pool
        self._specs = specs
        self._folder = folder
        self._running = "loading the rewards"
        self._pid = 0
        self._load_error: dict[str, Any] | None = None
        self._watched: list[int] = []

    def serve(self) -> None:
        """Answer requests until the pool hangs up."""
        self._start()
        while (request := receive(self._pool)) is not None:
            send(self._pool, self._answer(request))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._load_error is None and not self._ready:
            self._load()
        if self._load_error is not None or "task" not in request:
            return self._load_error or {"ready": True}
        timeout_s = request.pop("timeout_s")
        try:
            send(self._to, request)
            return self._reply(timeout_s)
        except BrokenPipeError:
            return self._died()

    def _load(self) -> None:
        """Wait until the scorer is ready; what kept it from being so is what every request is answered with."""
        reply = self._reply(LOAD_LIMIT_S)
        self._ready = "ready" in reply
        if not self._ready:
            self._load_error = reply
            kill_descendants()

    def _reply(self, limit_s: float) -> dict[str, Any]:
        """The scorer's last word on a request; a scorer that has none in time, or ever, is replaced."""
        give_up = time.monotonic() + limit_s
        while (left_s := give_up - time.monotonic()) > 0:
            # The scorer's end is watched as well as its pipe, which a process that it forked may hold open.
            readable, _, _ = select.select(self._watched, [], [], left_s)
            message = receive(self._from) if self._from in readable else None
            if message is not None and "scoring" not in message:
                return message
            if message is not None:
                self._running = f"reward {message['scoring']!r}"
            elif self._pool in readable:
                # The pool asks one thing at a time: it can only have hung up.
                self.stop()
                os._exit(0)
            elif readable:
                return self._died()
        late = DeadlineError(
            f"{self._running} did not end within {limit_s:.3g} s and was killed", "make it quicker, or raise the time limit"
        )
        self._restart()
        return pack_error(late)

    def _died(self) -> dict[str, Any]:
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        ended = RewardError(
            f"{self._running} ended the scorer's process ({how})", "a reward must return, not exit; a signal may mean that memory ran out"
        )
        self._restart()
        return pack_error(ended)

    def _restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        """End the scorer and everything that it started."""
        kill_descendants()
        for descriptor in (self._to, *self._watched):
            if descriptor != self._pool:
                os.close(descriptor)

    def _start(self) -> None:
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        self._ready = False
        self._running = "loading the rewards"
        keeper = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            for descriptor in (self._pool, self._to, self._from):
                os.close(descriptor)
            die_with_parent(keeper)
            _end_after(lambda: score_forever(to_read, from_write, self._specs, self._folder))
        self._watched = [self._from, self._pool, *self._end_of_scorer()]
        os.close(to_read)
        os.close(from_write)

    def _end_of_scorer(self) -> list[int]:
        """A descriptor that can be read when the scorer has ended, where the system has such a thing (Linux)."""
        return [os.pidfd_open(self._pid)] if sys.platform == "linux" else []


def score_forever(requests: int, replies: int, specs: list[RewardSpec], folder: str) -> None:
    """The scorer: load the rewards, then score until the keeper hangs up."""
    become_subreaper()
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        reward_set = RewardSet(specs)
    except TidemillError as error:
        send(replies, pack_error(error))
        return
    send(replies, {"ready": True})
    while (request := receive(requests)) is not None:
        try:
            reply = pack_reward(reward_set(unpack_task(request["task"]), request["answer"], lambda name: send(replies, {"scoring": name})))
        except RewardError as error:
            reply = pack_error(error)
        kill_descendants()
        send(replies, reply)


def _end_after(body: Callable[[], None]) -> NoReturn:
    """Run the body of a forked child and end the process, so that nothing of the parent's stack runs twice."""
    try:
        body()
    except BaseException:  # noqa: BLE001 - whatever it is, this process must end here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(pool: int) -> None:
    """Run a worker on the socket that the pool gave it; the first message names the rewards and the folder."""
    # Whatever a reward prints goes where errors go.
    os.dup2(2, 1)
    become_subreaper()
    hello = receive(pool)
    if hello is not None:
        keeper = Keeper(pool, [RewardSpec.model_validate(spec) for spec in hello["rewards"]], hello["folder"])
        keeper.serve()
        keeper.stop()
