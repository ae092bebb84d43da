"""Choose: claim the groups of a step's batch, in order, and the state of the table that they are read at."""

from rft_core.buffer import Wanted, chooser
from rft_core.catalog import Claim
from rft_core.errors import SegmentError
from rft_core.plan import max_staleness, short_batch
from tasks.session import Session


def choose(session: Session, step: int, least: int = 0) -> Claim | None:
    """Choose a step's batch, once.

    Args:
        session: The run.
        step: The step.
        least: Fewer groups than that are no batch.

    Returns:
        The claim; null where there were too few groups for one.

    Raises:
        SegmentError: The condition of the recipe's selection can't be asked, since a file can't be read.
    """
    matching = _matching(session)
    wanted = Wanted(step, session.config.rollout.batch_groups)
    chosen = chooser(session.table.selector, wanted, matching, short_batch(session.config) == "skip")
    bound = max_staleness(session.config)
    return session.catalog.claims.make(step, chosen, step - 1, bound, session.pipeline, session.generation, least)


def _matching(session: Session) -> set[str] | None:
    """The groups that the recipe's condition holds for; null where it has none."""
    condition = session.config.selection.where
    if condition is None:
        return None
    questions = session.questions()
    matching = questions.groups_where(condition)
    for uri, problem in questions.damaged.items():
        raise SegmentError(
            f"selection.where can't be asked: {uri} {problem}", "restore it from a copy; `rft fsck` lists all that is damaged"
        )
    return matching
