"""What all workers are: a name, a table, a line to the journal, and rounds of work until they are told to end or die."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random

from benchmarks.torture.journal import Line, Said
from benchmarks.torture.place import Place


class Role(ABC):
    """A worker of one kind.

    Args:
        place: The run.
        name: Its name, which is that of its killed predecessors too.
        line: To the journal.
        rng: Decides what it does, and when.
    """

    def __init__(self, place: Place, name: str, line: Line, rng: Random) -> None:
        self.place = place
        self.name = name
        self.line = line
        self.rng = rng
        self.table = place.open(name)

    def begin(self, unfinished: Sequence[Said]) -> None:
        """Remove what the predecessor left half-written, and go on with its work.

        Args:
            unfinished: What it announced, and did not say that it had done.
        """
        self.table.store.sweep()

    @abstractmethod
    def round(self) -> bool:
        """Do a piece of work; false if there is none now."""

    def close(self) -> None:
        """Let go of the table."""
        self.table.catalog.close()
