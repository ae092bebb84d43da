"""The same seed twice gives the same table and the same weights."""

from pathlib import Path

import pyarrow as pa

from rft_core.buffer import Questions
from rft_core.catalog import Catalog
from rft_core.storage import open_storage
from tests import loop
from tests.tiny_files import recipe

TIMES_AND_NAMES = ("created_at", "explorer")
"""What may differ."""


def table_of(values: dict[str, object]) -> pa.Table:
    run_dir = loop.run_dir(values)
    questions = Questions(open_storage(run_dir.root), Catalog(f"sqlite:///{run_dir.catalog_file}"), None)
    return questions.ask("select * from experiences order by step, slot, attempt, turn_index").drop_columns(list(TIMES_AND_NAMES))


def test_same_seed_same_table_and_weights(tmp_path: Path, tiny_policy: Path) -> None:
    first, second, other = (recipe(tmp_path / name, tiny_policy, steps=3, seed=seed) for name, seed in (("a", 7), ("b", 7), ("c", 8)))
    for values in (first, second, other):
        loop.run_in_child(values)
    assert table_of(first).equals(table_of(second))
    assert loop.final_weights(first) == loop.final_weights(second)
    assert loop.final_weights(first) != loop.final_weights(other)


def test_weights_do_not_depend_on_the_sync_method(tmp_path: Path, tiny_policy: Path) -> None:
    shared, files = (recipe(tmp_path / method, tiny_policy, steps=3, sync__method=method) for method in ("shared", "checkpoint"))
    for values in (shared, files):
        loop.run_in_child(values)
    assert loop.final_weights(shared) == loop.final_weights(files)
    assert table_of(shared).equals(table_of(files))
