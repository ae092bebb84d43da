"""Segments and overlays on a real disk: written once, whole or not at all, verified when they are read."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rft_core.buffer import ExperienceStore, Shaped, read_answers
from rft_core.errors import LostClaimError, SegmentError, TidemillError, UserError
from rft_core.run_dir import file_sha256
from tests.buffer.table import Table, group_id, row
from tests.disks import full_disk


def shaped(experience_id: str, reward: float | None, dropped_by: str | None = None) -> Shaped:
    return Shaped(experience_id, reward, dropped_by, f"{dropped_by} says so" if dropped_by else None)


def test_groups_come_back_as_they_were_in_the_order_asked_for(table: Table) -> None:
    leases = table.lease(3)
    rows = table.append("a", leases[:2]) + table.append("b", leases[2:])
    wanted = [group_id(leases[index]) for index in (2, 0, 1)]
    found = table.store.groups(wanted)
    assert [group.group_id for group in found] == wanted
    assert [list(group.rows) for group in found] == [rows[4:], rows[:2], rows[2:4]]
    assert all(group.shaped == {} for group in found)
    assert table.store.groups([]) == []


def test_the_turns_of_an_attempt_stay_together(table: Table) -> None:
    (lease,) = table.lease()
    rows = [row(lease, attempt, turn) for attempt in range(2) for turn in range(3)]
    table.store.append("a", rows, "e", 1)
    assert table.store.groups([group_id(lease)])[0].rows == tuple(rows)
    columns, groups = table.catalog.relation("groups")
    assert groups[0][list(columns).index("size")] == 2


def test_rows_of_groups_that_are_mixed_up_are_grouped(table: Table) -> None:
    """SkyRL PR #1281: A1, B1, A2, B2."""
    leases = table.lease(2)
    mixed = [row(lease, attempt) for attempt in range(2) for lease in leases]
    table.store.append("a", mixed, "e", 1)
    found = table.store.groups([group_id(lease) for lease in leases])
    assert [[(one.lease_id, one.attempt) for one in group.rows] for group in found] == [
        [(lease.lease_id, 0), (lease.lease_id, 1)] for lease in leases
    ]


def test_a_second_append_of_the_same_key_changes_nothing(table: Table) -> None:
    leases = table.lease(1)
    rows = table.append("a", leases)
    before = table.store.append("a", rows, "explorer", 1)
    assert table.store.append("a", [row(leases[0], reward=0.125)], "another", 1) == before
    assert table.files("segments") == {before.uri}
    assert [one.reward for one in table.store.groups([group_id(leases[0])])[0].rows] == [1.0, 0.0]
    assert table.catalog.leases.fates() == {"ready": 1}


@pytest.mark.parametrize(
    ("rewards", "changes", "fate"),
    [
        ((1.0, None), {}, "ready"),
        ((None, None), {}, "pending"),
        ((None, None), {"error": "RewardError: no"}, "failed"),
        ((None, None), {"error": "DeadlineError: late"}, "timed_out"),
    ],
)
def test_the_status_of_a_group_follows_from_its_rows(
    rewards: tuple[float | None, ...], changes: dict[str, str], fate: str, table: Table
) -> None:
    table.append("a", table.lease(), rewards, **changes)
    assert table.catalog.leases.fates() == {fate: 1}


def test_a_group_that_failed_in_two_ways_failed(table: Table) -> None:
    (lease,) = table.lease()
    errors = ("DeadlineError: late", "RewardError: no")
    table.store.append("a", [row(lease, index, reward=None, error=error) for index, error in enumerate(errors)], "e", 1)
    assert table.catalog.leases.fates() == {"failed": 1}


def test_a_run_without_rewards_waits_for_none(table: Table) -> None:
    (lease,) = table.lease()
    ExperienceStore(table.run_dir, table.catalog, awaits_rewards=False).append("a", [row(lease, reward=None)], "e", 1)
    assert table.catalog.leases.fates() == {"ready": 1}


def test_a_rejected_rollout_is_kept_and_never_trained(table: Table) -> None:
    leases = table.lease(2)
    rows = [row(lease) for lease in leases]
    table.store.append("a", rows, "e", 1, rejected="9 of 10 attempts failed")
    assert table.catalog.leases.fates() == {"failed": 2}
    assert table.catalog.claims.ready() == []
    assert len(table.ask("select * from experiences where fate = 'failed'")) == 2
    assert [group.rows for group in table.store.groups([group_id(lease) for lease in leases])] == [(one,) for one in rows]


