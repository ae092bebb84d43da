"""Named points at which the kill tests end the process, to prove that nothing is lost there.

`TIDEMILL_KILL_AT=publish.renamed:2` kills the process with SIGKILL the second time that it gets to that point.
Without the variable a failpoint does nothing.
"""

import os
import signal
from collections import Counter

LOOP = (
    "lease.before",
    "lease.after",
    "segment.intended",
    "segment.renamed",
    "segment.committed",
    "overlay.renamed",
    "claim.before",
    "claim.after",
    "train.after",
    "checkpoint.written",
    "checkpoint.renamed",
    "publish.renamed",
    "publish.after",
    "step.before",
    "step.after",
    "evaluation.written",
    "evaluation.after",
    "monitor.exported",
)
"""The points that a step passes, in its order."""

TABLE = ("label.before", "label.after", "compact.renamed", "compact.committed", "collect.deleted")
"""The points that labellers and compactions pass."""

_passed: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Die here if the environment asks for it.

    Args:
        name: One of `LOOP` or `TABLE`.
    """
    wanted = os.environ.get("TIDEMILL_KILL_AT")
    if wanted is None:
        return
    point, _, nth = wanted.partition(":")
    if point == name:
        _passed[name] += 1
        if _passed[name] == int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)
