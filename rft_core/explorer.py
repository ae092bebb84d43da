"""The explorer: runs attempts at leased tasks and records what happened, whatever happened."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rft_core.buffer import ExperienceStore
from rft_core.catalog import Lease
from rft_core.engines import Engine
from rft_core.environments import Environment
from rft_core.errors import AttemptError, DeadlineError, EmptyPromptError, PromptTooLongError, RolloutError, TidemillError
from rft_core.tokens import Tokenizer
from rft_core.types import (
    Completion,
    Experience,
    GenerationRequest,
    Message,
    Reward,
    Source,
    StopReason,
    Task,
    Trajectory,
    Turn,
    digest,
    seed_of,
)


class Scorers(Protocol):
    """Scores answers under a deadline; `rft_core.rewards.pool` does it in worker processes."""

    async def score(self, task: Task, answer: str, timeout_s: float) -> Reward: ...

    async def close(self) -> None: ...


class Unscored:
    """Leaves every reward open: for runs that learn without rewards, or from labels."""

    async def score(self, task: Task, answer: str, timeout_s: float) -> Reward:
        return Reward(None)

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How attempts are sampled."""

    temperature: float
    max_tokens: int
    timeout_s: float
    """The one deadline of an attempt, for everything that it does."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of one attempt."""

    trajectories: tuple[Trajectory, ...]
    """Of a failed attempt: the turns that it had by then."""
    reward: Reward
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """One attempt that is to be made."""

    task: Task
    order: tuple[int, int]
    """(slot or index, attempt): what engines batch by."""
    seed_key: tuple[object, ...]
    """With the run's seed, what its samples follow from."""


