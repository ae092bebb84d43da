"""An empty catalog for each test, in SQLite and in PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import delete, insert

from rft_core.catalog import Catalog, schema
from tests import servers
from tests.conftest import address

SOON = "-csynchronous_commit%3Doff"
"""Lets PostgreSQL write to disk a moment after a commit: what is tested here outlives no power cut."""


@dataclass(frozen=True)
class Place:
    """Where the catalog of a test is."""

    url: str

    def open(self) -> Catalog:
        """Open it once more, as another process would."""
        return Catalog(self.url)


@dataclass(frozen=True)
class Shared:
    """A catalog that is made once, and emptied for each test: that is quicker."""

    place: Place
    catalog: Catalog

    def empty(self) -> None:
        """Forget all that it holds."""
        with self.catalog._database.write() as connection:
            for table in reversed(schema.metadata.sorted_tables):
                connection.execute(delete(table))
            connection.execute(insert(schema.meta), [{"key": "schema_version", "value": schema.VERSION}, {"key": "sequence", "value": 0}])


@contextmanager
def opened(place: Place) -> Iterator[Shared]:
    catalog = place.open()
    yield Shared(place, catalog)
    catalog.close()


@pytest.fixture(scope="session")
def shared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with opened(Place(f"sqlite:///{tmp_path_factory.mktemp('shared') / 'catalog.db'}")) as shared:
        yield shared


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[Shared]:
    url = address(servers.POSTGRES, servers.missing_postgres())
    with servers.fresh_database(url) as database, opened(Place(f"{database}?options={SOON}")) as shared:
        yield shared


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Shared:
    """An empty catalog."""
    found: Shared = request.getfixturevalue(f"shared_{request.param}")
    found.empty()
    return found


@pytest.fixture
def catalog(shared: Shared) -> Catalog:
    """An empty catalog."""
    return shared.catalog


@pytest.fixture
def place(shared: Shared) -> Place:
    """Where an empty catalog is, the same as `catalog`."""
    return shared.place


@pytest.fixture
def postgres_place(shared_postgres: Shared) -> Place:
    """Where an empty catalog in PostgreSQL is."""
    shared_postgres.empty()
    return shared_postgres.place


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    """Where a catalog in SQLite will be."""
    return Place(f"sqlite:///{tmp_path / 'catalog.db'}")
