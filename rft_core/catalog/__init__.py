"""The SQL catalog: what is in the experience table, who works on it, and what each step was."""

from typing import Any

from sqlalchemy import Select, column, select, table

from rft_core.catalog import schema
from rft_core.catalog.claims import Claim, Claims, ReadyGroup, StepRow
from rft_core.catalog.database import Database
from rft_core.catalog.leases import Lease, Leases
from rft_core.catalog.segments import NewGroup, Segments, StoredFile
from rft_core.catalog.versions import HELD_OUT, Evaluation, Version, Versions, best

__all__ = [
    "HELD_OUT",
    "Catalog",
    "Claim",
    "Evaluation",
    "Lease",
    "NewGroup",
    "ReadyGroup",
    "StepRow",
    "StoredFile",
    "Version",
    "best",
]

RELATIONS: dict[str, dict[str, type]] = {
    **{name: {c.name: c.type.python_type for c in found.columns} for name, found in schema.metadata.tables.items()},
    "fates": schema.FATES_COLUMNS,
}
"""Every table and view of the catalog, with its columns and their types."""


class Catalog:
    """The catalog of one run, in parts; each method of a part is one transaction.

    Args:
        url: A SQLAlchemy URL.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.leases = Leases(self._database)
        self.segments = Segments(self._database)
        self.claims = Claims(self._database)
        self.versions = Versions(self._database)

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
