"""Segments and overlays: written once, whole or not at all, and read back as they were."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_core.buffer import ExperienceStore, Shaped, Terms, read_answers
from rft_core.catalog import Evaluation
from rft_core.disk import file_sha256
from rft_core.errors import LostClaimError, SegmentError, TidemillError
from rft_core.storage import LocalStorage, Stat
from rft_core.types import Source, digest
from tests.buffer.table import Table, append_each, group_id, row


def shaped(experience_id: str, reward: float | None, dropped_by: str | None = None) -> Shaped:
    return Shaped(experience_id, reward, dropped_by, f"{dropped_by} says so" if dropped_by else None)


def ready(table: Table) -> list[str]:
    """The groups that wait for training, in the order of their leases."""
    return [found["group_id"] for found in table.look("select group_id from groups where queue = 'training' order by step, slot")]


def rewrite(table: Table, key: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put other rows into a segment, as a program of another version would have written them."""
    path = table.segment_file(key)
    pq.write_table(change(pq.read_table(path)), path)
    with table.catalog._database.write() as connection:
        changed = (file_sha256(path), path.stat().st_size, key)
        connection.exec_driver_sql("update segments set sha256 = ?, bytes = ? where key = ?", changed)


def test_groups_come_back_as_they_were_in_the_order_asked_for(table: Table) -> None:
    leases = table.lease(3)
    rows = table.append("a", leases[:2]) + table.append("b", leases[2:])
    wanted = [group_id(leases[index]) for index in (2, 0, 1)]
    found = table.store.groups(wanted)
    assert [group.group_id for group in found] == wanted
    assert [list(group.rows) for group in found] == [rows[4:], rows[:2], rows[2:4]]
    assert all(group.shaped == group.labelled == {} for group in found)
    assert table.store.groups([]) == []


def test_the_turns_of_an_attempt_stay_together(table: Table) -> None:
    (lease,) = table.lease()
    rows = [row(lease, attempt, turn, reward=attempt / 4) for attempt in range(2) for turn in range(3)]
    table.store.append("a", rows, "e", 1)
    (group,) = table.store.groups([group_id(lease)])
    assert group.rows == tuple(rows)
    assert group.attempts() == [tuple(rows[:3]), tuple(rows[3:])]
    assert [group.reward_of(attempt) for attempt in group.attempts()] == [0.0, 0.25]
    assert table.look("select size, rewarded from groups") == [{"size": 2, "rewarded": 2}]


def test_rows_of_groups_that_are_mixed_up_are_grouped(table: Table) -> None:
    """SkyRL PR #1281: A1, B1, A2, B2."""
    leases = table.lease(2)
    mixed = [row(lease, attempt) for attempt in range(2) for lease in leases]
    table.store.append("a", mixed, "e", 1)
    found = table.store.groups([group_id(lease) for lease in leases])
    assert [[(one.lease_id, one.attempt) for one in group.rows] for group in found] == [
        [(lease.lease_id, 0), (lease.lease_id, 1)] for lease in leases
    ]


def test_a_segment_comes_back_as_arrays(table: Table) -> None:
    rows = table.append("a", table.lease(2))
    file = table.catalog.segments.find("a")
    assert file is not None
    (arrays,) = table.store.scan([file])
    assert [tuple(tokens.tolist()) for tokens in arrays["tokens"]] == [one.tokens for one in rows]
    assert arrays["reward"].tolist() == [one.reward for one in rows]


def test_a_second_append_of_the_same_key_changes_nothing(table: Table) -> None:
    leases = table.lease(1)
    rows = table.append("a", leases)
    before = table.store.append("a", rows, "explorer", 1)
    assert table.store.append("a", [row(leases[0], reward=0.125)], "another", 1) == before
    assert table.files("segments") == {before.uri}
    assert [one.reward for one in table.store.groups([group_id(leases[0])])[0].rows] == [1.0, 0.0]
    assert table.catalog.leases.fates() == {"ready": 1}


