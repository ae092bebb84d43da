"""The SQL catalog: what is in the experience table, who works on it, and what each step was."""

from typing import Any

from sqlalchemy import Select, column, select, table

from rft_core.catalog import schema
from rft_core.catalog.admission import Admission
from rft_core.catalog.audit import Audit, FileRow
from rft_core.catalog.candidates import Candidate, Candidates
from rft_core.catalog.claims import Choice, Claim, Claims, Reuse, StepRow
from rft_core.catalog.database import Database
from rft_core.catalog.files import StoredFile
from rft_core.catalog.heartbeat import heartbeat
from rft_core.catalog.history import History, Part
from rft_core.catalog.labels import PRIORITY, REWARD, Applied, Label, Labels, Settlement
from rft_core.catalog.leases import LEASE_S, Lease, Leases
from rft_core.catalog.segments import NewGroup, Segments
from rft_core.catalog.standing import Standing, read_standing
from rft_core.catalog.trainers import TRAINER_LEASE_S, Trainers
from rft_core.catalog.versions import HELD_OUT, Evaluation, Version, Versions, best

__all__ = [
    "HELD_OUT",
    "LEASE_S",
    "PRIORITY",
    "REWARD",
    "TRAINER_LEASE_S",
    "Admission",
    "Applied",
    "Candidate",
    "Candidates",
    "Catalog",
    "Choice",
    "Claim",
    "Evaluation",
    "FileRow",
    "Label",
    "Lease",
    "NewGroup",
    "Part",
    "Reuse",
    "Settlement",
    "Standing",
    "StepRow",
    "StoredFile",
    "Version",
    "best",
    "heartbeat",
]

RELATIONS: dict[str, dict[str, type]] = {
    **{name: {c.name: c.type.python_type for c in found.columns} for name, found in schema.metadata.tables.items()},
    **schema.VIEW_COLUMNS,
}
"""Every table and view of the catalog, with its columns and their types."""


class Catalog:
    """The catalog of one run, in parts; each method of a part is one transaction.

    Args:
        url: `sqlite:///FILE`, or `postgresql://USER:PASSWORD@HOST/DATABASE`.
        namespace: Schema of the run's tables in PostgreSQL, where many runs share a database.

    Raises:
        RunError: It can't be opened; says why, and nothing secret.
    """

    def __init__(self, url: str, namespace: str = "tidemill") -> None:
        self._database = Database(url, namespace)
        self.place = self._database.place
        self.leases = Leases(self._database)
        self.segments = Segments(self._database)
        self.history = History(self._database)
        self.labels = Labels(self._database)
        self.trainers = Trainers(self._database)
        self.claims = Claims(self._database)
        self.versions = Versions(self._database)
        self.audit = Audit(self._database)

    def standing(self) -> Standing:
        """How the run stands, read at one moment."""
        return read_standing(self._database)

    def relation(self, name: str) -> tuple[dict[str, type], list[tuple[Any, ...]]]:
        """A table or view as plain values, for questions in SQL.

        Args:
            name: One of `RELATIONS`.

        Returns:
            Its columns with their Python types, and its rows in that order.
        """
        columns = RELATIONS[name]
        with self._database.read() as connection:
            selected: Select[*tuple[Any, ...]] = select(*[column(c) for c in columns]).select_from(table(name))
            return columns, [tuple(row) for row in connection.execute(selected)]

    def close(self) -> None:
        self._database.close()
