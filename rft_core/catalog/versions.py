"""Published versions, who uses them, and how they scored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from rft_core import metrics
from rft_core.catalog import schema
from rft_core.catalog.clock import is_recent, now
from rft_core.catalog.database import Database
from rft_core.catalog.files import StoredFile, take_intent
from rft_core.catalog.trainers import require_generation
from rft_core.errors import ReproducibilityError, RunError
from rft_core.processes import Process, is_gone

_NEWEST = select(func.max(schema.weights.c.version)).where(schema.weights.c.uri.is_not(None))  # built once: explorers ask at each poll
READER_LEASE_S = 60.0
"""A reader that was not heard of for so long may be replaced by another of its name."""
HELD_OUT = "held_out"
"""Name of the recipe's evaluation set among the evaluations."""


@dataclass(frozen=True, slots=True)
class Version:
    """One set of policy weights."""

    version: int
    step: int
    uri: str | None
    sha256: str | None
    pinned: str | None = None
    """Why its files must stay; null where they need not."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How one version scored on a held-out set."""

    name: str
    version: int
    metrics: Mapping[str, float]
    uri: str
    """Of the scored answers."""
    sha256: str | None = None
    """Of that file; null for those of an older schema."""

    @property
    def quality(self) -> float:
        """What versions are compared by: the share of exact answers, or the mean reward where answers can't be checked."""
        return self.metrics.get(metrics.EVAL_EXACT, self.metrics.get(metrics.EVAL_REWARD, float("-inf")))


def best(evaluations: Sequence[Evaluation]) -> int | None:
    """The version that scored highest, the first of equals; null where none was scored."""
    return max(evaluations, key=lambda evaluation: evaluation.quality).version if evaluations else None


