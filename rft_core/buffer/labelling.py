"""Applying labels: finding the experiences that they are of, and letting groups go on that waited for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from rft_core.buffer.labels import LabelLine
from rft_core.buffer.opening import Table
from rft_core.buffer.query import Questions
from rft_core.catalog import PRIORITY, REWARD, Applied, Label
from rft_core.errors import DataError

SHOWN = 5
"""Unknown experiences that a message names."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """What came of a file of labels."""

    applied: Applied
    unknown: tuple[LabelLine, ...]
    """Lines of experiences that are not in the table; they were left out."""


def apply_labels(table: Table, lines: Sequence[LabelLine], partial: bool = False) -> Labelled:
    """Add labels to a table, in one transaction.

    Args:
        table: The table.
        lines: What is said, and of which experiences.
        partial: Leave out what names no experience of this table, rather than refuse all.

    Raises:
        DataError: Some name no experience of this table; lists them.
    """
    questions = Questions(table.storage, table.catalog, None)
    groups = _groups_of(questions, {line.experience_id for line in lines})
    unknown = tuple(line for line in lines if line.experience_id not in groups)
    if unknown and not partial:
        raise DataError(_listed(unknown, len(lines)), "nothing was applied; --partial applies the rest")
    labels = [
        Label(line.key, line.experience_id, groups[line.experience_id], line.field, line.value, line.author, line.note)
        for line in lines
        if line.experience_id in groups
    ]
    applied = table.catalog.labels.add(labels, table.store.terms.ready_for)
    _prioritise(table, questions, {label.group_id for label in labels if label.field == REWARD})
    return Labelled(applied, unknown)


def _groups_of(questions: Questions, experience_ids: set[str]) -> dict[str, str]:
    """The group of each experience that is in the table."""
    found = questions.groups_of(sorted(experience_ids))
    if questions.damaged and len(found) < len(experience_ids):
        uri, problem = next(iter(questions.damaged.items()))
        raise DataError(
            f"{uri} {problem}, so it can't be known of which experiences the labels are", "`rft fsck` lists all that is damaged"
        )
    return found


def _prioritise(table: Table, questions: Questions, labelled: set[str]) -> None:
    """Give groups that no step took yet the priority that their rewards call for now; a label of the priority says more than those do."""
    if table.store.terms.score(()) is None:
        return  # the selection goes by something else
    waiting = questions.ask("select group_id from groups where queue is not null and uses = 0")["group_id"].to_pylist()
    stored = table.store.groups([group_id for group_id in waiting if group_id in labelled])
    said = table.catalog.labels.of_groups([group.group_id for group in stored], PRIORITY)
    scored = {}
    for group in stored:
        score = table.store.terms.score([reward for attempt in group.attempts() if (reward := group.reward_of(attempt)) is not None])
        if score is not None and not any(row.experience_id in said for row in group.rows):
            scored[group.group_id] = score
    table.catalog.labels.prioritise(scored)


def _listed(unknown: Sequence[LabelLine], total: int) -> str:
    shown = ", ".join(f"{line.experience_id} (line {line.line})" for line in unknown[:SHOWN])
    more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
    return f"{len(unknown)} of {total} labels name no experience of this table: {shown}{more}"