class Explorer:
    """Runs attempts against one engine.

    Args:
        name: Who it is, in the ledger and in every row.
        seed: The run's seed; an attempt's samples follow from it and from what the attempt is.
        engine: Completes prompts.
        tokenizer: The engine's.
        max_context: Longest sequence, in tokens.
        environment: Makes an environment for one attempt.
        held_out_environment: The same for attempts at held-out tasks.
        scorers: Score answers.
        store: Where experiences go.
    """

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        engine: Engine,
        tokenizer: Tokenizer,
        max_context: int,
        environment: Callable[[], Environment],
        held_out_environment: Callable[[], Environment],
        scorers: Scorers,
        store: ExperienceStore,
    ) -> None:
        self.name = name
        self._seed = seed
        self.engine = engine
        self.tokenizer = tokenizer
        self.max_context = max_context
        self._environment = environment
        self._held_out_environment = held_out_environment
        self.scorers = scorers
        self._store = store
        self._asking: set[AttemptPolicy] = set()
        """The attempts that may still ask the engine."""
        engine.expect(lambda: len(self._asking))

    async def rollout(
        self, step: int, leases: Sequence[Lease], tasks: Sequence[Task], group_size: int, sampling: Sampling, max_failed_frac: float
    ) -> None:
        """Try each leased task `group_size` times, and store all attempts as one segment.

        Args:
            step: The step that they are for.
            leases: In slot order; still open.
            tasks: The task of each lease.
            group_size: Attempts at each.
            sampling: How.
            max_failed_frac: A larger share of failed attempts ends the run, after they are stored; the next start tries
                the same tasks again.

        Raises:
            RolloutError: Too many attempts failed; says how many for which reason.
        """
        rows, errors = await self._try_all(leases, tasks, group_size, sampling)
        failure = too_many_failed(errors, max_failed_frac)
        await asyncio.to_thread(self._store.append, _key_of(leases[0]), rows, self.name, step, rejected=failure)
        if failure is not None:
            raise RolloutError(f"step {step}: {failure}")

    async def try_one(self, lease: Lease, task: Task, group_size: int, sampling: Sampling) -> list[str | None]:
        """Try one leased task `group_size` times, and store its group as a segment; returns the error of each attempt."""
        rows, errors = await self._try_all([lease], [task], group_size, sampling)
        await asyncio.to_thread(self._store.append, _key_of(lease), rows, self.name, lease.step)
        return errors

    async def answer(self, tasks: Sequence[Task], sampling: Sampling) -> list[Finished]:
        """Try each task once and keep nothing: for evaluation."""
        jobs = [_Job(task, (index, 0), ("evaluation", task.task_id, index)) for index, task in enumerate(tasks)]
        return await self._run_all(jobs, sampling, self._held_out_environment)

    async def _try_all(
        self, leases: Sequence[Lease], tasks: Sequence[Task], group_size: int, sampling: Sampling
    ) -> tuple[list[Experience], list[str | None]]:
        """The rows of `group_size` attempts at each leased task, and the error of each attempt."""
        attempts = [(lease, task, attempt) for lease, task in zip(leases, tasks, strict=True) for attempt in range(group_size)]
        jobs = [_Job(task, (lease.slot, attempt), (lease.step, task.task_id, lease.slot, attempt)) for lease, task, attempt in attempts]
        finished = await self._run_all(jobs, sampling, self._environment)
        rows = [
            row
            for (lease, task, attempt), result in zip(attempts, finished, strict=True)
            for row in self._rows(lease, task, attempt, result, sampling.temperature)
        ]
        return rows, [result.error for result in finished]

    async def _run_all(self, jobs: Sequence["_Job"], sampling: Sampling, environment: Callable[[], Environment]) -> list[Finished]:
        """Run attempts side by side."""
        policies = [AttemptPolicy(self, sampling, job.order, (self._seed, *job.seed_key)) for job in jobs]
        self._asking.update(policies)
        runs = [asyncio.create_task(self._attempt(job.task, policy, environment)) for job, policy in zip(jobs, policies, strict=True)]
        try:
            return await asyncio.gather(*runs)
        finally:
            self._asking.difference_update(policies)
            for run in runs:
                run.cancel()

    async def _attempt(self, task: Task, policy: "AttemptPolicy", environment: Callable[[], Environment]) -> Finished:
        trajectories: tuple[Trajectory, ...] = ()
        deadline = policy.deadline
        try:
            try:
                async with deadline.limit:
                    trajectories = _checked(await environment().run(task, policy))
            finally:
                self._asking.discard(policy)
            # Scorers keep the rest of the deadline themselves: waiting behind a neighbour that hangs must not count.
            return Finished(trajectories, await self.scorers.score(task, trajectories[-1].response_text, deadline.left_s))
        except TimeoutError as raised:
            late = DeadlineError(f"the attempt took longer than {policy.sampling.timeout_s:g} s", "raise rollout.timeout_s")
            error: Exception = late if deadline.limit.expired() else raised
        except AttemptError as failed:
            error = failed
        except TidemillError:
            raise
        except Exception as raised:  # noqa: BLE001 - an environment is the user's code: whatever it raises is data
            error = raised
        partial = trajectories or ((Trajectory(tuple(policy.turns)),) if policy.turns else ())
        return Finished(partial, Reward(None), f"{type(error).__name__}: {error}")

    def _rows(self, lease: Lease, task: Task, attempt: int, result: Finished, temperature: float) -> list[Experience]:
        """The rows of one attempt: one a turn, or a single one without tokens where it failed before its first answer."""
        turns = [(trajectory.source, turn) for trajectory in result.trajectories for turn in trajectory.turns]
        group_id = digest("group", lease.lease_id)
        shared: dict[str, Any] = {
            "group_id": group_id,
            "task_id": task.task_id,
            "lease_id": lease.lease_id,
            "attempt": attempt,
            "explorer": self.name,
            "temperature": temperature,
            "reward": None if result.error else result.reward.value,
            "reward_parts": result.reward.parts,
            "error": result.error,
            "info": {"reason": result.reward.reason} if result.reward.reason else {},
            "created_at": time.time(),
        }
        if not turns:
            turns = [(Source.POLICY, _no_turn(task, self.engine.version))]
        return [
            Experience(
                experience_id=digest("experience", group_id, attempt, index),
                turn_index=index,
                policy_version=turn.completion.policy_version,
                policy_version_end=turn.completion.policy_version_end,
                tokens=turn.prompt_tokens + turn.completion.tokens,
                action_mask=(False,) * len(turn.prompt_tokens) + (True,) * len(turn.completion.tokens),
                logprobs=(0.0,) * len(turn.prompt_tokens) + turn.completion.logprobs,
                prompt_length=len(turn.prompt_tokens),
                prompt_text=turn.prompt_text,
                response_text=turn.response_text,
                stop_reason=turn.completion.stop_reason if turn.completion.tokens else None,
                source=source,
                **shared,
            )
            for index, (source, turn) in enumerate(turns)
        ]


def _key_of(first: Lease) -> str:
    """The idempotence key of the segment whose first group is at a lease."""
    return f"step-{first.step:06d}-{first.slot:04d}-{first.epoch}"


class Deadline:
    """The one deadline of an attempt, for everything that it does; waiting until an engine begins with it does not count.

    Args:
        timeout_s: Seconds from now.
    """

    def __init__(self, timeout_s: float) -> None:
        self._left_s = timeout_s
        self._since = asyncio.get_running_loop().time()
        self._paused = False
        self.limit = asyncio.timeout(timeout_s)
        """What cuts the attempt off."""

    @property
    def left_s(self) -> float:
        return self._left_s if self._paused else self._left_s - (asyncio.get_running_loop().time() - self._since)

    def pause(self) -> None:
        self._left_s = self.left_s
        self._paused = True
        self.limit.reschedule(None)

    def go_on(self) -> None:
        if self._paused and not self.limit.expired():
            self._paused = False
            self._since = asyncio.get_running_loop().time()
            self.limit.reschedule(self._since + self._left_s)


