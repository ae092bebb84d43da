"""Hugging Face data sets, from a cache that is made here: nothing is downloaded."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from rft_core.config import TaskSetConfig
from rft_core.errors import DataError
from rft_core.taskset import available_locally, open_taskset
from rft_core.taskset.hub import _snake_case


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder))
    return folder


def put(cache: Path, subset: str, shards: dict[str, list[str]], built: str = "abc") -> None:
    """Lay down one built configuration as the `datasets` package does."""
    folder = cache / "some-owner___grade_school" / subset / "0.0.0" / built
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps({"config_name": subset}))
    for name, prompts in shards.items():
        table = pa.table({"prompt": prompts})
        with pa.OSFile(str(folder / f"grade_school-{name}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)


def prompts(config: TaskSetConfig) -> list[str]:
    tasks = open_taskset(config, 0)
    return [tasks.task(index).messages[0].content for index in range(len(tasks))]


SET = TaskSetConfig(source="hf:some-owner/GradeSchool")


def test_what_is_cached_is_read_without_the_datasets_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, "main", {"train": ["a", "b"], "test": ["c"]})
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert available_locally(SET)
    assert prompts(SET) == ["a", "b"]
    assert prompts(SET.model_copy(update={"split": "test"})) == ["c"]
    assert prompts(SET.model_copy(update={"limit": 1})) == ["a"]


def test_shards_are_read_in_order_and_only_whole(cache: Path) -> None:
    put(cache, "main", {"train-00001-of-00002": ["b"], "train-00000-of-00002": ["a"], "test-00000-of-00002": ["c"]})
    assert prompts(SET) == ["a", "b"]
    assert not available_locally(SET.model_copy(update={"split": "test"}))


def test_of_several_subsets_one_must_be_named(cache: Path) -> None:
    put(cache, "main", {"train": ["a"]})
    put(cache, "socratic", {"train": ["b"]})
    assert not available_locally(SET)
    assert prompts(SET.model_copy(update={"subset": "socratic"})) == ["b"]


def test_a_build_that_was_broken_off_does_not_count(cache: Path) -> None:
    put(cache, "main", {"train": ["a"]}, built="abc.incomplete")
    assert not available_locally(SET)


def test_what_is_not_cached_and_can_not_be_had_is_refused_in_one_line() -> None:
    assert not available_locally(SET)
    with pytest.raises(DataError, match="hf:some-owner/GradeSchool can't be loaded .*; name a data set") as refused:
        open_taskset(SET, 0)
    assert "\n" not in str(refused.value)


def test_a_folder_is_a_data_set_too(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    config = TaskSetConfig(source=f"hf:{folder}")
    assert available_locally(config)
    assert prompts(config) == ["a", "b"]
    assert open_taskset(config, 0).fingerprint == open_taskset(config, 0).fingerprint


@pytest.mark.parametrize("name", ["gsm8k", "MATH-500", "DAPO-Math-17k", "webgpt_comparisons", "HelpSteer2", "OpenR1-Math-220k"])
def test_the_cache_folder_is_named_as_the_datasets_package_names_it(name: str) -> None:
    from datasets.naming import camelcase_to_snakecase

    assert _snake_case(name) == camelcase_to_snakecase(name)
