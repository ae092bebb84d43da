"""The compactor merges, pins and deletes; the reader asks all the time whether anybody can see it."""

from uuid import uuid4

from benchmarks.torture.place import PIPELINE, Checkpoint
from benchmarks.torture.role import Role
from rft_core.buffer import Questions, Table
from rft_core.buffer.compaction import compact
from rft_core.config import RetentionConfig
from rft_core.types import digest

TARGET_BYTES = 60_000
STATE = "select experience_id, reward, labelled_reward, shaped_reward, dropped_by from experiences order by experience_id"
TOTALS = "select count(*) as total, count(distinct experience_id) as different from experiences"


class Compactor(Role):
    """Keeps the table small."""

    def round(self) -> bool:
        """Pin a state or let one go, and compact."""
        history = self.table.catalog.history
        if self.rng.random() < 0.3:
            history.pin(f"pin-{uuid4().hex[:8]}")
        pins = history.pins()
        if pins and self.rng.random() < 0.5:
            name = self.rng.choice(list(pins))
            self.read_pin(name, pins[name])
            if self.rng.random() < 0.5:
                history.unpin(name)
        self.compact(self.rng.choice((0.0, 0.2, 1.0)))
        return True

    def compact(self, grace_s: float) -> None:
        """Compact, and say what came of it."""
        redo_from = Checkpoint.read(self.place).step + 1
        done = compact(self.table, RetentionConfig(), redo_from, TARGET_BYTES, grace_s)
        for damage in done.damaged:
            self.line.say("lost", what=damage)
        self.line.say("compacted", merged=done.merged, made=done.made, deleted=done.deleted)

    def read_pin(self, name: str, sequence: int) -> None:
        """Say what the table shows at a pinned state: all of it must still be there."""
        questions = Questions(self.table.storage, self.table.catalog, PIPELINE, at=sequence)
        shown = questions.ask(STATE).to_pylist()
        for uri, problem in questions.damaged.items():
            self.line.say("lost", what=f"{uri} {problem}, and the pinned state {name} needs it")
        self.line.say("pin_read", name=name, digest=digest(*(tuple(row.values()) for row in shown)))


class Reader(Role):
    """Asks in SQL, all the time."""

    def round(self) -> bool:
        """Count the rows, and those that are different."""
        questions = Questions(self.table.storage, self.table.catalog, PIPELINE)
        found = questions.ask(TOTALS).to_pylist()[0]
        if questions.damaged:
            self._outrun(questions.damaged)
            return True
        if found["total"] != found["different"]:
            self.line.say("duplicated", what=f"{found['total'] - found['different']} rows have the id of another one")
        self.line.say("read", rows=found["different"])
        return True

    def _outrun(self, damaged: dict[str, str]) -> None:
        """A compaction without grace may delete what is being asked; nothing that is still part of the table."""
        for uri in sorted(live_files(self.table) & damaged.keys()):
            self.line.say("lost", what=f"{uri} {damaged[uri]}")
        self.line.say("outrun")


def live_files(table: Table) -> set[str]:
    """The files that the table is made of now."""
    segments = table.catalog.segments
    return {file.uri for _, file in segments.files()} | {file.uri for _, _, file in segments.overlay_files()}