@pytest.mark.parametrize(
    ("rewards", "errors", "terms", "fate", "queue"),
    [
        ((1.0, None), (None, None), {}, "ready", "training"),
        ((1.0, None), (None, None), {"pipeline": "p"}, "ready", "shaping"),
        ((1.0, None), (None, None), {"awaits_each": True}, "pending", "labels"),
        ((1.0, None), (None, "RewardError: no"), {"awaits_each": True}, "ready", "training"),
        ((None, None), (None, None), {}, "pending", "labels"),
        ((None, None), (None, "RewardError: no"), {}, "pending", "labels"),
        ((None, None), (None, None), {"awaits_rewards": False}, "ready", "training"),
        ((None, None), ("RewardError: no", "RewardError: no"), {"pipeline": "p"}, "failed", None),
        ((None, None), ("DeadlineError: late", "DeadlineError: late"), {}, "timed_out", None),
        ((None, None), ("DeadlineError: late", "RewardError: no"), {}, "failed", None),
    ],
)
def test_the_status_of_a_group_and_what_it_waits_for_follow_from_its_rows(
    rewards: tuple[float | None, ...], errors: tuple[str | None, ...], terms: dict[str, object], fate: str, queue: str | None, table: Table
) -> None:
    (lease,) = table.lease()
    told = zip(rewards, errors, strict=True)
    rows = [row(lease, index, reward=reward, error=error) for index, (reward, error) in enumerate(told)]
    ExperienceStore(table.storage, table.catalog, Terms(**terms)).append("a", rows, "e", 1)
    assert table.ask("select fate, queue from fates join groups using (lease_id)") == [{"fate": fate, "queue": queue}]


def test_a_group_is_of_the_expert_who_wrote_any_of_it(table: Table) -> None:
    leases = table.lease(3)
    table.store.append(
        "a", [row(lease, index, source=source) for lease, source in zip(leases, Source, strict=True) for index in (0, 1)], "e", 1
    )
    assert [found["source"] for found in table.look("select source from groups order by slot")] == ["policy", "expert", "human"]
    assert [found["source"] for found in table.ask("select distinct source from supervised order by 1")] == ["expert", "human"]


def test_a_rejected_rollout_is_kept_and_never_trained(table: Table) -> None:
    leases = table.lease(2)
    rows = [row(lease) for lease in leases]
    table.store.append("a", rows, "e", 1, rejected="9 of 10 attempts failed")
    assert table.catalog.leases.fates() == {"failed": 2}
    assert ready(table) == []
    assert len(table.ask("select * from experiences where fate = 'failed'")) == 2
    assert [group.rows for group in table.store.groups([group_id(lease) for lease in leases])] == [(one,) for one in rows]


def test_rows_for_a_lease_that_ended_are_kept_as_late_and_never_trained(table: Table) -> None:
    leases = table.lease(2)
    table.catalog.leases.take_back("explorer", "it is dead")
    again = table.lease(0)
    table.append("again", again)
    rows = table.append("a", leases)
    assert table.store.groups([group_id(leases[0])])[0].rows == tuple(rows[:2])
    assert ready(table) == [group_id(lease) for lease in again]
    assert (
        table.look("select status, reason, queue from groups where origin = 'a'")
        == [{"status": "late", "reason": "its lease had ended: expired", "queue": None}] * 2
    )
    assert table.catalog.leases.fates() == {"expired": 2, "ready": 2}


def test_the_oldest_version_of_a_group_counts(table: Table) -> None:
    (lease,) = table.lease()
    table.store.append("a", [row(lease, index, policy_version=version) for index, version in enumerate((5, 3, 4))], "e", 1)
    assert table.look("select lowest_version from groups") == [{"lowest_version": 3}]


def test_rows_that_cannot_be_right_leave_nothing(table: Table) -> None:
    (lease,) = table.lease()
    with pytest.raises(TidemillError, match="its reward is nan"):
        table.store.append("a", [row(lease), row(lease, 1, reward=float("nan"))], "e", 1)
    assert table.files("segments") == set()
    assert table.catalog.segments.intended_uris() == []
    table.append("a", [lease])


