"""Where a base model is, found without torch and without network."""

import json
import math
import os
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from rft_core.errors import ModelError

SCHEME = "package:"


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model as a recipe names it, and what is on this machine of it."""

    name: str
    """`model.path` of the recipe."""
    folder: Path | None
    """The Hugging Face folder; null for a Hugging Face id that is not in the local cache."""
    gguf_file: Path | None = None
    """The file that `folder` is made from, once, by `rft_core.trainer.convert`."""

    @property
    def ready(self) -> bool:
        """Whether the folder is there, so that its tokenizer and sizes can be read."""
        return self.folder is not None and (self.folder / "config.json").exists()

    def config(self) -> dict[str, Any]:
        """The model's own `config.json`; only when `ready`."""
        assert self.folder is not None
        try:
            return dict(json.loads((self.folder / "config.json").read_text(encoding="utf-8")).items())
        except (ValueError, AttributeError) as error:
            raise ModelError(f"{self.folder}/config.json is not JSON ({error})", "the model's folder is damaged") from None

    def context(self) -> int | None:
        """The longest sequence that the model was made for, in tokens, where its config says so."""
        sizes = self.config()
        return sizes.get("max_position_embeddings") or sizes.get("n_positions")

    def num_parameters(self) -> int | None:
        """How many numbers the folder's safetensors files hold; null where it has none. Only their heads are read."""
        assert self.folder is not None
        return sum(map(_num_parameters, self.folder.glob("*.safetensors"))) or None


def cache_dir() -> Path:
    """Where converted models are kept: `TIDEMILL_CACHE`, or `tidemill` below the user's cache folder."""
    configured = os.environ.get("TIDEMILL_CACHE")
    return Path(configured) if configured else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidemill"


def locate(path: str) -> BaseModel:
    """Find a base model on this machine.

    Args:
        path: `model.path` of a recipe: a folder, a Hugging Face id, or `package:NAME/FILE.gguf`.

    Raises:
        ModelError: Nothing that this could name is here or could be downloaded.
    """
    if path.startswith(SCHEME):
        return _in_package(path)
    if Path(path).is_dir():
        if not (Path(path) / "config.json").exists():
            raise ModelError(f"model.path: the folder {path} holds no config.json", "name a Hugging Face model folder")
        return BaseModel(path, Path(path))
    if path.startswith((".", "/", "~")) or path.count("/") != 1 or not _is_hub_id(path):
        raise ModelError(
            f"model.path: there is no folder {path}",
            "name a Hugging Face model folder, a Hugging Face id (owner/name), or package:NAME/FILE.gguf",
        )
    cached = try_to_load_from_cache(path, "config.json")
    return BaseModel(path, Path(cached).parent if isinstance(cached, str) else None)


def _num_parameters(file: Path) -> int:
    """Of one file, which begins with 8 bytes of length and as much JSON; 0 for a file that is none, which whoever loads it tells."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > file.stat().st_size:
            return 0
        try:
            head: dict[str, dict[str, list[int]]] = json.loads(stream.read(length))
        except ValueError:
            return 0
    return sum(math.prod(tensor["shape"]) for name, tensor in head.items() if name != "__metadata__")


def _is_hub_id(path: str) -> bool:
    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return True


def _in_package(path: str) -> BaseModel:
    package, _, file_name = path.removeprefix(SCHEME).partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"model.path: the Python package {package!r} is not installed", "`make setup` installs the quickstart's model")
    file = Path(next(iter(spec.submodule_search_locations))) / file_name
    if not file.is_file() or file.suffix != ".gguf":
        raise ModelError(f"model.path: the package {package!r} holds no GGUF file {file_name!r}", "name one that it holds")
    key = sha256(f"{file.name}:{file.stat().st_size}".encode()).hexdigest()[:12]
    return BaseModel(path, cache_dir() / "models" / f"{file.stem}-{key}", file)
