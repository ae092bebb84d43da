"""Admission: how far explorers may run ahead of a trainer that goes on meanwhile."""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, func, select, text

from rft_core.catalog import schema

_COMMITTED = select(func.coalesce(func.max(schema.steps.c.step), 0))
_CLAIMED = select(schema.claims.c.groups).where(schema.claims.c.step > bindparam("committed"))
# Literals, so that planners see that the partial indexes hold all that is asked for.
_READY = text("select count(*) from groups where queue in ('shaping', 'training') and status = 'ready'")
_IN_FLIGHT = text("select count(*) from leases where fate is null")


@dataclass(frozen=True, slots=True)
class Admission:
    """The bound that admission keeps.

    A step takes `batch_groups` groups, oldest first. With version v loaded and T the last committed step, the k-th group that is
    under way is trained in step T + ceil(k / batch_groups), which starts from the version before: it then lies
    T + ceil(k / batch_groups) - 1 - v behind. That is at most `max_staleness` while k <= (max_staleness + 1 - (T - v)) * batch_groups.
    Every number is read from the catalog, so that neither a restart nor a short batch moves the bound. With a bound of 0 this is
    on-policy: nothing is begun before version T is loaded.
    """

    batch_groups: int
    max_staleness: int

    def room(self, connection: Connection, version: int) -> int:
        """How many further groups may be sampled with a version; 0 if none."""
        committed = last_committed(connection)
        allowed = (self.max_staleness + 1 - (committed - version)) * self.batch_groups
        return max(0, allowed - _under_way(connection, committed))


def last_committed(connection: Connection) -> int:
    """The last step that was committed; 0 before the first one."""
    return int(connection.execute(_COMMITTED).scalar_one())


def _under_way(connection: Connection, committed: int) -> int:
    """Groups that a coming step will train, as far as is known: claimed and not committed, ready, and in flight.

    Those that wait for labels are left out: people may take days, and nobody would sample meanwhile.
    """
    claimed = sum(len(json.loads(groups)) for groups in connection.scalars(_CLAIMED, {"committed": committed}))
    ready, in_flight = (connection.execute(query).scalar_one() for query in (_READY, _IN_FLIGHT))
    return claimed + int(ready) + int(in_flight)
