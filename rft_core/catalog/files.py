"""Rows of the catalog that stand for immutable files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, bindparam, delete, insert

from rft_core.catalog import schema
from rft_core.catalog.clock import now
from rft_core.catalog.database import next_sequence
from rft_core.errors import LostClaimError

# What every append does is built once: to build a statement takes SQLAlchemy longer than SQLite takes to execute it.
_TAKE_INTENT = delete(schema.intents).where(schema.intents.c.key == bindparam("of_key"), schema.intents.c.uri == bindparam("of_uri"))
_INSERT_SEGMENT = insert(schema.segments)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An immutable Parquet file of this run."""

    uri: str
    rows: int
    bytes: int
    sha256: str


def take_intent(connection: Connection, key: str, uri: str) -> None:
    """Take the intent to write a file, in the transaction that makes it part of the table.

    Raises:
        LostClaimError: It was swept.
    """
    if connection.execute(_TAKE_INTENT, {"of_key": key, "of_uri": uri}).rowcount != 1:
        raise LostClaimError(f"the intent to write {key} was taken back by another process", "let that one go on")


def insert_segment(
    connection: Connection, key: str, file: StoredFile, explorer: str, step: int, schema_version: int, sequence: int | None = None
) -> None:
    """Make a file a segment of the table, under the next sequence number or one that was taken for it."""
    values = {name: getattr(file, name) for name in StoredFile.__slots__}
    values |= {"key": key, "sequence": sequence or next_sequence(connection), "created_at": now(connection)}
    connection.execute(_INSERT_SEGMENT, values | {"explorer": explorer, "step": step, "schema_version": schema_version})


def insert_overlay(connection: Connection, key: str, pipeline: str, sequence: int, file: StoredFile, account: str) -> None:
    """Make a file an overlay of the table."""
    values = {name: getattr(file, name) for name in StoredFile.__slots__}
    values |= {"key": key, "pipeline": pipeline, "sequence": sequence, "account": account, "created_at": now(connection)}
    connection.execute(insert(schema.overlays).values(**values))


def part_of(table: Table, at: int | None) -> ColumnElement[bool]:
    """What is part of the table now, or was at a sequence number."""
    if at is None:
        return table.c.ended.is_(None)
    return (table.c.sequence <= at) & (table.c.ended.is_(None) | (table.c.ended > at)) & table.c.collected_at.is_(None)


def in_parts(ids: Sequence[str], size: int = 500) -> list[Sequence[str]]:
    """Ids in parts that fit into one statement."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def stored(row: Any) -> StoredFile:
    """The file that a row stands for."""
    return StoredFile(*(row[name] for name in StoredFile.__slots__))
