"""Which checkpoints a run has, and whether they are whole. Needs no torch, so that commands which look at a run start quickly."""

import json
from pathlib import Path
from typing import Any

from rft_core.disk import file_sha256
from rft_core.errors import CheckpointError, UserError

MANIFEST = "manifest.json"
FORMAT = 1
"""The layout of a checkpoint; written into its manifest."""


def ordered(checkpoints: Path) -> list[Path]:
    """The checkpoints in a folder by their steps, complete or not."""
    numbered = [path for path in checkpoints.iterdir() if path.name.isdigit()] if checkpoints.is_dir() else []
    return sorted(numbered, key=lambda path: int(path.name))


def complete(checkpoints: Path) -> list[Path]:
    """The checkpoints in a folder that have all of their files in full length, by their steps.

    By number, not by name: 10 is newer than 9. Altered bytes are found by `verify`.

    Args:
        checkpoints: The folder in which they lie; may be missing.
    """
    return [path for path in ordered(checkpoints) if _is_complete(path)]


def redo_from(checkpoints: Path) -> int:
    """The first step that a restart may have to redo: a damaged checkpoint is passed over, so it may begin at any that is kept."""
    kept = complete(checkpoints)
    return int(kept[0].name) + 1 if kept else 1


def verify(folder: Path) -> int:
    """Check every byte of a checkpoint against its manifest.

    Returns:
        The checkpoint's step.

    Raises:
        CheckpointError: A file is missing, torn or altered, which it names; or the checkpoint is of a newer format.
    """
    manifest = read(folder)
    if manifest["format"] > FORMAT:
        raise CheckpointError(f"checkpoint {folder} has format {manifest['format']}, newer than this code's {FORMAT}", "upgrade tidemill")
    for name, facts in manifest["files"].items():
        if not _has_size(folder / name, facts) or file_sha256(folder / name) != facts["sha256"]:
            raise CheckpointError(
                f"checkpoint file {folder / name} is missing, torn or altered", "remove the checkpoint; the one before is used then"
            )
    return int(manifest["step"])


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint: its `format`, its `step`, and bytes and SHA-256 of its `files` by name.

    Raises:
        CheckpointError: It has none, or one that makes no sense.
        UserError: This user may not read it: it may well be whole.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return {key: manifest[key] for key in ("format", "step", "files")}
    except PermissionError:
        raise UserError(f"checkpoint {folder} can't be read (Permission denied)", "let this user read it") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"checkpoint {folder} has no readable {MANIFEST}", "remove it; the one before is used then") from None


def _is_complete(folder: Path) -> bool:
    try:
        manifest = read(folder)
    except CheckpointError:
        return False
    return all(_has_size(folder / name, facts) for name, facts in manifest["files"].items())


def _has_size(path: Path, facts: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == facts["bytes"]
