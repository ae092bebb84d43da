"""The words of Tidemill, as types. Read this first: the rest of the library moves these values around.

A *task* is leased to an explorer, which makes a group of *attempts* at it. An attempt is a *trajectory* of *turns*,
each a prompt and the *completion* that an engine sampled for it. A scored trajectory is stored as *experiences*,
the rows that a trainer learns from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any


class StopReason(StrEnum):
    """Why a completion ended."""

    EOS = "eos"
    """The model sampled an end-of-sequence token; it is the last token of the completion."""
    LENGTH = "length"
    """The token limit was reached: the answer is truncated."""
    STOP = "stop"
    """A stop string appeared."""
    ABORT = "abort"
    """The engine gave up this request, for instance because the attempt's deadline passed."""


class Source(StrEnum):
    """Who wrote the trained tokens of an experience."""

    POLICY = "policy"
    EXPERT = "expert"
    HUMAN = "human"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """A problem to solve, with the facts that are needed to check an answer."""

    task_id: str
    """Names the task by its content: the same row has the same id in every run."""
    messages: tuple[Message, ...]
    """The prompt as chat turns. A single message of role `text` is a raw prompt, for models without chat template."""
    answer: str | None = None
    """The right answer, where there is one."""
    response: str | None = None
    """An expert's whole reply: the target of supervised fine-tuning."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The other fields of the row, for rewards and environments."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What an engine is asked to complete."""

    prompt_tokens: tuple[int, ...]
    max_tokens: int
    temperature: float
    """1 samples from the model's own distribution; 0 is greedy, and log-probs are then those at temperature 1."""
    seed: int
    """Seeds this request's own random numbers, so that its sample does not depend on its neighbours."""
    order: tuple[int, ...] = ()
    """(task position, attempt, turn): engines batch by it, not by arrival, so that a batch is the same every time."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled: the ids are kept from here to the trainer, nothing is ever re-tokenised."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log-prob of each token under the distribution that it was sampled from. Same length as `tokens`."""
    stop_reason: StopReason
    policy_version: int
    """The weights that sampled the first token."""
    policy_version_end: int
    """The weights that sampled the last token."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt and what was sampled for it, with the text that the environment saw."""

    prompt_tokens: tuple[int, ...]
    completion: Completion
    prompt_text: str
    response_text: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The turns of one attempt."""

    turns: tuple[Turn, ...]
    source: Source = Source.POLICY

    @property
    def response_text(self) -> str:
        """The last thing that the policy said: what single-answer rewards look at."""
        return self.turns[-1].response_text if self.turns else ""


@dataclass(frozen=True, slots=True)
class Reward:
    """A score and what it is made of."""

    value: float | None
    """Null while it is not known yet."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The unweighted score of each named reward."""
    reason: str = ""
    """Why, in a few words, for the people who review samples."""


@dataclass(frozen=True, slots=True)
class Experience:
    """One trainable row: what happened, never a derived value.

    `tokens`, `action_mask` and `logprobs` have one length, that of prompt plus completions;
    `rft_core.buffer.rows.to_arrow` checks it once, when rows are written.
    """

    experience_id: str
    group_id: str
    task_id: str
    lease_id: str
    attempt: int
    turn_index: int
    explorer: str
    policy_version: int
    policy_version_end: int
    tokens: tuple[int, ...]
    action_mask: tuple[bool, ...]
    """True where the policy (or the expert) wrote the token: only these are trained."""
    logprobs: tuple[float, ...]
    """Log-prob under the sampling distribution where `action_mask` is true, 0.0 elsewhere and for expert rows."""
    temperature: float
    prompt_length: int
    prompt_text: str
    response_text: str
    reward: float | None
    """Raw, before any shaping; null while not known, and for attempts that failed."""
    stop_reason: StopReason | None
    """Null for an attempt that failed before it had an answer."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()
    teacher_logprobs: tuple[float, ...] = ()
    source: Source = Source.POLICY
    error: str | None = None
    """`ErrorType: text` of an attempt that failed."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth keeping; stored as JSON."""
    created_at: float = 0.0
    """Seconds since the epoch."""


def digest(*parts: object) -> str:
    """Name something by what it is: a short hash over its parts, the same in every process.

    Example:
        >>> digest("lease", "task", 3) == digest("lease", "task", 3)
        True
        >>> digest("ab", "c") == digest("a", "bc")
        False
    """
    return sha256("\x1f".join(repr(part) for part in parts).encode()).hexdigest()[:24]


def seed_of(*parts: object) -> int:
    """A 63-bit seed from what it is for, as in `seed_of(run_seed, step, task_id, attempt, turn)`."""
    return int(digest("seed", *parts)[:16], 16) >> 1
