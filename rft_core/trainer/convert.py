"""A base model as a Hugging Face folder on this machine: downloaded or converted once."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import modeling_gguf_pytorch_utils as gguf_files
from transformers.utils import logging

from rft_core.base_model import BaseModel
from rft_core.disk import folder_written_whole
from rft_core.errors import ModelError
from rft_core.trainer.policy import first_line, quiet

# This reader draws a progress bar that transformers' own switch (see `quiet`) does not reach, unless it is of its kind.
gguf_files.tqdm = logging.tqdm

_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
"""Files of a Hugging Face repository that are downloaded."""


def materialise(model: BaseModel) -> Path:
    """Make sure that a base model's folder is there.

    A GGUF file is converted to float32 once and kept in the cache; a Hugging Face id that is not in the local cache is
    downloaded into it.

    Raises:
        ModelError: The file can't be converted, or the id can't be downloaded.
    """
    if model.gguf_file is not None and model.folder is not None:
        with _locked(model.folder):
            if not model.ready:
                _convert_gguf(model.gguf_file, model.folder)
        return model.folder
    # The cache of Hugging Face may hold the sizes of a model without its weights.
    if model.folder is not None and (Path(model.name).is_dir() or any(model.folder.glob("*.safetensors"))):
        return model.folder
    return _download(model.name)


def _download(name: str) -> Path:
    try:
        with quiet():
            return Path(snapshot_download(name, allow_patterns=list(_WANTED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model.path: {name} can't be downloaded ({first_line(error)})", "name a folder on this machine, or check name and network"
        ) from None


def _convert_gguf(file: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer as a Hugging Face folder.

    transformers loads such a file but refuses to save what it loaded, since the weights count as quantized. So its
    tensors are put into a model that is made from the sizes alone.
    """
    try:
        with quiet(), folder_written_whole(folder) as temporary:
            config = AutoConfig.for_model(**gguf_files.load_gguf_checkpoint(str(file))["config"])
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            # transformers asks each submodule for its names, half a minute for nothing: those of the whole model are enough.
            names = SimpleNamespace(config=config, state_dict=model.state_dict, named_children=tuple)
            tensors = gguf_files.load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=names)["tensors"]
            model.load_state_dict(tensors, strict=False, assign=True)
            model.tie_weights()
            empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
            if empty:
                raise ModelError(
                    f"{file} lacks the weights {empty[0]} (and {len(empty) - 1} others)", "convert it by other means, then name the folder"
                )
            model.save_pretrained(temporary)
            PreTrainedTokenizerFast(name_or_path=str(file.parent), gguf_file=file.name).save_pretrained(temporary)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ModelError(f"model.path: {file} can't be converted ({first_line(error)})", "name a Hugging Face model folder") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time convert into a folder; the others wait and find it done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
