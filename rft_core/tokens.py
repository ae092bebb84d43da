"""Tokenizers and chat templates, without torch.

A prompt is rendered to text by the model's own chat template and tokenised once. Special tokens come from the rendered
text alone, so a template that writes its own beginning-of-sequence token gets exactly one.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from rft_core.errors import ModelError
from rft_core.types import Message

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json")
"""What belongs to a tokenizer in a Hugging Face folder; copied into every published version."""


class Tokenizer:
    """The tokenizer of a Hugging Face folder.

    Args:
        folder: Holds `tokenizer.json`, and a chat template where the model has one.

    Raises:
        ModelError: The folder has no tokenizer, or one that names no end-of-sequence token.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "tokenizer.json"
        try:
            self._fast = FastTokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a missing and for a malformed file
            raise ModelError(f"no tokenizer can be read from {file} ({error})", "the model's folder must hold one") from None
        self._fast.no_padding()
        self._fast.no_truncation()
        self._config: dict[str, Any] = _json(folder / "tokenizer_config.json")
        self._template = self._chat_template()
        self.eos_ids = self._eos_ids()
        """Every token id that ends a reply."""
        if not self.eos_ids:
            raise ModelError(f"{folder} names no end-of-sequence token", "set `eos_token` in tokenizer_config.json")

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added ones included."""
        return int(self._fast.get_vocab_size(with_added_tokens=True))

    @property
    def eos_id(self) -> int:
        """The token that ends a reply which is given, not sampled: the one that the tokenizer names, where it names one."""
        named = self._fast.token_to_id(self._token("eos_token") or "")
        return named if named is not None else min(self.eos_ids)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt text of chat turns, ending where the model's reply begins.

        A single message of role `text` is returned as it is.

        Raises:
            ModelError: There is no chat template, or it refuses these messages.
        """
        if len(messages) == 1 and messages[0].role == "text":
            return messages[0].content
        if self._template is None:
            raise ModelError(f"the model in {self.folder} has no chat template", "set `format.chat: false` for raw text prompts")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        special = {key: value for key in ("bos_token", "eos_token", "pad_token", "unk_token") if (value := self._token(key))}
        try:
            rendered, _ = render_jinja_template([turns], chat_template=self._template, add_generation_prompt=True, **special)
        except Exception as error:  # noqa: BLE001  a template is the model's own code: it may raise anything
            roles = ", ".join(message.role for message in messages)
            raise ModelError(f"the chat template of {self.folder} refuses turns of roles {roles} ({error})", "change `format`") from None
        return str(rendered[0])

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of `render(messages)`. A raw text prompt gets the special tokens that the tokenizer adds by itself."""
        raw = len(messages) == 1 and messages[0].role == "text"
        return self.encode(self.render(messages), special=raw)

    def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """Token ids of a text; `special` adds what the tokenizer adds by itself, such as a first token."""
        return tuple(self._fast.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self._fast.decode(list(tokens), skip_special_tokens=True))

    def show(self, token: int) -> str:
        """One token as people see it, special tokens by their name."""
        return str(self._fast.decode([token], skip_special_tokens=False))

    def _token(self, key: str) -> str | None:
        value = self._config.get(key)
        return value.get("content") if isinstance(value, dict) else value

    def _chat_template(self) -> str | None:
        file = self.folder / "chat_template.jinja"
        if file.exists():
            return file.read_text(encoding="utf-8")
        template = self._config.get("chat_template")
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            return named.get("default")
        return template

    def _eos_ids(self) -> frozenset[int]:
        ids: set[int] = set()
        for file in ("config.json", "generation_config.json"):
            value = _json(self.folder / file).get("eos_token_id")
            ids.update(value if isinstance(value, list) else [] if value is None else [value])
        token = self._token("eos_token")
        named = self._fast.token_to_id(token) if token else None
        return frozenset(ids | ({named} if named is not None else set()))


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")).items())
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} is not JSON ({error})", "the model's folder is damaged: copy it again") from None