def take_over(table: Table) -> None:
    """Another explorer is given what this one holds, and is quicker."""
    with table.catalog._database.write() as connection:
        connection.exec_driver_sql("update leases set leased_until = 0")
    (lease,) = table.lease(0)
    table.append("other", [lease], (0.5,))


def sweep(table: Table) -> None:
    table.store.sweep()


def test_a_slow_writer_whose_intent_was_swept_leaves_nothing(table: Table) -> None:
    """Somebody takes over between the announcement of a file and its commit."""
    (lease,) = table.lease()
    with pytest.raises(LostClaimError, match="the intent to write a was taken back by another process"):
        while_writing(table, sweep).append("a", [row(lease)], "slow", 1)
    assert ready(table) == []
    assert table.catalog.segments.files() == []
    assert table.files("segments") == set()


def test_a_slow_writer_whose_lease_expired_brings_late_rows(table: Table) -> None:
    (lease,) = table.lease()
    while_writing(table, take_over).append("a", [row(lease)], "slow", 1)
    assert table.catalog.leases.fates() == {"expired": 1, "ready": 1}
    assert len(ready(table)) == 1
    assert ready(table) != [group_id(lease)]


def while_writing(table: Table, meanwhile: Callable[[Table], None]) -> ExperienceStore:
    """A store of the same table to whose first file something happens before it is committed."""

    class Slow(type(table.storage)):
        def write(self, uri: str, data: object) -> None:
            super().write(uri, data)
            meanwhile(table)

    return ExperienceStore(Slow(table.run_dir.root), table.catalog, table.store.terms)


def test_what_killed_writers_left_is_swept(shaping: Table) -> None:
    shaping.append("a", shaping.lease())
    shaping.shape()
    kept = shaping.files("segments") | shaping.files("overlays")
    # Killed while it wrote, between a file and its commit, and the same with an overlay.
    for key, uri in (("b", "segments/b-1.parquet"), ("c", "segments/c-1.parquet"), ("p-a", "overlays/p-a-2.parquet")):
        shaping.catalog.segments.intend(key, uri, shaping.store.terms.writer)
    for orphan in (
        "segments/b-1.parquet.tmp-0123abcd",
        "segments/c-1.parquet",
        "overlays/p-a-2.parquet",
        "overlays/p-a-2.parquet.tmp-0123abcd",
    ):
        shaping.run_dir.resolve(orphan).write_bytes(b"")
    for _ in range(2):
        shaping.store.sweep()
        assert shaping.files("segments") | shaping.files("overlays") == kept
    assert shaping.catalog.segments.intended_uris() == []


def test_a_sweep_lists_each_folder_once(shaping: Table) -> None:
    listed: list[str] = []

    class Counting(LocalStorage):
        def leftovers(self, folder: str = "") -> dict[str, Stat]:
            listed.append(folder)
            return super().leftovers(folder)

    for number in range(5):
        for folder in ("segments", "overlays"):
            shaping.catalog.segments.intend(f"{folder}-{number}", f"{folder}/{number}.parquet", shaping.store.terms.writer)
    storage = Counting(shaping.run_dir.root)
    ExperienceStore(storage, shaping.catalog, shaping.store.terms).sweep()
    assert sorted(listed) == ["overlays", "segments"]
    assert shaping.catalog.segments.intended_uris() == []


def test_what_others_write_now_is_not_swept(table: Table) -> None:
    table.catalog.segments.intend("b", "segments/b-1.parquet", "explorer-7")
    table.storage.write("segments/b-1.parquet", b"")
    table.store.sweep()
    assert table.files("segments") == {"segments/b-1.parquet"}
    with table.catalog._database.write() as connection:
        connection.exec_driver_sql("update intents set created_at = created_at - 601")
    table.store.sweep()
    assert table.files("segments") == set()


def test_a_segment_of_a_newer_version_is_refused(table: Table) -> None:
    (lease,) = table.lease()
    table.append("a", [lease])
    rewrite(table, "a", lambda rows: rows.replace_schema_metadata({"tidemill.schema": "2"}))
    with pytest.raises(SegmentError, match=r"^segments/a-.*\.parquet has columns of version 2, this code has 1; upgrade tidemill"):
        table.store.groups([group_id(lease)])


