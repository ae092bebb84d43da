"""Tables of their own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buffer.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    opened = Table(tmp_path / "run")
    yield opened
    opened.close()


@pytest.fixture
def shaping(tmp_path: Path) -> Iterator[Table]:
    """A table whose groups pass the pipeline `p` before they are trained."""
    opened = Table(tmp_path / "run", pipeline="p")
    yield opened
    opened.close()
