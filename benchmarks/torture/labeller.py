"""Labellers: say what experiences are worth that came without a reward, each its own opinion of the same ones."""

from collections.abc import Sequence
from uuid import uuid4

from benchmarks.torture.journal import Said
from benchmarks.torture.place import PIPELINE
from benchmarks.torture.role import Role
from rft_core.buffer import Questions
from rft_core.buffer.labelling import apply_labels
from rft_core.buffer.labels import LabelLine
from rft_core.errors import DataError

WAITING = "select experience_id from experiences where fate = 'pending' and error is null order by step, slot, attempt, turn_index"
REWARDED = "select experience_id from experiences where fate = 'ready' and error is null order by experience_id"
CORRECTS_FRAC = 0.2
"""Rounds in which experiences get another reward whose group does not wait for one."""
IN_SIGHT = 8
"""Experiences that a labeller chooses from: few, so that two of them often choose the same."""
TRIES = 5


class Labeller(Role):
    """One of two who label the same experiences."""

    def begin(self, unfinished: Sequence[Said]) -> None:
        """Say again what the predecessor may have said."""
        super().begin(unfinished)
        for said in unfinished:
            self._apply([LabelLine(number, key, *values) for number, (key, *values) in enumerate(said["lines"])])

    def round(self) -> bool:
        """Label some experiences."""
        found = self.find(REWARDED if self.rng.random() < CORRECTS_FRAC else WAITING)[:IN_SIGHT]
        if found:
            self.label(self.rng.sample(found, self.rng.randint(1, min(4, len(found)))))
        return bool(found)

    def find(self, question: str) -> list[str]:
        """Ids of experiences that a question asks for."""
        questions = Questions(self.table.storage, self.table.catalog, PIPELINE)
        return [row["experience_id"] for row in questions.ask(question).to_pylist()]

    def label(self, experience_ids: Sequence[str]) -> None:
        """Label these experiences."""
        self._apply([LabelLine(n, uuid4().hex, one, self.rng.choice((0.0, 0.5, 1.0)), self.name) for n, one in enumerate(experience_ids)])

    def _apply(self, lines: Sequence[LabelLine]) -> None:
        values = [[line.key, line.experience_id, line.value, line.author] for line in lines]
        self.line.say("labelling", keys=[line.key for line in lines], lines=values)
        for attempt in range(TRIES):
            try:
                apply_labels(self.table, lines)
                break
            except DataError:  # a compaction without grace deleted a file between the look at the catalog and the look at the file
                if attempt == TRIES - 1:
                    raise
                self.line.say("outrun")
        self.line.say("labelled", labels=values)
