"""The groups that a step may train on, read through indexes: choosing a batch takes as long from a million rows as from a thousand."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, select, text

from rft_core.catalog import schema
from rft_core.types import Source

Order = Literal["oldest", "freshest", "priority"]
_CHUNK = 256
"""Rows that are fetched at once while a selection walks."""

_AGE = (schema.groups.c.lowest_version, schema.groups.c.step, schema.groups.c.slot)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that waits for training."""

    group_id: str
    step: int
    """That it was sampled for."""
    slot: int
    lowest_version: int
    """The oldest policy version that sampled it."""
    status: str
    """`ready`, or `trained` if a step learned from it before."""
    source: str
    priority: float
    uses: int
    """Claims that took it before."""
    again_from: int
    """The first step that may take it."""


class Candidates:
    """The groups that wait for training, as the transaction that claims some of them sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def by(self, order: Order, source: str | None = None) -> Iterator[Candidate]:
        """Walk over them; the walk may be left at any point, and only what is walked over is read.

        Args:
            order: `oldest` or `freshest` by the policy version that sampled them, or highest `priority` first, freshest of equals.
            source: Only those that the policy, an expert or a human wrote.
        """
        if order == "priority":
            walk = self._walk([schema.groups.c.priority.desc(), *(column.desc() for column in _AGE)])
            return walk if source is None else (group for group in walk if group.source == source)
        newest_first = order == "freshest"
        columns = [column.desc() for column in _AGE] if newest_first else list(_AGE)
        sources = [each.value for each in Source] if source is None else [source]
        walks = [self._walk(columns, each) for each in sources]  # one index serves each source and all of them
        return heapq.merge(*walks, key=lambda group: (group.lowest_version, group.step, group.slot), reverse=newest_first)

    def _walk(self, order: Sequence[ColumnElement[Any]], source: str | None = None) -> Iterator[Candidate]:
        # The condition is a literal, not a parameter: only so do planners see that a partial index holds all that is asked for.
        query = select(*[schema.groups.c[name] for name in Candidate.__slots__]).where(text("queue = 'training'")).order_by(*order)
        if source is not None:
            query = query.where(schema.groups.c.source == source)
        rows = self._connection.execute(query, execution_options={"yield_per": _CHUNK})
        try:
            for row in rows:
                yield Candidate(*row)
        finally:
            rows.close()
