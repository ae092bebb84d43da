"""Where a base model is, found without torch and without network."""

import json
from pathlib import Path

import pytest

from rft_core.base_model import BaseModel, cache_dir, locate
from rft_core.errors import ModelError


def test_a_folder_is_taken_as_it_is(tiny_shape: Path) -> None:
    found = locate(str(tiny_shape))
    assert found == BaseModel(str(tiny_shape), tiny_shape)
    assert found.ready
    assert found.context() == 32
    assert found.config()["model_type"] == "llama"


def test_a_folder_without_a_config_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model.path: the folder .* holds no config.json; name a Hugging Face model folder"):
        locate(str(tmp_path))


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere", "~/nowhere", "nowhere", "a/b/c", "", "owner/na me", "owner/name?", "/", "a//b"])
def test_what_names_nothing_is_one_line(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"model.path: .*; name a Hugging Face") as raised:
        locate(path)
    assert "\n" not in str(raised.value)


def test_an_id_that_is_not_in_the_cache_has_no_folder_yet() -> None:
    found = locate("nobody-there/no-such-model")
    assert found == BaseModel("nobody-there/no-such-model", None)
    assert not found.ready


@pytest.mark.parametrize(
    ("sizes", "context"),
    [({"max_position_embeddings": 7}, 7), ({"n_positions": 9}, 9), ({}, None), ({"max_position_embeddings": None}, None)],
)
def test_the_context_is_what_the_model_says(sizes: dict[str, int], context: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert locate(str(tmp_path)).context() == context


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_a_damaged_config_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config.json is not JSON.*; the model's folder is damaged"):
        locate(str(tmp_path)).config()


@pytest.fixture
def gguf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site" / "some_weights"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('looking for a file must not run code')")
    (folder / "small.gguf").write_bytes(b"12345")
    (folder / "notes.txt").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("TIDEMILL_CACHE", str(tmp_path / "cache"))
    return folder


def test_a_file_in_a_package_is_converted_into_the_cache(gguf_package: Path, tmp_path: Path) -> None:
    found = locate("package:some_weights/small.gguf")
    assert found.gguf_file == gguf_package / "small.gguf"
    assert found.folder is not None
    assert found.folder.parent == tmp_path / "cache" / "models"
    assert found.folder.name.startswith("small-")
    assert not found.ready
    # Another file of the same name is another model.
    (gguf_package / "small.gguf").write_bytes(b"123456")
    assert locate("package:some_weights/small.gguf").folder != found.folder


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("package:no_such_package/x.gguf", "the Python package 'no_such_package' is not installed; `make setup`"),
        ("package:", "the Python package '' is not installed"),
        ("package:a.b/x.gguf", "the Python package 'a.b' is not installed"),
        ("package:json.py/x.gguf", "the Python package 'json.py' is not installed"),
        ("package:some_weights/other.gguf", "holds no GGUF file 'other.gguf'; name one that it holds"),
        ("package:some_weights/notes.txt", "holds no GGUF file 'notes.txt'"),
        ("package:some_weights", "holds no GGUF file ''"),
    ],
)
def test_a_package_or_file_that_is_not_there_is_one_line(path: str, said: str, gguf_package: Path) -> None:
    with pytest.raises(ModelError) as raised:
        locate(path)
    assert said in str(raised.value)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIDEMILL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "tidemill"
    monkeypatch.setenv("TIDEMILL_CACHE", "/elsewhere")
    assert cache_dir() == Path("/elsewhere")
