"""The small data sets are what their README says, and were made as it says."""

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "datasets"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| `([^`]+)` \| .+ \| (\d+) \| `([0-9a-f]{64})` \|$", README, flags=re.MULTILINE)
EXAMPLES = {"dog", "cat", "sun", "big", "red", "pen"}


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def words(name: str) -> set[str]:
    return {word for row in rows(name) for word in row["words"].split()}


def test_the_table_names_every_file_with_its_rows_and_checksum() -> None:
    files = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file() and path.name != "README.md")
    assert sorted(name for name, _, _ in TABLE) == files
    for name, num_rows, checksum in TABLE:
        content = (FOLDER / name).read_bytes()
        assert (name, content.count(b"\n"), sha256(content).hexdigest()) == (name, int(num_rows), checksum)


def test_the_recipe_in_the_readme_makes_the_files_again() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    assert {name: (FOLDER / name).read_text(encoding="utf-8") for name in made["text"]} == made["text"]


def test_nothing_here_takes_the_place_of_the_datasets_package() -> None:
    assert not list(FOLDER.rglob("*.py"))


def test_train_eval_and_examples_have_no_word_in_common() -> None:
    train, held_out = words("reverse_words/train.jsonl"), words("reverse_words/eval.jsonl")
    assert (len(train), len(held_out)) == (66, 32)
    assert not (train & held_out or (train | held_out) & EXAMPLES)
    assert all(re.fullmatch("[a-z]+", word) for word in train | held_out)


@pytest.mark.parametrize(("name", "at_least"), [("reverse_words/train.jsonl", 512), ("reverse_words/eval.jsonl", 64)])
def test_each_row_is_a_new_triple_and_its_reverse(name: str, at_least: int) -> None:
    triples = [row["words"].split() for row in rows(name)]
    assert len({tuple(triple) for triple in triples}) == len(triples) >= at_least
    assert all(len(set(triple)) == 3 for triple in triples)
    assert [row["answer"].split() for row in rows(name)] == [triple[::-1] for triple in triples]


def test_sums_are_right() -> None:
    for row in rows("sums/train.jsonl"):
        left, right = row["question"].removesuffix("=").split("+")
        assert int(left) + int(right) == int(row["answer"])
