"""What a killed trainer goes on from, written and restored bit for bit.

```
000010/
  model/                    the policy as an ordinary Hugging Face folder
  optimizer.safetensors     AdamW's moments, and the float32 weights where the policy is held in less
  trainer.json              step, counters, random state, and what the caller adds
  manifest.json             size and SHA-256 of every file; written last
```
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rft_core.disk import file_sha256, write_whole
from rft_core.errors import CheckpointError, ModelError
from rft_core.trainer import manifest
from rft_core.trainer.manifest import FORMAT, MANIFEST, complete, verify
from rft_core.trainer.policy import Policy, writing
from rft_core.trainer.trainer import Counters, Trainer

MODEL = "model"

_OPTIMIZER = "optimizer.safetensors"
_STATE = "trainer.json"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save(folder: Path, trainer: Trainer, step: int, extra: dict[str, Any], tokenizer_folder: Path) -> None:
    """Write a checkpoint.

    Args:
        folder: An empty folder, which the caller puts in its place whole (`rft_core.disk.folder_written_whole`).
        trainer: What to save.
        step: The last step that it was trained on.
        extra: What the caller wants back from `load`; goes through JSON.
        tokenizer_folder: Where the tokenizer's files are copied from.

    Raises:
        OSError: The disk is full, or can't be written for another reason.
    """
    (folder / MODEL).mkdir()
    trainer.policy.save(folder / MODEL, tokenizer_folder)
    with writing():
        save_file(_optimizer_tensors(trainer), folder / _OPTIMIZER)
    counters = trainer.counters
    state = {
        "step": step,
        "counters": {name: getattr(counters, name) for name in Counters.__dataclass_fields__},
        "torch_rng": bytes(torch.get_rng_state().tolist()).hex(),
        "extra": extra,
    }
    (folder / _STATE).write_text(json.dumps(state))
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:  # hashing takes longer than writing
        files = {path.relative_to(folder).as_posix(): facts for path, facts in zip(paths, pool.map(_facts, paths), strict=True)}
    write_whole(folder / MANIFEST, json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1))


def load(folder: Path, trainer: Trainer) -> dict[str, Any]:
    """Put a trainer back where it was: going on from here gives the same weights as never having stopped.

    Parameters are written into the storage that they have, so an engine that shares the module sees them.

    Args:
        folder: A checkpoint.
        trainer: Of the same model and configuration; changed in place.

    Returns:
        The caller's `extra`.

    Raises:
        CheckpointError: A file is missing, torn or altered, or belongs to another model; names it.
    """
    verify(folder)
    try:
        stored = Policy.load(folder / MODEL, str(trainer.policy.module.dtype).removeprefix("torch."))
        tensors = load_file(folder / _OPTIMIZER)
    except (ModelError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {folder} can't be read ({error})", "remove it; the one before is used then") from None
    state = json.loads((folder / _STATE).read_text())
    _restore_parameters(folder, trainer, stored)
    _restore_optimizer(folder, trainer, tensors)
    trainer.counters = Counters(**state["counters"])
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["torch_rng"]), dtype=torch.uint8))
    return dict(state["extra"])


def newest(checkpoints: Path) -> Path | None:
    """The complete checkpoint of the highest step; null if there is none.

    By number, not by name: 10 is newer than 9. One without a manifest, or with a file that is missing or cut short, is
    passed over; altered bytes are found by `load`.

    Args:
        checkpoints: The folder in which they lie; may be missing.
    """
    kept = complete(checkpoints)
    return kept[-1] if kept else None


def model_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of a checkpoint's model folder, by file name."""
    prefix = f"{MODEL}/"
    files = manifest.read(folder)["files"]
    return {name.removeprefix(prefix): facts["sha256"] for name, facts in files.items() if name.startswith(prefix)}


def _facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def _optimizer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """The optimizer's state by moment and parameter name; empty before the first update."""
    tensors: dict[str, Tensor] = {}
    for (name, parameter), master in zip(trainer.policy.named_parameters(), trainer.masters, strict=True):
        for moment, tensor in trainer.optimizer.state.get(master, {}).items():
            tensors[f"{moment}.{name}"] = tensor
        if master is not parameter:
            tensors[f"master.{name}"] = master
    return tensors


def _restore_parameters(folder: Path, trainer: Trainer, stored: Policy) -> None:
    ours, theirs = trainer.policy.named_parameters(), stored.named_parameters()
    if [(name, parameter.shape) for name, parameter in ours] != [(name, parameter.shape) for name, parameter in theirs]:
        raise _foreign(folder / MODEL)
    with torch.no_grad():
        for (_, parameter), (_, value) in zip(ours, theirs, strict=True):
            parameter.copy_(value)


def _restore_optimizer(folder: Path, trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    trainer.optimizer.state.clear()
    for (name, parameter), master in zip(trainer.policy.named_parameters(), trainer.masters, strict=True):
        # Fresh storage: what is loaded may lie at any alignment.
        moments = {moment: tensors[key].to(master.device, copy=True) for moment in _MOMENTS if (key := f"{moment}.{name}") in tensors}
        if moments:
            trainer.optimizer.state[master] = moments
        if master is not parameter:
            if f"master.{name}" not in tensors:
                raise _foreign(folder / _OPTIMIZER)
            with torch.no_grad():
                master.copy_(tensors[f"master.{name}"])


def _foreign(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} belongs to another model, or to one held in another dtype", "use a checkpoint of this run")
