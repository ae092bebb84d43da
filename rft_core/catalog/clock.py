"""Time in the catalog: the database has the one clock that every process and machine of a run goes by."""

from sqlalchemy import ColumnElement, Connection, text

LONGEST_LEASE_S = 600.0
"""No lease is given for longer."""

_ASKED = "tidemill.now"

_QUERIES = {
    "sqlite": text("select (julianday('now') - 2440587.5) * 86400.0"),
    "postgresql": text("select extract(epoch from clock_timestamp())::float8"),
}
"""Ask each kind of database for its clock."""


def now(connection: Connection) -> float:
    """The database's clock, in seconds since the epoch; within a transaction, when it was asked first."""
    asked: float | None = connection.info.get(_ASKED)
    if asked is None:
        asked = connection.info[_ASKED] = float(connection.execute(_QUERIES[connection.dialect.name]).scalar_one())
    return asked


def start_transaction(connection: Connection) -> None:
    """Forget the time of the transaction before."""
    connection.info.pop(_ASKED, None)


def end_of_lease(at: float, lease_s: float) -> float:
    """When a lease that is given or renewed at a time is over."""
    if lease_s > LONGEST_LEASE_S:
        raise ValueError(f"a lease of {lease_s} s; at most {LONGEST_LEASE_S:.0f} s are right")
    return at + lease_s


def is_over(until: ColumnElement[float], at: float) -> ColumnElement[bool]:
    """Whether a lease is over. One that has longer to go than any can was given before the clock jumped back."""
    return until.is_(None) | ~until.between(at, at + LONGEST_LEASE_S)


def is_recent(moment: ColumnElement[float], at: float, within_s: float) -> ColumnElement[bool]:
    """Whether something happened in the last seconds. What happened further ahead did so before the clock jumped back."""
    return moment.between(at - within_s, at + within_s)