class Versions:
    """The ledger of weights."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self, version: Version, generation: int) -> None:
        """Refuse what `record` would refuse, before any file is written.

        Raises:
            LostClaimError: Another trainer took over.
            ReproducibilityError: It is known with another hash.
        """
        with self._database.read() as connection:
            _known(connection, version, generation)

    def record(self, version: Version, generation: int) -> None:
        """Write a version down. One that is known already must have the same bytes.

        Raises:
            LostClaimError: Another trainer took over.
            ReproducibilityError: It is known with another hash.
        """
        table = schema.weights
        with self._database.write() as connection:
            if not _known(connection, version, generation):
                values = {name: getattr(version, name) for name in Version.__slots__}
                connection.execute(insert(table).values(**values, generation=generation, created_at=now(connection)))
            elif version.sha256 is not None:
                files = {"uri": version.uri, "sha256": version.sha256}
                connection.execute(update(table).where(table.c.version == version.version).values(**files))

    def all(self) -> list[Version]:
        """Every version, in order."""
        columns = [schema.weights.c[name] for name in Version.__slots__]
        with self._database.read() as connection:
            return [Version(*row) for row in connection.execute(select(*columns).order_by(schema.weights.c.version))]

    def newest(self) -> int:
        """The newest version that has files; 0, the base model, where none has."""
        with self._database.read() as connection:
            return connection.scalar(_NEWEST) or 0

    def find(self, version: int) -> Version | None:
        return next((known for known in self.all() if known.version == version), None)

    def retire(self, after: int, generation: int) -> None:
        """Forget every version that comes after one, and its scores: they will be made again, with other bytes.

        Raises:
            LostClaimError: Another trainer took over.
        """
        with self._database.write() as connection:
            require_generation(connection, generation)
            connection.execute(delete(schema.weights).where(schema.weights.c.version > after))
            connection.execute(delete(schema.evaluations).where(schema.evaluations.c.version > after))

    def pin(self, version: int, reason: str) -> None:
        """Keep the files of a version from being collected, for good."""
        with self._database.write() as connection:
            connection.execute(update(schema.weights).where(schema.weights.c.version == version).values(pinned=reason))

    def forget_files(self, version: int) -> None:
        """The files of a version were collected; its hash stays."""
        with self._database.write() as connection:
            connection.execute(update(schema.weights).where(schema.weights.c.version == version).values(uri=None))

    def enter(self, reader: str, process: Process) -> None:
        """Take a name as a reader, before the first version is used.

        Raises:
            RunError: Another process that may be at work has the name.
        """
        table = schema.readers
        with self._database.write() as connection:
            at = now(connection)
            found = connection.execute(select(table).where(table.c.reader == reader)).first()
            if found is not None and abs(at - found.seen_at) < READER_LEASE_S and not is_gone(found.identity):
                raise RunError(f"{reader} is at work already, last heard of {at - found.seen_at:.0f} s ago", "give this one another name")
            connection.execute(delete(table).where(table.c.reader == reader))
            connection.execute(insert(table).values(reader=reader, version=-1, seen_at=at, identity=process.identity))

    def acknowledge(self, reader: str, version: int) -> None:
        """Say that a reader uses a version from now on."""
        table = schema.readers
        with self._database.write() as connection:
            values = {"version": version, "seen_at": now(connection)}
            if not connection.execute(update(table).where(table.c.reader == reader).values(values)).rowcount:
                connection.execute(insert(table).values(reader=reader, **values))

    def seen(self, reader: str) -> None:
        """A heartbeat: the reader still uses its version."""
        with self._database.write() as connection:
            connection.execute(update(schema.readers).where(schema.readers.c.reader == reader).values(seen_at=now(connection)))

    def release(self, reader: str) -> None:
        """Say that a reader uses no version any more."""
        with self._database.write() as connection:
            connection.execute(delete(schema.readers).where(schema.readers.c.reader == reader))

    def in_use(self, within_s: float) -> set[int]:
        """The versions of the readers that were seen in the last seconds."""
        with self._database.read() as connection:
            alive = is_recent(schema.readers.c.seen_at, now(connection), within_s)
            return set(connection.scalars(select(schema.readers.c.version).where(alive)))

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """Write a score down, whose answers were announced as a file; a second one of the same set and version changes nothing.

        Raises:
            LostClaimError: The intent to write the answers was swept.
        """
        table = schema.evaluations
        with self._database.write() as connection:
            same = (table.c.name == evaluation.name) & (table.c.version == evaluation.version)
            if connection.execute(select(table.c.uri).where(same)).first() is not None:
                return
            take_intent(connection, evaluation.uri, evaluation.uri)
            values = {name: getattr(evaluation, name) for name in ("name", "version", "uri", "sha256")}
            values |= {"metrics": json.dumps(dict(evaluation.metrics)), "created_at": now(connection)}
            connection.execute(insert(table).values(**values))

    def evaluation(self, name: str, version: int) -> Evaluation | None:
        return next((e for e in self.evaluations(name) if e.version == version), None)

    def evaluations(self, name: str) -> list[Evaluation]:
        """The scores on one held-out set, by version."""
        table = schema.evaluations.c
        with self._database.read() as connection:
            rows = connection.execute(select(schema.evaluations).where(table.name == name).order_by(table.version)).mappings().all()
        return [Evaluation(row["name"], row["version"], json.loads(row["metrics"]), row["uri"], row["sha256"]) for row in rows]

    def answer_files(self) -> list[StoredFile]:
        """The files of scored answers; their sizes are not known."""
        table = schema.evaluations.c
        with self._database.read() as connection:
            rows = connection.execute(select(table.uri, table.sha256).order_by(table.name, table.version))
            return [StoredFile(row.uri, 0, 0, row.sha256 or "") for row in rows]


def _known(connection: Connection, version: Version, generation: int) -> bool:
    """Whether the version is written down already, for the run's trainer, with the same bytes."""
    require_generation(connection, generation)
    table = schema.weights.c
    found = connection.execute(select(table.sha256).where(table.version == version.version)).first()
    if found is not None and None not in (found.sha256, version.sha256) and found.sha256 != version.sha256:
        raise ReproducibilityError(
            f"version {version.version} was made again with other bytes than it was published with",
            "training is not reproducible on this machine: set checkpoint.every: 1",
        )
    return found is not None
