"""A table of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buffer.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    opened = Table(tmp_path / "run")
    yield opened
    opened.close()
