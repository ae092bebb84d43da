"""Environments of their own for peers, in Tidemill's cache; made once."""

import shutil
import subprocess
import sys
from pathlib import Path

from rft_core.base_model import cache_dir

PYTHONS = ("python3.12", "python3.11")
"""What every peer and its pinned requirements run on."""


def environment(name: str, package: str, requirements: Path) -> Path:
    """Make a virtual environment that a peer runs in; a complete one is used again.

    Args:
        name: Of the folder, in `peers` of Tidemill's cache.
        package: The peer, as pip names it with its version; installed without what it says it depends on.
        requirements: A file of all that it needs here, pinned; installed without dependencies of their own.

    Returns:
        Its python.

    Raises:
        RuntimeError: There is no Python that the peer runs on.
        subprocess.CalledProcessError: pip could not install it; what pip said is on stderr.
    """
    folder = cache_dir() / "peers" / name
    python = folder / "bin" / "python"
    stamp = folder / "installed.txt"
    wanted = f"{package}\n{requirements.read_text(encoding='utf-8')}"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        subprocess.run([_interpreter(package), "-m", "venv", "--clear", folder], check=True)
        install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, "--requirement", requirements], check=True, stdout=sys.stderr)
        subprocess.run([*install, package], check=True, stdout=sys.stderr)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def _interpreter(package: str) -> str:
    if (3, 11) <= sys.version_info < (3, 13):
        return sys.executable
    found = next(filter(None, map(shutil.which, PYTHONS)), None)
    if found is None:
        raise RuntimeError(f"found no Python that {package} runs on; install one of {', '.join(PYTHONS)}")
    return found