class AttemptPolicy:
    """The policy as one attempt's environment sees it."""

    def __init__(self, explorer: Explorer, sampling: Sampling, order: tuple[int, int], seed_key: tuple[object, ...]) -> None:
        self.sampling = sampling
        self.deadline = Deadline(sampling.timeout_s)
        self.turns: list[Turn] = []
        self._explorer = explorer
        self._order = order
        self._seed_key = seed_key
        self._num_asked = 0

    async def start(self, messages: Sequence[Message]) -> Turn:
        """Render the messages and sample the reply; see `rft_core.environments.Policy`."""
        text, tokens, room = self._prompt(messages)
        turn_index = self._num_asked  # not the number of turns: an environment may ask for several at a time
        self._num_asked += 1
        request = GenerationRequest(
            prompt_tokens=tokens,
            max_tokens=min(self.sampling.max_tokens, room),
            temperature=self.sampling.temperature,
            seed=seed_of(*self._seed_key, turn_index),
            order=(*self._order, turn_index),
        )
        self.deadline.pause()  # while the engine is busy with others
        try:
            completion = await self._explorer.engine.generate(request, on_start=self.deadline.go_on)
        finally:
            self.deadline.go_on()
        return self._keep(text, tokens, completion, self._explorer.tokenizer.decode(completion.tokens))

    def reply(self, messages: Sequence[Message], response: str) -> Turn:
        """A turn whose reply is given; see `rft_core.environments.Policy`."""
        text, tokens, room = self._prompt(messages)
        tokenizer = self._explorer.tokenizer
        reply = (*tokenizer.encode(response), tokenizer.eos_id)
        if len(reply) > room:
            raise PromptTooLongError(
                f"prompt and reply have {len(tokens) + len(reply)} tokens, the context has {self._explorer.max_context}"
            )
        version = self._explorer.engine.version
        return self._keep(text, tokens, Completion(reply, (0.0,) * len(reply), StopReason.EOS, version, version), response)

    def _prompt(self, messages: Sequence[Message]) -> tuple[str, tuple[int, ...], int]:
        """Text and tokens of a prompt, and the tokens that are left for its reply."""
        tokenizer = self._explorer.tokenizer
        if not messages or not messages[-1].content.strip():
            raise EmptyPromptError("the prompt of this task is empty", "every task needs a prompt: see data.*.format")
        text = tokenizer.render(messages)
        tokens = tokenizer.encode_chat(messages)
        room = self._explorer.max_context - len(tokens)
        if room < 1:
            raise PromptTooLongError(f"the prompt has {len(tokens)} tokens, the context has {self._explorer.max_context}")
        return text, tokens, room

    def _keep(self, text: str, tokens: tuple[int, ...], completion: Completion, response: str) -> Turn:
        turn = Turn(tokens, completion, text, response)
        self.turns.append(turn)
        return turn


def too_many_failed(errors: Sequence[str | None], max_failed_frac: float) -> str | None:
    """Say that too many attempts failed, and for which reasons; null if it is not so.

    Args:
        errors: One for each attempt, null for those that did not fail.
        max_failed_frac: The largest share that may.
    """
    reasons = Counter(error for error in errors if error is not None)
    if reasons.total() <= max_failed_frac * len(errors):
        return None
    listed = "; ".join(f"{count} x {' '.join(reason.split())[:300]}" for reason, count in reasons.most_common(3))
    return f"{reasons.total()} of {len(errors)} attempts failed: {listed}"


def _checked(returned: object) -> tuple[Trajectory, ...]:
    """What an environment returned.

    Raises:
        AttemptError: It is not what an environment returns.
    """
    given = returned if isinstance(returned, list | tuple) else ()
    whole = [one for one in given if isinstance(one, Trajectory) and one.turns and all(isinstance(turn, Turn) for turn in one.turns)]
    if not given or len(whole) != len(given):
        shown = ", ".join(type(one).__name__ for one in given) or "nothing"
        raise AttemptError(
            f"the environment returned a {type(returned).__name__} of {shown}",
            "a list of trajectories, each with its turns, is right: `check_environment` looks at it",
        )
    return tuple(whole)


def _no_turn(task: Task, version: int) -> Turn:
    """Stands for an attempt that never had an answer."""
    nothing = Completion((), (), StopReason.ABORT, version, version)
    return Turn((), nothing, "\n".join(message.content for message in task.messages), "")