def test_the_oldest_version_of_a_group_counts(table: Table) -> None:
    (lease,) = table.lease()
    table.store.append("a", [row(lease, index, policy_version=version) for index, version in enumerate((5, 3, 4))], "e", 1)
    assert [group.lowest_version for group in table.catalog.claims.ready()] == [3]


def test_rows_that_cannot_be_right_leave_nothing(table: Table) -> None:
    (lease,) = table.lease()
    with pytest.raises(TidemillError, match="its reward is nan"):
        table.store.append("a", [row(lease), row(lease, 1, reward=float("nan"))], "e", 1)
    assert table.files("segments") == set()
    assert table.catalog.segments.intended_uris() == []
    table.append("a", [lease])


def close_leases(table: Table) -> None:
    table.catalog.leases.expire_open("dead")


def sweep(table: Table) -> None:
    table.store.sweep()


@pytest.mark.parametrize("meanwhile", [close_leases, sweep])
def test_a_writer_that_lost_its_leases_leaves_nothing(meanwhile: Callable[[Table], None], table: Table) -> None:
    """Somebody takes over between the announcement of a file and its commit."""
    (lease,) = table.lease()
    intend = table.catalog.segments.intend

    def intend_and_lose(key: str, uri: str) -> None:
        intend(key, uri)
        meanwhile(table)

    table.catalog.segments.intend = intend_and_lose  # type: ignore[method-assign]
    with pytest.raises(LostClaimError):
        table.store.append("a", [row(lease)], "slow", 1)
    assert table.catalog.claims.ready() == []
    assert table.catalog.segments.files() == []
    assert table.files("segments") == set()


def test_what_killed_writers_left_is_swept(table: Table) -> None:
    table.append("a", table.lease())
    table.store.overlay("p", "a", [shaped("e", 1.0)], [], {})
    kept = table.files("segments") | table.files("overlays")
    # Killed after the intent, before the commit; while it wrote; and between an overlay's file and its commit.
    table.catalog.segments.intend("b", "segments/b-1.parquet")
    for orphan in ("segments/b-1.parquet", "segments/c.parquet.tmp-12", "overlays/p-a-2.parquet", "overlays/x.parquet.tmp-3"):
        table.run_dir.resolve(orphan).write_bytes(b"")
    for _ in range(2):
        table.store.sweep()
        assert table.files("segments") | table.files("overlays") == kept
    assert table.catalog.segments.intended_uris() == []


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path) -> None:
    path.unlink()


DAMAGES = [flip, truncate, empty, delete]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_is_named(damage: Callable[[Path], None], table: Table) -> None:
    leases = table.lease(2)
    table.append("a", leases[:1])
    table.append("b", leases[1:])
    path = table.segment_file("a")
    damage(path)
    with pytest.raises(SegmentError) as raised:
        table.store.groups([group_id(lease) for lease in leases])
    assert str(raised.value).startswith(f"{path} ")
    assert "restore it from a copy" in str(raised.value)
    assert len(table.store.groups([group_id(leases[1])])) == 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_overlay_is_named(damage: Callable[[Path], None], table: Table) -> None:
    (lease,) = table.lease()
    table.append("a", [lease])
    table.store.overlay("p", "a", [shaped("e", 1.0)], [], {})
    (uri,) = table.files("overlays")
    damage(table.run_dir.resolve(uri))
    with pytest.raises(SegmentError, match=Path(uri).name):
        table.store.groups([group_id(lease)], "p")
    assert len(table.store.groups([group_id(lease)])) == 1


def test_a_segment_of_a_newer_version_is_refused(table: Table) -> None:
    (lease,) = table.lease()
    table.append("a", [lease])
    path = table.segment_file("a")
    newer = pq.read_table(path).replace_schema_metadata({"tidemill.schema": "2"})
    pq.write_table(newer, path)
    with table.catalog._database.write() as connection:
        connection.exec_driver_sql("update segments set sha256 = ?", (file_sha256(path),))
    with pytest.raises(SegmentError, match=r"segments/a-.*\.parquet has columns of version 2, this code has 1; upgrade tidemill"):
        table.store.groups([group_id(lease)])


