"""Catalogs of older schemas: brought to the present one whole or not at all, with every fate as it was."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection

from rft_core.catalog import RELATIONS, Catalog, Label, StoredFile, migrations, schema
from tests.catalog.conftest import Place
from tests.catalog.ledger import candidates, claim, lease, rows, take_over, waiting

SCHEMA_1 = Path(__file__).with_name("schema_1.sql")
"""What the first released schema held of a run: step 1 is trained, step 2 claimed, step 3 shaped, and two leases are in flight."""


@pytest.fixture
def old(sqlite_place: Place) -> Place:
    """Where a catalog of schema 1 is."""
    with sqlite3.connect(file_of(sqlite_place)) as connection:
        connection.executescript(SCHEMA_1.read_text(encoding="utf-8"))
    return sqlite_place


def file_of(place: Place) -> Path:
    return Path(place.url.removeprefix("sqlite:///"))


def dump(place: Place) -> list[str]:
    with sqlite3.connect(file_of(place)) as connection:
        return list(connection.iterdump())


def differences(catalog: Catalog) -> list[object]:
    """In what a catalog's tables, columns, indexes and keys are not what the schema says."""
    with catalog._database.read() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), schema.metadata))


def form(place: Place) -> dict[str, object]:
    """Every table with its columns, and the text of every index and view."""
    with sqlite3.connect(file_of(place)) as connection:
        columns = (
            'select m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk '
            "from sqlite_master m, pragma_table_info(m.name) c where m.type = 'table'"
        )
        others = "select name, sql from sqlite_master where type <> 'table' and sql is not null"
        return {"columns": set(connection.execute(columns)), "others": set(connection.execute(others))}


def test_the_tables_are_those_of_a_new_catalog(old: Place, tmp_path: Path) -> None:
    catalog = old.open()
    assert differences(catalog) == []
    for name, columns in RELATIONS.items():
        found, held = catalog.relation(name)
        assert found == columns
        assert all(len(row) == len(columns) for row in held)
    assert {row["key"]: row["value"] for row in rows(catalog, "meta")} == {"schema_version": schema.VERSION, "sequence": 6}
    catalog.close()
    new = Place(f"sqlite:///{tmp_path / 'new.db'}")
    new.open().close()
    assert form(old) == form(new)


def test_a_new_catalog_has_what_the_schema_says(catalog: Catalog) -> None:
    assert differences(catalog) == []


def test_fates_and_their_sums_stay_as_they_were(old: Place) -> None:
    with sqlite3.connect(file_of(old)) as connection:
        before = connection.execute("select lease_id, group_id, trained_step, fate, reason from fates order by lease_id").fetchall()
    catalog = old.open()
    fates = rows(catalog, "fates", "lease_id")
    assert [tuple(row[name] for name in ("lease_id", "group_id", "trained_step", "fate", "reason")) for row in fates] == before
    assert catalog.leases.fates() == {"dropped": 3, "in_flight": 2, "ready": 4, "trained": 2}
    assert sum(catalog.leases.fates().values()) == catalog.leases.num_issued() == 11
    assert catalog.audit.breaches("pipe") == []
    catalog.close()


def test_claimed_groups_keep_their_claims_and_wait_for_nothing(old: Place) -> None:
    catalog = old.open()
    first, second = catalog.claims.find(1), catalog.claims.find(2)
    assert first is not None
    assert second is not None
    assert (first.snapshot, first.left_out) == ({"sequence": 2, "pipeline": "pipe", "staleness": 0}, {})
    assert second.snapshot == {"sequence": 4, "pipeline": "pipe", "staleness": 0}
    groups = {row["group_id"]: row for row in rows(catalog, "groups")}
    for made in (first, second):
        taken = [groups[group_id] for group_id in made.group_ids]
        assert [(row["queue"], row["claimed_step"], row["uses"]) for row in taken] == [(None, made.step, 1)] * 2
    ready = [row["group_id"] for row in rows(catalog, "groups", "slot") if row["step"] == 3 and row["status"] == "ready"]
    assert waiting(catalog) == ready
    assert {(one.source, one.priority, one.uses, one.again_from) for one in candidates(catalog)} == {("policy", 0.0, 0, 0)}
    assert claim(catalog, 3, take_over(catalog)).group_ids == tuple(ready)
    catalog.close()


