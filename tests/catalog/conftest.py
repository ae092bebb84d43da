"""A catalog of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rft_core.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    found = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    yield found
    found.close()
