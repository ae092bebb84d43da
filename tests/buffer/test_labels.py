"""Files of labels, read line by line, and what counts where labels differ."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_core.buffer.labels import LabelLine, combined, read_labels
from rft_core.errors import DataError

GOOD = '{"experience_id": "e1", "value": 1, "author": "ada"}'


def labels(folder: Path, *lines: str, author: str | None = None) -> list[LabelLine]:
    path = folder / "labels.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_labels(path, author)


def test_each_line_is_a_label(tmp_path: Path) -> None:
    said = {"experience_id": "e2", "value": -0.5, "author": "bob", "field": "priority", "note": "see\u2028below"}
    found = labels(tmp_path, GOOD, "", json.dumps(said, ensure_ascii=False), "  ", '{"experience_id": "e3", "value": false}', author="eve")
    assert [(one.line, one.experience_id, one.value, one.author, one.field, one.note) for one in found] == [
        (1, "e1", 1.0, "ada", "reward", ""),
        (3, "e2", -0.5, "bob", "priority", "see\u2028below"),
        (5, "e3", 0.0, "eve", "reward", ""),
    ]
    assert len({one.key for one in found}) == 3


def test_files_of_other_systems_are_read(tmp_path: Path) -> None:
    """A byte order mark, and lines that end as on Windows."""
    path = tmp_path / "labels.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n" + GOOD.encode() + b"\r\n")
    assert [one.line for one in read_labels(path)] == [1, 2]


OTHER = '{"experience_id": "e1", "value": 0, "author": "ada"}'


def keys(folder: Path, *lines: str, author: str | None = None) -> list[str]:
    return [one.key for one in labels(folder, *lines, author=author)]


def test_a_key_names_a_label_by_what_it_says_and_how_often_its_file_says_so(tmp_path: Path) -> None:
    first, other, again = keys(tmp_path, GOOD, OTHER, GOOD)
    assert len({first, other, again}) == 3
    assert keys(tmp_path, OTHER, GOOD) == [other, first]
    assert keys(tmp_path, GOOD, GOOD, OTHER)[1:] == [again, other]
    noted = '{"experience_id": "e1", "value": 1, "author": "ada", "note": "on second thoughts"}'
    assert keys(tmp_path, noted)[0] not in (first, again)


def test_a_key_is_the_same_however_its_line_is_written(tmp_path: Path) -> None:
    written = (
        '{"author":"ada","value":true,"experience_id":"e1"}',
        '{"experience_id": "e1", "value": 1.0, "author": "ada", "field": "reward", "note": ""}',
        '{"experience_id": "\\u0065\\u0031", "value": 1}',
    )
    assert {keys(tmp_path, line, author="ada")[0] for line in written} == set(keys(tmp_path, GOOD))


def test_text_without_a_form_is_escaped(tmp_path: Path) -> None:
    (found,) = labels(tmp_path, r'{"experience_id": "e\ud800", "value": 1, "author": "a\u0000", "note": "\udfff"}')
    assert (found.experience_id, found.author, found.note) == ("e\\ud800", "a\0", "\\udfff")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"is not JSON \(Expecting property name"),
        ("[" * 100_000, r"is not JSON \("),
        ('{"experience_id": "e1"} x', r"is not JSON \(Extra data"),
        ("1" * 5000, r"is not JSON \(Exceeds the limit"),
        ('["e1", 1]', "is a list; a JSON object is right"),
        ("null", "is a NoneType; a JSON object is right"),
        ('{"id": "e1", "value": 1}', "has the key 'id'; the keys are author, experience_id, field, note, value"),
        ('{"value": 1, "author": "ada"}', "has no experience_id; every label is of one experience"),
        ('{"experience_id": "e1", "author": "ada"}', "has no value; a finite number is right, or true or false"),
        ('{"experience_id": 5, "value": 1, "author": "ada"}', "experience_id is 5; a text is right"),
        ('{"experience_id": "", "value": 1, "author": "ada"}', "experience_id is ''; a text is right"),
        ('{"experience_id": "e1", "value": 1, "author": "ada", "field": null}', "field is None; a text is right"),
        ('{"experience_id": "e1", "value": 1, "author": "ada", "note": 3}', "note is 3; a text is right"),
        ('{"experience_id": "e1", "value": 1}', "author is None; name the author in the line or with --author"),
        ('{"experience_id": "e1", "value": 1, "author": ""}', "author is ''; name the author in the line or with --author"),
        ('{"experience_id": "e1", "value": "1", "author": "ada"}', "value is '1'; a finite number is right, or true or false"),
        ('{"experience_id": "e1", "value": null, "author": "ada"}', "value is None; a finite number is right"),
        ('{"experience_id": "e1", "value": [1], "author": "ada"}', r"value is \[1\]; a finite number is right"),
        ('{"experience_id": "e1", "value": NaN, "author": "ada"}', "value is nan; a finite number is right"),
        ('{"experience_id": "e1", "value": -Infinity, "author": "ada"}', "value is -inf; a finite number is right"),
        ('{"experience_id": "e1", "value": 1e999, "author": "ada"}', "value is inf; a finite number is right"),
        ('{"experience_id": "e1", "value": 1e308, "author": "ada"}', "value is 1e\\+308; at most 1e\\+100 is right"),
        ('{"experience_id": "e1", "value": 1' + "0" * 400 + ', "author": "ada"}', r"value is 10+\.\.\.0+; a finite number is right"),
    ],
)
def test_the_first_wrong_line_is_named_with_what_would_be_right(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^{tmp_path}/labels\.jsonl line 3:? {said}") as raised:
        labels(tmp_path, GOOD, "", line, "worse")
    assert len(str(raised.value)) < 400
    assert "\n" not in str(raised.value)


def test_what_is_no_file_of_labels_is_told_in_one_line(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.jsonl", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(DataError, match=rf"^no labels at {path} \({said}\); name a JSONL file"):
            read_labels(path)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(GOOD.encode() + "\n{é}".encode("latin-1"))
    with pytest.raises(DataError, match=rf"latin.jsonl is not UTF-8 \(byte {len(GOOD) + 2}\)"):
        read_labels(latin)
    for content in ("", "\n \n"):
        with pytest.raises(DataError, match="holds no labels; one JSON object a line is right"):
            labels(tmp_path, content)


SAID = {"e": [("ada", 1.0), ("bob", 0.0), ("ada", 0.5)], "f": [("bob", 2.0)]}


def test_the_newest_label_counts_or_the_mean_of_each_authors_newest() -> None:
    assert combined(SAID, "newest") == {"e": 0.5, "f": 2.0}
    assert combined(SAID, "mean") == {"e": 0.25, "f": 2.0}
    assert combined({}, "mean") == {}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-1e6, 1e6)), min_size=1, max_size=8))
def test_a_mean_lies_between_what_authors_said_last(said: list[tuple[str, float]]) -> None:
    last = dict(said).values()
    (found,) = combined({"e": said}, "mean").values()
    assert min(last) - 1e-9 <= found <= max(last) + 1e-9
    assert found == pytest.approx(math.fsum(last) / len(last))
    assert combined({"e": said}, "newest") == {"e": said[-1][1]}
