"""A table in which there is something of everything, and a look at it as `rft fsck` looks."""

import sqlite3

from rft_core.buffer.fsck import Report, fsck
from rft_core.catalog import HELD_OUT, Evaluation, Label, Lease, StepRow
from rft_core.config import RetentionConfig
from tests.buffer.table import Table, group_id, row

COPY = "restore it from a copy of the run"
ONE_COPY = "restore the catalog and the files from one copy of the run"
NOTHING = RetentionConfig()


def fill(table: Table) -> list[Lease]:
    """Three segments, overlays, labels, answers, a pinned state, two trained steps and a claim that is not trained yet."""
    generation = table.take_over()
    leases = table.lease(6)
    for number in range(3):
        table.append(f"append-{number}", leases[2 * number : 2 * number + 2])
        table.shape(0.5)
    table.catalog.labels.add([Label("l", row(leases[5]).experience_id, group_id(leases[5]), "reward", 0.5, "ada")], "training")
    table.catalog.history.pin("before")
    for step in (1, 2):
        claim = table.claim(step, generation, 2)
        table.catalog.claims.commit_step(StepRow(step, "trained", step, {}, None, 1.0, 0.0), claim.group_ids, {}, generation)
    table.claim(3, generation, 1)
    answer = {"version": 2, "task_id": "t", "prompt_text": "?", "response_text": "!", "answer": "!", "reward": 1.0, "exact": True}
    file = table.store.write_answers("held_out-v000002", [answer | {"reason": "", "error": None}])
    table.catalog.versions.record_evaluation(Evaluation(HELD_OUT, 2, {"evaluation/reward": 1.0}, file.uri, file.sha256))
    return leases


def look(table: Table, **changes: object) -> Report:
    """As the command looks, at a table in which nothing was written just now."""
    settings: dict[str, object] = {"grace_s": 0.0, "redo_from": 3}
    return fsck(table.open, **{**settings, **changes})  # type: ignore[arg-type]


def break_catalog(table: Table, *statements: str) -> None:
    with sqlite3.connect(table.run_dir.catalog_file) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