def test_segments_of_several_versions_are_read_together(table: Table) -> None:
    for key in "abc":
        table.append(key, table.lease(), rewards=(0.5,))
    rewrite(table, "b", lambda rows: rows.drop_columns(["created_at"]).replace_schema_metadata({"tidemill.schema": "0"}))
    (arrays,) = table.store.scan([file for _, file in table.catalog.segments.files()])
    assert arrays["reward"].tolist() == [0.5, 0.5, 0.5]
    assert np.isnan(arrays["created_at"]).tolist() == [False, True, False]


def test_of_segments_that_are_read_together_the_odd_one_is_named(table: Table) -> None:
    for key in "abc":
        table.append(key, table.lease(), rewards=(0.5,))
    rewrite(table, "b", lambda rows: rows.set_column(0, "experience_id", pa.nulls(1, pa.string())))
    with pytest.raises(SegmentError, match=r"^segments/b-.*\.parquet, column experience_id, row 0 is null"):
        list(table.store.scan([file for _, file in table.catalog.segments.files()]))


def test_an_overlay_comes_back_beside_the_facts(shaping: Table) -> None:
    leases = shaping.lease(2)
    ids = [one.experience_id for one in shaping.append("a", leases)]
    laid = {
        group_id(leases[0]): [shaped(ids[0], 0.5), shaped(ids[1], None, "drop_truncated")],
        group_id(leases[1]): [shaped(ids[2], 1.0, "op"), shaped(ids[3], 0.0, "op")],
    }
    shaping.store.overlay("a", laid, [{"name": "op", "dropped": {"op says so": 2}}], {group_id(leases[1]): "op: op says so"})
    found = shaping.store.groups([group_id(lease) for lease in leases], "p")
    assert [list(group.shaped.values()) for group in found] == list(laid.values())
    assert [one.reward for group in found for one in group.rows] == [1.0, 0.0, 1.0, 0.0]
    assert [group.shaped for group in shaping.store.groups([group_id(leases[0])], "other")] == [{}]
    assert shaping.catalog.leases.of_step(1) == {0: "ready", 1: "dropped"}
    assert shaping.look("select account from overlays") == [{"account": '[{"name": "op", "dropped": {"op says so": 2}}]'}]
    assert ready(shaping) == [group_id(leases[0])]


def test_a_second_overlay_of_the_same_groups_changes_nothing(shaping: Table) -> None:
    (lease,) = shaping.lease()
    rows = shaping.append("a", [lease])
    shaping.shape(factor=0.5)
    files = shaping.files("overlays")
    again = {group_id(lease): [shaped(one.experience_id, 9.0) for one in rows]}
    shaping.store.overlay("a", again, [], {group_id(lease): "op: why"})
    assert shaping.files("overlays") == files
    assert {one.shaped_reward for one in shaping.store.groups([group_id(lease)], "p")[0].shaped.values()} == {0.5, 0.0}
    assert shaping.catalog.leases.of_step(1) == {0: "ready"}


def test_reasons_of_operators_may_hold_any_text(shaping: Table) -> None:
    (lease,) = shaping.lease()
    rows = shaping.append("a", [lease])
    odd = [Shaped(one.experience_id, 0.0, "op", "a\0b \ud800") for one in rows]
    shaping.store.overlay("a", {group_id(lease): odd}, [], {group_id(lease): "op: a\0b \ud800"})
    found = shaping.store.groups([group_id(lease)], "p")[0].shaped[rows[0].experience_id]
    assert found.drop_reason == "a\0b \\ud800"
    assert shaping.look("select reason from fates") == [{"reason": "op: a\\x00b \\ud800"}]
    assert shaping.ask("select distinct drop_reason from experiences") == [{"drop_reason": "a\0b \\ud800"}]


