"""Public reports about replay buffers, resumed runs and disks, as they touch the experience table. Each test cites its report."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import pstdev

import pyarrow.parquet as pq
import pytest

from rft_core.buffer import Questions
from rft_core.config import FormatConfig, TaskSetConfig
from rft_core.disk import file_sha256
from rft_core.errors import TrainingError
from rft_core.taskset import open_taskset
from tests.buffer.compacting import Racing, everything, fill, squeeze
from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_each, group_id
from tests.tasks.runs import Runs


@pytest.fixture
def table(tmp_path: Path) -> object:
    opened = Table(tmp_path / "table", pipeline="p")
    yield opened
    opened.close()


def test_b18_staleness_after_a_recovery_counts_versions_and_not_steps_since_the_start(table: Table) -> None:
    """AReaL #1388, PR #1345: a run that was resumed at version 100 took everything for fresh: capacity 824 instead of 24."""
    table.append("old", table.lease(2, step=97), policy_version=97)
    table.append("new", table.lease(2, step=99), policy_version=99)
    table.shape()
    first = table.choose(101, build("oldest_first"), table.take_over(), count=8, version=100, max_staleness=2)
    assert (len(first.group_ids), first.snapshot["staleness"], first.left_out) == (2, 1, {"stale": 2})
    table.catalog.trainers.release(1)
    again = table.choose(101, build("oldest_first"), table.take_over("resumed"), count=8, version=100, max_staleness=2)
    assert again == first


def test_b24_a_reader_is_not_left_with_a_file_that_was_deleted(table: Table) -> None:
    """prime-rl PR #1857: what a reader was about to load was deleted first; here it looks again, and finds the rows elsewhere."""
    fill(table)
    before = table.ask("select * from experiences order by experience_id")
    questions = Questions(Racing(table, "read"), table.catalog, "p")
    assert questions.ask("select * from experiences order by experience_id").to_pylist() == before


def test_b24_nothing_is_deleted_below_what_may_be_redone(table: Table) -> None:
    """prime-rl PR #1857: delete only what nobody acknowledged to need."""
    claims = fill(table)
    kept = table.store.groups(claims[2].group_ids, "p", claims[2].snapshot["sequence"])
    for redo_from in (3, 3, 2):
        squeeze(table, redo_from=redo_from)
        assert table.store.groups(claims[2].group_ids, "p", claims[2].snapshot["sequence"]) == kept


def test_b25_a_file_that_was_not_committed_is_no_part_of_the_table(table: Table) -> None:
    """prime-rl PR #1712: the newest folder was read although its last mark was missing."""
    append_each(table, "whole", [(1, 0)])
    table.catalog.segments.intend("torn", "segments/torn-1.parquet", "explorer-7")
    whole = table.segment_file("whole").read_bytes()
    for name, content in (("torn-1.parquet", whole[:-9]), ("copy.parquet", whole), ("x.parquet.tmp-0123abcd", b"")):
        (table.run_dir.root / "segments" / name).write_bytes(content)
    questions = Questions(table.storage, table.catalog, "p")
    assert questions.ask("select count(*) as n from experiences").to_pylist() == [{"n": 2}]
    assert questions.damaged == {}


def test_b28_each_prompt_is_trained_once_although_the_loader_was_ahead(table: Table) -> None:
    """NeMo-RL PR #3599: the loader stood ahead of what was trained; after a kill 675 prompts were never seen."""
    generation = table.take_over()
    for step in range(1, 5):
        leases = table.lease(4, step)
        table.append(f"step-{step}", leases[:3])  # killed with one in flight
        table.catalog.leases.take_back("explorer", "it is dead")
        again = table.lease(0, step)
        assert [(lease.slot, lease.task_id, lease.epoch) for lease in again] == [(leases[3].slot, leases[3].task_id, 1)]
        table.append(f"step-{step}-again", again)
        table.shape()
        table.commit(table.claim(step, generation), generation)
    assert table.catalog.leases.fates() == {"expired": 4, "trained": 16}
    counted = table.look("select task_id, count(*) as n from fates where fate = 'trained' group by 1")
    assert {row["task_id"]: row["n"] for row in counted} == {f"task-{position}": 1 for position in range(16)}


