"""A catalog of its own for each test, in SQLite and in PostgreSQL."""

from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def shared() -> Iterator[tuple[Place, Catalog]]:
    """A catalog in PostgreSQL that is made once, since that takes a while."""
    with servers.fresh_database(address(servers.POSTGRES, servers.missing_postgres())) as url:
        place = Place(f"{url}?options={SOON}")
        catalog = place.open()
        yield place, catalog
        catalog.close()


def empty(catalog: Catalog) -> None:
    """Forget all that a catalog holds."""
    with catalog._database.write() as connection:
        for table in reversed(schema.metadata.sorted_tables):
            connection.execute(delete(table))
        connection.execute(insert(schema.meta), [{"key": "schema_version", "value": schema.VERSION}, {"key": "sequence", "value": 0}])


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Place:
    """Where an empty catalog in SQLite will be."""
    return Place(f"sqlite:///{tmp_path / 'catalog.db'}")


@pytest.fixture
def postgres_place(shared: tuple[Place, Catalog]) -> Place:
    """Where an empty catalog in PostgreSQL is."""
    place, catalog = shared
    empty(catalog)
    return place


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """Where an empty catalog is, or will be."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
def catalog(place: Place) -> Iterator[Catalog]:
    found = place.open()
    yield found
    found.close()