def test_overlays_lie_over_the_groups_of_their_segments(old: Place) -> None:
    catalog = old.open()
    groups = rows(catalog, "groups", "step", "slot")
    over = catalog.segments.overlays_of("pipe", [row["group_id"] for row in groups])
    with sqlite3.connect(":memory:") as connection:
        connection.executescript(SCHEMA_1.read_text(encoding="utf-8"))
        was = {row[0]: StoredFile(*row[1:]) for row in connection.execute("select segment, uri, rows, 0, sha256 from overlays")}
    assert {row["group_id"]: was[row["segment"]] for row in groups} == over
    assert [key for key, _, _ in catalog.segments.overlay_files("pipe")] == [f"pipe-step-00000{step}-0000-0" for step in (1, 2, 3)]
    assert [row["origin"] for row in groups] == [row["segment"] for row in groups]
    catalog.close()


def test_what_was_in_flight_is_issued_again(old: Place) -> None:
    catalog = old.open()
    assert [(one.slot, one.position, one.epoch) for one in lease(catalog, 3, 1)] == [(3, 9, 1), (4, 10, 1), (5, 11, 0)]
    catalog.leases.bind("fingerprint")
    catalog.close()


def test_everything_else_is_as_it_was(old: Place) -> None:
    catalog = old.open()
    assert [row.step for row in catalog.claims.steps()] == [1]
    assert [(known.version, known.uri) for known in catalog.versions.all()] == [(1, None)]
    (scored,) = catalog.versions.evaluations("held_out")
    assert (scored.quality, scored.sha256) == (1.0, None)
    assert catalog.trainers.holder() is None
    assert catalog.segments.totals()["segments"] == 3
    assert len(catalog.history.segments()) == 3
    catalog.close()


def test_what_waited_for_rewards_still_does_and_what_was_announced_can_be_swept(old: Place) -> None:
    with sqlite3.connect(file_of(old)) as connection:
        connection.execute("update groups set status = 'pending' where step = 3 and slot = 0")
        connection.execute("insert into intents values ('step-000003-0001-0', 'segments/torn.parquet', 1.0)")
        (group_id,) = connection.execute("select group_id from groups where status = 'pending'").fetchone()
    catalog = old.open()
    assert catalog.segments.sweep("explorer-0") == ["segments/torn.parquet"]
    assert catalog.labels.settle("drop", "training") == (0, 0)
    # Which attempts it waits for was not written down then: the first label completes it.
    assert catalog.labels.add([Label("a", "e-1", group_id, "reward", 1.0, "ada")], "shaping").completed == (group_id,)
    catalog.close()


def test_a_ready_group_that_was_not_shaped_yet_waits_for_that(old: Place) -> None:
    with sqlite3.connect(file_of(old)) as connection:
        connection.execute("delete from overlays where segment = 'step-000003-0000-0'")
    catalog = old.open()
    assert {key: len(ids) for key, ids in catalog.segments.to_shape().items()} == {"step-000003-0000-0": 2}
    assert waiting(catalog) == []
    catalog.close()


def test_a_migration_that_fails_half_way_changes_nothing(old: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dump(old)

    def fail_half_way(connection: Connection, operations: Operations) -> None:
        migrations._from_1(connection, operations)
        raise KeyboardInterrupt

    monkeypatch.setitem(migrations.MIGRATIONS, 1, fail_half_way)
    with pytest.raises(KeyboardInterrupt):
        old.open()
    assert dump(old) == before
    monkeypatch.undo()
    old.open().close()
    assert dump(old) != before


def test_a_migrated_catalog_opens_again_as_it_is(old: Place) -> None:
    old.open().close()
    before = dump(old)
    old.open().close()
    assert dump(old) == before


def test_there_is_a_way_from_every_older_version() -> None:
    assert sorted(migrations.MIGRATIONS) == list(range(1, schema.VERSION))