def test_b31_what_a_resumed_step_reads_is_whole(table: Table) -> None:
    """trl PR #3148: inputs that were buffered for several iterations were None after a resume."""
    generation = table.take_over()
    leases = append_each(table, "a", [(1, 0), (1, 0), (0.5, 0)])
    table.shape(factor=2.0)
    priority = build("priority", by="label", max_uses=3, decay=0.0)
    claims = [table.choose(step, priority, generation, count=2) for step in (1, 2, 3)]
    read = [table.store.groups(claim.group_ids, "p", claim.snapshot["sequence"]) for claim in claims]
    table.catalog.trainers.release(generation)
    resumed = table.take_over("resumed")
    table.label({row.experience_id: 9.0 for row in table.store.groups([group_id(leases[0])])[0].rows})
    table.shape(factor=7.0)
    for step, before in zip((2, 3), read[1:], strict=True):  # in the midst of the replay
        claim = table.choose(step, priority, resumed, count=2)
        assert claim == claims[step - 1]
        again = table.store.groups(claim.group_ids, "p", claim.snapshot["sequence"])
        assert again == before
        assert all(len(group.rows) == len(group.shaped) == 2 for group in again)


def test_b33_a_segment_of_an_older_version_is_read_asked_and_merged(table: Table) -> None:
    """prime-rl PR #2639: a file that was called otherwise in an older checkpoint was not found, without a word of why."""
    old, new = append_each(table, "old", [(1, 0)]), append_each(table, "new", [(1, 0)], step=2, turn_rewards=(0.5,))
    path = table.segment_file("old")
    older = pq.read_table(path).drop_columns(["turn_rewards", "teacher_logprobs"]).replace_schema_metadata({"tidemill.schema": "0"})
    pq.write_table(older, path)
    with table.catalog._database.write() as connection:
        connection.exec_driver_sql("update segments set sha256 = ?, bytes = ? where key = 'old'", (file_sha256(path), path.stat().st_size))
    table.shape()
    table.claim(2, table.take_over())
    question = "select step, turn_rewards[1] as first from experiences where attempt = 0 order by step"
    for _ in range(2):
        groups = table.store.groups([group_id(old[0]), group_id(new[0])])
        assert [one.turn_rewards for group in groups for one in group.rows] == [()] * 2 + [(0.5,)] * 2
        assert table.ask(question) == [{"step": 1, "first": None}, {"step": 2, "first": 0.5}]
        squeeze(table)
    assert len(table.files("segments")) == 1


def test_b56_replay_takes_whole_groups_by_their_own_spread(runs: Runs) -> None:
    """trl #6804: through the real trainer the spread was one number a batch, so that every priority was the same."""
    operators: list[object] = []
    changes = {"rollout__group_size": 4, "rollout__batch_groups": 2, "sync__max_staleness": 9, "operators": operators}
    values = runs.recipe("aaaaaaaaaaaa", steps=6, **changes)
    right = {number: [1, 3, 2, 1, 2, 3, 1, 1, 2, 2, 1, 3][number] for number in range(12)}  # of four answers
    answers = {f"+0={number}": [str(number)] * right[number] + ["-"] * (4 - right[number]) for number in reversed(range(12))}
    values["rollout"]["engine"] = {"name": "scripted", "args": {"answers": answers, "default": ["-"], "by_attempt": True}}
    values["selection"] = {"name": "priority", "args": {"by": "reward_spread", "max_uses": 2, "cool_down": 1, "decay": 0.04}}
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "tttttt"
    assert found.metric("batch/num_groups") == [2.0] * 6
    rewards = {
        one["group_id"]: one["rewards"]
        for one in found.ask("select group_id, list(reward order by attempt) as rewards from experiences group by 1")
    }
    assert all(len(of_group) == 4 for of_group in rewards.values())
    used: dict[str, list[int]] = {}
    for step, claim in sorted(found.claims.items()):
        assert claim is not None
        for name in claim.group_ids:
            used.setdefault(name, []).append(step)
    for one in found.ask("select group_id, priority, uses, trained_step from groups"):
        steps = used.get(one["group_id"], [])
        assert one["uses"] == len(steps) <= 2
        # What it lost: once, if it could be used again; a group that was used up keeps what it had then.
        assert one["priority"] == pytest.approx(pstdev(rewards[one["group_id"]]) - 0.04 * bool(steps))
        assert one["trained_step"] == (steps[0] if steps else None)
    assert any(len(steps) == 2 for steps in used.values())
    assert all(later - earlier >= 2 for steps in used.values() for earlier, later in pairwise(steps))
    assert len({pstdev(of_group) for of_group in rewards.values()}) == 2
    assert found.fates["trained"] == len(used)