def test_an_overlay_comes_back_beside_the_facts(table: Table) -> None:
    leases = table.lease(2)
    rows = table.append("a", leases)
    ids = [one.experience_id for one in rows]
    laid = [shaped(ids[0], 0.5), shaped(ids[1], None, "drop_truncated"), shaped(ids[2], 1.0, "op"), shaped(ids[3], 0.0, "op")]
    table.store.overlay("p", "a", laid, [{"name": "op", "dropped": {"op says so": 2}}], {group_id(leases[1]): "op: op says so"})
    found = table.store.groups([group_id(lease) for lease in leases], "p")
    assert [dict(group.shaped) for group in found] == [{one.experience_id: one for one in part} for part in (laid[:2], laid[2:])]
    assert [one.reward for group in found for one in group.rows] == [1.0, 0.0, 1.0, 0.0]
    assert [group.shaped for group in table.store.groups([group_id(leases[0])], "other")] == [{}]
    assert table.catalog.leases.of_step(1) == {0: "ready", 1: "dropped"}


def test_a_second_overlay_of_the_same_key_changes_nothing(table: Table) -> None:
    (lease,) = table.lease()
    rows = table.append("a", [lease])
    table.store.overlay("p", "a", [shaped(one.experience_id, 0.5) for one in rows], [], {})
    files = table.files("overlays")
    table.store.overlay("p", "a", [shaped(one.experience_id, 9.0) for one in rows], [], {group_id(lease): "op: why"})
    assert table.files("overlays") == files
    assert {one.shaped_reward for one in table.store.groups([group_id(lease)], "p")[0].shaped.values()} == {0.5}
    assert table.catalog.leases.of_step(1) == {0: "ready"}


def test_one_table_can_be_shaped_by_several_pipelines(table: Table) -> None:
    (lease,) = table.lease()
    rows = table.append("a", [lease])
    for pipeline, reward in (("p", 0.5), ("q", 0.25)):
        table.store.overlay(pipeline, "a", [shaped(one.experience_id, reward) for one in rows], [], {})
    for pipeline, reward in (("p", 0.5), ("q", 0.25)):
        found = table.store.groups([group_id(lease)], pipeline)[0].shaped
        assert {one.shaped_reward for one in found.values()} == {reward}


def test_a_full_disk_is_one_line_and_the_retry_works(tmp_path: Path) -> None:
    """No space while a segment is written: no torn file, and the same append succeeds once there is room."""
    with full_disk(tmp_path / "disk") as disk:
        table = Table(tmp_path / "run")
        (disk.folder / "segments").mkdir()
        (table.run_dir.root / "segments").symlink_to(disk.folder / "segments")
        (lease,) = table.lease()
        noise = random.Random(0).randbytes(1_500_000).hex()
        big = [row(lease, attempt, response_text=noise[attempt * 700_000 :][:700_000]) for attempt in range(4)]
        with pytest.raises(UserError) as raised:
            table.store.append("a", big, "e", 1)
        said = str(raised.value)
        assert said.startswith(f"can't write below {table.run_dir.root / 'segments'} ({disk.message}), ")
        assert "\n" not in said
        assert table.files("segments") == set()
        assert table.catalog.segments.files() == []
        assert table.catalog.leases.open(1) == [lease]
        disk.make_room()
        table.store.append("a", big, "e", 1)
        assert table.store.groups([group_id(lease)])[0].rows == tuple(big)
        assert table.catalog.segments.intended_uris() == []
        table.close()


def test_answers_come_back(table: Table) -> None:
    rows = [{"version": 3, "task_id": "t", "response_text": "\ud800 4", "answer": None, "reward": 0.5, "exact": False, "error": None}]
    uri = table.store.write_answers("held_out-v000003", rows)
    (found,) = read_answers(table.run_dir, uri)
    assert found["response_text"] == "\\ud800 4"
    assert (found["version"], found["reward"], found["exact"], found["prompt_text"]) == (3, 0.5, False, None)
    # Scored again after a kill: the newer file takes its place.
    assert table.store.write_answers("held_out-v000003", [{**rows[0], "reward": 1.0}]) == uri
    assert read_answers(table.run_dir, uri)[0]["reward"] == 1.0
    table.run_dir.resolve(uri).unlink()
    with pytest.raises(SegmentError, match="held_out-v000003.parquet is missing"):
        read_answers(table.run_dir, uri)


def test_a_run_below_a_folder_with_an_equals_sign_is_read_as_it_is(tmp_path: Path) -> None:
    """Readers of Parquet take `key=value` in a path for a column."""
    table = Table(tmp_path / "seed=1" / "run")
    (lease,) = table.lease()
    rows = table.append("a", [lease])
    assert table.store.groups([group_id(lease)])[0].rows == tuple(rows)
    assert table.ask("select count(*) as n from experiences") == [{"n": 2}]
    table.close()
