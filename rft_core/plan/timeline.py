"""How a mode overlaps rollout and training, drawn for people."""

from collections.abc import Iterator
from dataclasses import dataclass

from rft_core.config import RunConfig
from rft_core.plan.facts import max_staleness

STEPS_DRAWN = 6
_WIDTH = 8
"""Characters of a rollout or an update: both are drawn as long as each other."""


@dataclass(frozen=True, slots=True)
class Span:
    """One rollout or update, in units of its length."""

    step: int
    begins: int
    version: int
    """The policy version that it starts from."""


def schedule(bound: int, interval: int, overlaps: bool, steps: int = STEPS_DRAWN) -> tuple[list[Span], list[Span]]:
    """Rollouts and updates, when one explorer and the trainer take equally long and each begins as early as it may.

    Args:
        bound: Most versions that a batch may lie behind.
        interval: Steps between published versions.
        overlaps: Whether rollouts go on beside updates.
        steps: How many.
    """
    rollouts: list[Span] = []
    updates: list[Span] = []
    for step in range(1, steps + 1):
        needed = max(0, step - 1 - bound)
        needed += -needed % interval  # a version that is not published can't be loaded
        free = rollouts[-1].begins + 1 if rollouts else 0
        begins = max(free, updates[needed - 1].begins + 1 if needed else 0)
        if updates and not overlaps:
            begins = updates[-1].begins + 1
        published = [done.step for done in updates if done.begins + 1 <= begins and done.step % interval == 0]
        rollouts.append(Span(step, begins, max(published, default=0)))
        updates.append(Span(step, max(begins + 1, updates[-1].begins + 1 if updates else 0), step - 1))
    return rollouts, updates


def drawn(config: RunConfig) -> Iterator[str]:
    """The timeline of a recipe, as lines of text: which version samples the batch of each step, and when it is trained."""
    rollouts, updates = schedule(max_staleness(config), config.sync.interval, config.mode != "sync")
    yield _line("explorer", rollouts, "{step} by v{version}")
    yield _line("trainer", updates, "step {step}")


def _line(name: str, spans: list[Span], text: str) -> str:
    line = ""
    for span in spans:
        label = text.format(step=span.step, version=span.version)
        line = line.ljust(span.begins * (_WIDTH + 1)) + "|" + label.center(_WIDTH, "-")[:_WIDTH]
    return f"{name:9}{line}|"
