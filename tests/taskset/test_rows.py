"""How a row becomes a task."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core.config import ExampleConfig, FormatConfig
from rft_core.errors import DataError
from rft_core.taskset.rows import make_task, normalised
from rft_core.types import Message, Task


def make(row: dict[str, Any], **form: Any) -> Task:
    return make_task(row, FormatConfig(**form), "set.jsonl row 3")


def test_a_template_names_fields_and_the_frame_stands_before_it() -> None:
    examples = (ExampleConfig(user="Reverse: dog cat", assistant="cat dog"),)
    task = make({"words": "a b", "answer": "b a", "level": 2}, prompt="Reverse: {words}", system="Be brief.", examples=examples)
    assert task.messages == (
        Message("system", "Be brief."),
        Message("user", "Reverse: dog cat"),
        Message("assistant", "cat dog"),
        Message("user", "Reverse: a b"),
    )
    assert task.answer == "b a"
    assert task.response is None
    assert task.facts == {"words": "a b", "level": 2}


def test_ready_turns_keep_their_own_system_turn_and_give_their_last_answer_as_response() -> None:
    turns = [{"role": "system", "content": "Own."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    task = make({"messages": turns}, system="Recipe's.")
    assert task.messages == (Message("system", "Own."), Message("user", "Hi"))
    assert task.response == "Hello"
    without = make({"messages": turns[1:], "response": "Better"}, system="Recipe's.")
    assert without.messages == (Message("system", "Recipe's."), Message("user", "Hi"), Message("assistant", "Hello"))
    assert without.response == "Better"


def test_a_raw_prompt_is_one_text_message() -> None:
    assert make({"question": "3+4="}, prompt="{question}", chat=False).messages == (Message("text", "3+4="),)


@pytest.mark.parametrize(
    ("row", "form", "said"),
    [
        ({"words": "a"}, {}, "set.jsonl row 3 has no field 'prompt', which the template '{prompt}' names; its fields are: words"),
        ({"prompt": None, "answer": "1"}, {}, "has no field 'prompt'"),
        ({"prompt": "a"}, {"prompt": "{"}, "can't be filled"),
        ({"prompt": "a"}, {"prompt": '{"x": {prompt}}'}, "a literal brace is doubled"),
        ({"prompt": "a"}, {"prompt": "{}"}, "can't be filled"),
        ({"prompt": "a"}, {"prompt": "{prompt.nothing}"}, "can't be filled"),
        ({"messages": "hi"}, {}, "has the chat turn hi; a turn is {role, content}"),
        ({"messages": [{"from": "human", "value": "hi"}]}, {}, "a turn is {role, content}, both text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, {}, "a turn is {role, content}, both text"),
        ({"messages": []}, {}, "has no chat turns"),
        ({"prompt": "a"}, {"chat": False, "system": "Be brief."}, "has no turns; write system text and examples into `format.prompt`"),
        ({"messages": [{"role": "user", "content": "hi"}]}, {"chat": False}, "has no turns"),
        ({"prompt": "a", "thing": object()}, {}, "holds a object; fields hold text"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_in_one_line(row: dict[str, Any], form: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as refused:
        make(row, **form)
    assert said in str(refused.value)
    assert "set.jsonl row 3" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_answer_that_is_no_text_is_written_as_json() -> None:
    assert make({"prompt": "a", "answer": 7}).answer == "7"
    assert make({"prompt": "a", "answer": ["b", 1]}).answer == '["b", 1]'
    assert make({"prompt": "a", "answer": None}).answer is None


def test_the_id_is_made_of_the_content_alone() -> None:
    task = make({"prompt": "a", "answer": "1", "extra": None})
    assert task.task_id == make({"answer": "1", "prompt": "a"}, system="Be brief.").task_id
    assert task.task_id != make({"prompt": "a", "answer": 1}).task_id


def test_values_of_a_parquet_file_are_those_of_json() -> None:
    row = {"day": date(2024, 2, 29), "price": Decimal("1.50"), "image": b"\x00\xff", "pair": (1, 2), "turn": {"role": "user", "name": None}}
    expected = {"day": "2024-02-29", "price": "1.50", "image": "AP8=", "pair": [1, 2], "turn": {"role": "user"}}
    assert normalised(row, "row") == expected


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_any_text_becomes_text_that_files_and_tokenizers_take(prompt: str, key: str) -> None:
    task = make({"prompt": prompt, f"x{key}": prompt})
    task.messages[0].content.encode()
    for name, value in task.facts.items():
        (name + value).encode()


def test_nul_stays_and_lone_surrogates_do_not() -> None:
    assert make({"prompt": "a\0b\ud800c\udc00"}).messages[0].content == "a\0b\ufffdc\ufffd"
