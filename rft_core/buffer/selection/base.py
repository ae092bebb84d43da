"""What every selection gives."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rft_core.catalog import Candidate, Choice
from rft_core.catalog.candidates import Order
from rft_core.registry import ExtensionConfig, Registry


@dataclass(frozen=True, slots=True)
class Wanted:
    """The batch that a step asks for."""

    step: int
    count: int
    """Groups of a full batch."""


class Pool(Protocol):
    """The groups that wait for training and are fresh enough; `rft_core.catalog.Candidates` is one."""

    def by(self, order: Order, source: str | None = None) -> Iterator[Candidate]:
        """Walk over them in an order, over all or those of one source."""
        ...


class Selector(Protocol):
    """Chooses the batch of a step. The same table and step give the same choice."""

    def score(self, rewards: Sequence[float]) -> float | None:
        """The priority that a group begins with, given the rewards of its attempts; null where its labels or age alone decide."""
        ...

    def choose(self, pool: Pool, wanted: Wanted) -> Choice:
        """Choose at most `wanted.count` groups, in the order of the batch."""
        ...


selectors: Registry[Selector] = Registry("selection", "rft_core.buffer.selection")
"""Selections are built as `cls(config)`."""


def take(candidates: Iterator[Candidate], wanted: Wanted, passed_over: Counter[str], count: int | None = None) -> list[Candidate]:
    """The first groups of a walk that the step may take.

    Args:
        candidates: The walk.
        wanted: Whose batch it is.
        passed_over: Counts here, by reason, what may not be taken yet.
        count: How many; the whole batch if left out.
    """
    taken: list[Candidate] = []
    limit = wanted.count if count is None else count
    while len(taken) < limit and (candidate := next(candidates, None)) is not None:
        if candidate.again_from > wanted.step:
            passed_over["cooling_down"] += 1
        else:
            taken.append(candidate)
    return taken


class ByAge:
    """A selection that goes by the policy version alone, and takes each group once."""

    order: ClassVar[Order]

    def __init__(self, config: ExtensionConfig) -> None:
        self._config = config

    def score(self, rewards: Sequence[float]) -> float | None:
        return None

    def choose(self, pool: Pool, wanted: Wanted) -> Choice:
        passed_over: Counter[str] = Counter()
        return Choice(take(pool.by(self.order), wanted, passed_over), passed_over)