def test_b58_what_a_condition_leaves_of_a_batch_is_trained_and_the_rest_is_counted(runs: Runs) -> None:
    """verl #1015, Absolute-Zero-Reasoner #14: the filtered set was smaller than a batch, and the loader silently empty."""
    values = runs.recipe("aaaa", steps=2, selection={"name": "oldest_first", "where": "slot = 0"})
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "tt"
    claims = [claim for claim in found.claims.values() if claim is not None]
    assert [len(claim.group_ids) for claim in claims] == [1, 1]
    assert [claim.left_out for claim in claims] == [{"where": 1}, {"where": 1, "stale": 1}]
    assert found.metric("batch/left_out") == [1.0, 2.0]
    assert found.fates == {"trained": 2, "stale": 1, "unused": 1}


@pytest.mark.parametrize(
    ("where", "short_batch", "left_out"),
    [("reward > 2", "train_partial", {"where": 2}), ("slot = 0", "skip", {"where": 1, "short_batch": 1})],
)
def test_b58_a_set_of_which_nothing_is_ever_trained_fails_the_run(
    where: str, short_batch: str, left_out: dict[str, int], runs: Runs
) -> None:
    """verl #1015: with drop_last a set smaller than the batch gave no batch at all, and the run ended as if all were well."""
    values = runs.recipe("aaaa", steps=2, rollout__short_batch=short_batch, selection={"name": "oldest_first", "where": where})
    with pytest.raises(TrainingError, match="none of the 2 steps had anything to learn from; `rft show` says what became of the groups"):
        runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "ss"
    first = found.claims[1]
    assert first is not None
    assert (first.group_ids, first.left_out) == ((), left_out)
    assert sum(found.fates.values()) == 4


def test_b58_an_empty_table_is_an_empty_batch_and_no_error(table: Table) -> None:
    """verl #1015: an empty loader must be told apart from the end."""
    generation = table.take_over()
    for step, name in enumerate(("oldest_first", "freshest_first", "priority", "expert_mix"), start=1):
        claim = table.choose(step, build(name), generation, count=8, where="reward > 0")
        assert (claim.group_ids, claim.left_out) == ((), {})
    assert table.store.groups([]) == []
    assert squeeze(table).made == 0
    assert all(rows == [] for view, rows in everything(table).items() if view != "claims")


def sources() -> dict[str, list[dict[str, object]]]:
    """Two data sets that number their rows in the same way."""
    told = {"easy": "What is {}+1?", "hard": "What is {}*7?"}
    return {
        name: [{"id": number, "question": text.format(number), "answer": str(number)} for number in range(5)] for name, text in told.items()
    }


def test_d11_rows_of_several_sources_never_have_one_id(table: Table, tmp_path: Path) -> None:
    """Argilla #5699: two subsets whose rows were both numbered from 0 overwrote each other."""
    ids = []
    for name, rows in sources().items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        form = FormatConfig(prompt="{question}", chat=False)
        opened = open_taskset(TaskSetConfig(source=str(path), order="sequential", format=form), seed=0)
        ids += [opened.at(position).task_id for position in range(5)]
    assert len(set(ids)) == 10
    leases = table.catalog.leases.issue(1, 10, "explorer", lambda position: ids[position], None)
    table.append("a", leases)
    assert table.ask("select count(distinct task_id) as n, count(distinct group_id) as g from experiences") == [{"n": 10, "g": 10}]


def test_d11_the_same_row_in_two_sources_is_one_task_and_its_groups_are_kept_apart(table: Table) -> None:
    """Argilla #5699: what has one content has one id; what was made of it is named by its lease, so nothing is overwritten."""
    leases = table.catalog.leases.issue(1, 4, "explorer", lambda position: f"task-{position % 2}", None)
    for lease in leases:
        table.append(f"slot-{lease.slot}", [lease], (lease.slot / 4, 0.0))
    found = table.ask("select task_id, count(distinct group_id) as g, max(reward) as r from experiences group by 1 order by 1")
    assert found == [{"task_id": "task-0", "g": 2, "r": 0.5}, {"task_id": "task-1", "g": 2, "r": 0.75}]
    table.shape()
    claim = table.claim(1, table.take_over())
    assert slots(table, claim) == [0, 1, 2, 3]
    assert len({one.experience_id for group in table.store.groups(claim.group_ids) for one in group.rows}) == 8
