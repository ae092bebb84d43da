"""Tables of their own for each test."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.buffer.checking import fill
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


@pytest.fixture(scope="module")
def filled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a filled table; copy it, never write to it."""
    table = Table(tmp_path_factory.mktemp("filled") / "run", pipeline="p")
    fill(table)
    table.close()
    return table.run_dir.root


@pytest.fixture
def used(filled_run: Path, tmp_path: Path) -> Iterator[Table]:
    """A filled table of its own for each test."""
    shutil.copytree(filled_run, tmp_path / "run")
    table = Table(tmp_path / "run", pipeline="p")
    yield table
    table.close()
