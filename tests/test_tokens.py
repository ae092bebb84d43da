"""Tokenizers and chat templates: one beginning-of-sequence token, every end token known, mistakes in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors

from rft_core.errors import ModelError
from rft_core.tokens import Tokenizer
from rft_core.types import Message

WORDS = ["<unk>", "<s>", "</s>", "<end>", "user", "assistant", "system", ":", "a", "b", "c"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }} : {{ m.content }} {{ eos_token }} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
UA = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))


def write(folder: Path, changes: dict[str, Any] | None = None, **files: Any) -> Path:
    """A word tokenizer that puts a beginning-of-sequence token before everything by itself, as Llama's do."""
    fast = FastTokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast.add_special_tokens(["<s>", "</s>", "<end>"])
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast.enable_truncation(3)
    fast.enable_padding(length=9)
    folder.mkdir(parents=True, exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | (changes or {})))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def words(tokens: tuple[int, ...]) -> str:
    return " ".join(WORDS[token] for token in tokens)


def test_a_template_that_writes_its_own_first_token_gets_exactly_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(tmp_path))
    assert tokenizer.render(UA[:1]) == "<s>user : a </s> assistant :"
    assert words(tokenizer.encode_chat(UA[:1])) == "<s> user : a </s> assistant :"


def test_a_raw_prompt_gets_what_the_tokenizer_adds_by_itself(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(tmp_path))
    raw = (Message("text", "a b"),)
    assert tokenizer.render(raw) == "a b"
    assert words(tokenizer.encode_chat(raw)) == "<s> a b"
    assert words(tokenizer.encode("a b")) == "a b"


def test_no_token_is_cut_off_or_added(tmp_path: Path) -> None:
    """The file asks for truncation and padding, which would change what the model sees without a word."""
    tokenizer = Tokenizer(write(tmp_path))
    assert words(tokenizer.encode_chat(UA)) == "<s> user : a </s> assistant : b </s> user : c </s> assistant :"
    assert words(tokenizer.encode("a")) == "a"


def test_later_turns_begin_with_what_earlier_ones_were(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(tmp_path))
    first = tokenizer.encode_chat(UA[:1])
    assert tokenizer.encode_chat(UA)[: len(first)] == first


def test_decoding_leaves_special_tokens_out_and_showing_names_them(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(tmp_path))
    assert tokenizer.decode(tokenizer.encode_chat(UA[:1])) == "user : a assistant :"
    assert [tokenizer.show(token) for token in (1, 8)] == ["<s>", "a"]
    assert tokenizer.vocab_size == len(WORDS)
    assert tokenizer.decode(()) == ""


@pytest.mark.parametrize(
    ("config", "files", "eos_ids", "eos_id"),
    [
        ({}, {}, {2}, 2),
        ({"eos_token": {"content": "</s>", "lstrip": False}}, {}, {2}, 2),
        ({}, {"generation_config": {"eos_token_id": [3, 2]}}, {2, 3}, 2),
        ({"eos_token": None}, {"generation_config": {"eos_token_id": [3, 2]}}, {2, 3}, 2),
        ({"eos_token": None}, {"config": {"eos_token_id": 3}}, {3}, 3),
        ({}, {"config": {"eos_token_id": 3}, "generation_config": {"eos_token_id": None}}, {2, 3}, 2),
        ({"eos_token": "<end>"}, {"config": {"eos_token_id": 2}}, {2, 3}, 3),
    ],
)
def test_every_token_that_ends_a_reply_is_known(
    config: dict[str, Any], files: dict[str, Any], eos_ids: set[int], eos_id: int, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(write(tmp_path, config, **files))
    assert tokenizer.eos_ids == eos_ids
    assert tokenizer.eos_id == eos_id


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[-1].content }} :")
    assert Tokenizer(tmp_path).render(UA) == "c :"


def test_of_several_templates_the_default_one_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert Tokenizer(write(tmp_path / "a", {"chat_template": named})).render(UA) == "plain"
    assert not Tokenizer(write(tmp_path / "b", {"chat_template": named[:1]})).has_chat_template


def test_a_model_without_template_says_so(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(tmp_path, {"chat_template": None}))
    assert not tokenizer.has_chat_template
    with pytest.raises(ModelError, match=r"the model in .* has no chat template; set `format.chat: false` for raw text prompts"):
        tokenizer.render(UA)
    assert words(tokenizer.encode_chat((Message("text", "a"),))) == "<s> a"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('only user turns') }}", "only user turns"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ nothing.there }}", "undefined"),
        ("{% for %}", "for|Expected|unexpected"),
    ],
)
def test_a_template_that_refuses_is_one_line(template: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"refuses turns of roles user, assistant, user \(.*({said}).*\); change `format`") as raised:
        Tokenizer(write(tmp_path, {"chat_template": template})).render(UA)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [None, "", "{}", "nonsense"])
def test_a_folder_without_a_tokenizer_is_one_line(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"no tokenizer can be read from .*tokenizer.json \(.*\); the model's folder must hold one"):
        Tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    for config in ({"eos_token": None}, {"eos_token": "<other>"}):
        with pytest.raises(ModelError, match="names no end-of-sequence token; set `eos_token` in tokenizer_config.json"):
            Tokenizer(write(tmp_path, config))


@pytest.mark.parametrize("content", ["{", "[]", '"text"'])
@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
def test_a_damaged_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / f"{name}.json").write_text(content)
    with pytest.raises(ModelError, match=rf"{name}.json is not JSON.*; the model's folder is damaged: copy it again"):
        Tokenizer(tmp_path)
