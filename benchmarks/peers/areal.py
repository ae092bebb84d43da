"""AReaL 1.0.4's StalenessManager, imported from its own package in an environment of its own, on the simulated load.

Its import needs torch, ray and transformers, but no GPU.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import environment
from benchmarks.simulation.load import Load

VERSION = "1.0.4"
_HERE = Path(__file__)


def simulate(loads: Sequence[Load]) -> list[dict[str, Any]]:
    """The figures of each load under AReaL's rule.

    Raises:
        subprocess.CalledProcessError: It could not be installed, or its process failed; what it said is on stderr.
    """
    python = environment("areal", f"areal=={VERSION}", _HERE.with_name("areal.txt"))
    told = "".join(json.dumps(asdict(load)) + "\n" for load in loads)
    # -P: the script's folder holds an `areal.py`, which must not stand before the package.
    command: list[str | Path] = [python, "-P", _HERE.with_name("areal_worker.py")]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    answers = subprocess.run(command, input=told, stdout=subprocess.PIPE, env=environ, text=True, check=True).stdout.splitlines()
    return [json.loads(answer) for answer in answers[-len(loads) :]]