def test_of_groups_that_were_shaped_together_and_one_of_them_again_the_newest_counts(shaping: Table) -> None:
    """Each of the two files says something of the same rows, and their names come in any order."""
    for number in range(4):
        leases = append_each(shaping, f"key-{number}", [(1, 0), (1, 0)], step=number + 1)
        both = [group_id(lease) for lease in leases]
        shaping.shape(factor=0.5)
        shaping.label({shaping.store.groups(both[:1])[0].rows[1].experience_id: 1.0})
        shaping.shape(factor=2.0)
        found = shaping.store.groups(both, "p")
        assert [one.shaped_reward for group in found for one in group.shaped.values()] == [2.0, 2.0, 0.5, 0.0]
        assert [
            row["shaped_reward"]
            for row in shaping.ask(f"select shaped_reward from experiences where step = {number + 1} order by slot, attempt")
        ] == [2.0, 2.0, 0.5, 0.0]


def test_one_table_can_be_shaped_by_several_pipelines(shaping: Table) -> None:
    (lease,) = shaping.lease()
    rows = shaping.append("a", [lease])
    for pipeline, reward in (("p", 0.5), ("q", 0.25)):
        store = ExperienceStore(shaping.storage, shaping.catalog, Terms(pipeline=pipeline))
        store.overlay("a", {group_id(lease): [shaped(one.experience_id, reward) for one in rows]}, [], {})
    for pipeline, reward in (("p", 0.5), ("q", 0.25)):
        found = shaping.store.groups([group_id(lease)], pipeline)[0].shaped
        assert {one.shaped_reward for one in found.values()} == {reward}
        assert shaping.ask("select distinct shaped_reward as r from experiences", pipeline=pipeline) == [{"r": reward}]


def test_a_group_that_is_not_there_is_named(table: Table) -> None:
    with pytest.raises(SegmentError, match=f"the rows of group {digest('group', 'x')} were let go"):
        table.store.groups([digest("group", "x")])


def test_answers_come_back(table: Table) -> None:
    rows = [{"version": 3, "task_id": "t", "response_text": "\ud800 4", "answer": None, "reward": 0.5, "exact": False, "error": None}]
    file = table.store.write_answers("held_out-v000003", rows)
    (found,) = read_answers(table.storage, file.uri, file.sha256)
    assert found["response_text"] == "\\ud800 4"
    assert (found["version"], found["reward"], found["exact"], found["prompt_text"]) == (3, 0.5, False, None)


def test_answers_that_a_killed_process_did_not_record_are_swept_and_those_that_it_did_are_not(table: Table) -> None:
    lost, kept = (table.store.write_answers("held_out-v000003", [{"version": 3, "reward": reward}]) for reward in (0.0, 1.0))
    scored = Evaluation("held_out", 3, {}, kept.uri, kept.sha256)
    table.catalog.versions.record_evaluation(scored)
    table.store.sweep()
    assert table.files("evaluations") == {kept.uri}
    with pytest.raises(LostClaimError, match=f"the intent to write {lost.uri} was taken back"):
        table.catalog.versions.record_evaluation(replace(scored, version=4, uri=lost.uri))
    table.catalog.versions.record_evaluation(replace(scored, uri=lost.uri))  # of a version that is scored already: it changes nothing
    assert table.catalog.versions.evaluations("held_out") == [scored]


def test_groups_whose_rows_were_let_go_are_told_apart(table: Table) -> None:
    leases = table.lease(2)
    table.append("a", leases)
    ids = [group_id(lease) for lease in leases]
    assert table.store.kept([ids[1], digest("group", "x"), ids[0]]) == [ids[1], ids[0]]


def test_a_run_below_a_folder_with_an_equals_sign_is_read_as_it_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Readers of Parquet take `key=value` in a path for a column."""
    table = Table(tmp_path_factory.mktemp("x") / "reward=7" / "run")
    (lease,) = table.lease()
    rows = table.append("a", [lease])
    assert table.store.groups([group_id(lease)])[0].rows == tuple(rows)
    assert table.ask("select count(*) as n, sum(reward) as r from experiences") == [{"n": 2, "r": 1.0}]
    table.close()
