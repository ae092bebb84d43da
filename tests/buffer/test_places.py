"""The same table in other places: files in an object store or in memory, the catalog in PostgreSQL."""

from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from rft_core.buffer import Questions
from rft_core.errors import LostClaimError, SegmentError
from tests.buffer.compacting import everything, fill, squeeze
from tests.buffer.selection.choices import build
from tests.buffer.table import Table, append_each, group_id, row
from tests.servers import Bucket

Make = Callable[..., Table]


def files_of(table: Table) -> set[str]:
    return set(table.storage.files())


def check_all(table: Table, other: Table) -> None:
    """Append, ask, label, shape, train, compact, let go and sweep; `other` is the same table as another process holds it."""
    claims = fill(table)
    assert other.store.groups(claims[0].group_ids, "p") == table.store.groups(claims[0].group_ids, "p")
    before = everything(table)
    assert everything(other) == before
    pinned = table.catalog.history.pin("paper")
    appended = files_of(table)
    done = squeeze(other)
    assert (done.merged, done.made, done.deleted, done.damaged) == (9, 2, 0, [])
    assert everything(table) == everything(other) == before
    assert table.ask("select count(*) as n from experiences", at=pinned) == [{"n": 12}]
    table.catalog.history.unpin("paper")
    assert squeeze(table).deleted == 9
    assert len(files_of(table)) == 2
    assert not files_of(table) & appended
    assert everything(table) == before
    check_sweep(table, other)
    check_damage(table)


def check_sweep(table: Table, other: Table) -> None:
    """A killed writer's file is removed, and what another one writes is not."""
    whole = files_of(table)
    table.catalog.segments.intend("b", "segments/b-1.parquet", table.store.terms.writer)
    table.storage.write("segments/b-1.parquet", b"torn")
    table.catalog.segments.intend("c", "segments/c-1.parquet", "explorer-7")
    table.storage.write("segments/c-1.parquet", b"torn")
    other.store.sweep()
    assert files_of(table) - whole == {"segments/c-1.parquet"}
    (lease,) = table.lease(1, step=30)
    intend = table.catalog.segments.find_or_intend

    def lose(key: str, uri: str, writer: str) -> None:
        intend(key, uri, writer)
        other.store.sweep()

    table.catalog.segments.find_or_intend = lose  # type: ignore[method-assign]
    with pytest.raises(LostClaimError):
        table.store.append("lost", [row(lease)], "e", 30)
    table.catalog.segments.find_or_intend = intend  # type: ignore[method-assign]
    assert files_of(table) - whole == {"segments/c-1.parquet"}
    table.store.append("lost", [row(lease)], "e", 30)


def check_damage(table: Table) -> None:
    (lease,) = append_each(table, "torn", [(1, 0)], step=40)
    file = table.catalog.segments.find("torn")
    assert file is not None
    content = bytes(table.storage.read(file.uri))
    table.storage.write(file.uri, content[:-1])
    with pytest.raises(SegmentError, match=f"^{file.uri} of {table.storage.url} has {file.bytes - 1} bytes, {file.bytes} were written"):
        table.store.groups([group_id(lease)])
    questions = Questions(table.storage, table.catalog, "p")
    assert questions.ask("select count(*) as n from experiences").to_pylist() == [{"n": 13}]
    assert questions.damaged == {file.uri: f"has {file.bytes - 1} bytes, {file.bytes} were written"}
    table.storage.delete(file.uri)
    questions = Questions(table.storage, table.catalog, "p")
    assert questions.ask("select count(*) as n from experiences").to_pylist() == [{"n": 13}]
    assert questions.damaged == {file.uri: "is missing"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Table] = []

    def make_one(**places: Any) -> Table:
        made.append(Table(tmp_path / "run", pipeline="p", **places))
        return made[-1]

    yield make_one
    for table in made:
        table.close()


def test_files_in_memory(make: Make) -> None:
    places = {"files": f"memory://{token_hex(4)}"}
    check_all(make(**places), make(**places))


def test_files_in_an_object_store_and_the_catalog_in_postgresql(make: Make, s3_bucket: Bucket, postgres_url: str) -> None:
    places = {"url": postgres_url, "files": s3_bucket.url, "options": s3_bucket.options}
    check_all(make(**places), make(**places))


def test_files_in_a_folder_and_the_catalog_in_postgresql(make: Make, postgres_url: str) -> None:
    """Selections that walk in every way, and leave their walk early, within PostgreSQL's transactions."""
    table = make(url=postgres_url)
    generation = table.take_over()
    for step in range(1, 9):
        append_each(table, f"step-{step}", [(1, 0.1 * step), (1, 0)], step, policy_version=step)
    table.shape()
    taken: set[str] = set()
    for step, name in enumerate(("oldest_first", "freshest_first", "priority", "expert_mix"), start=10):
        args = {"expert_frac": 0.0} if name == "expert_mix" else {}
        claim = table.choose(step, build(name, **args), generation, count=2, where="reward > 0.5")
        assert len(claim.group_ids) == 2
        assert not taken & set(claim.group_ids)
        taken |= set(claim.group_ids)
        table.commit(claim, generation)
    assert table.catalog.leases.fates() == {"trained": 8, "ready": 8}
