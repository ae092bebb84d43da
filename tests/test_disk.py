"""What is written to a disk is there whole or not at all."""

from pathlib import Path

import pytest

from rft_core.disk import file_sha256, folder_written_whole, leftovers, remove_leftovers, temporary, temporary_folder, write_whole
from rft_core.errors import UserError
from tests.disks import full_disk


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.json"
    write_whole(path, "first")
    write_whole(path, b"second \xff")
    assert path.read_bytes() == b"second \xff"
    assert names(path.parent) == {"summary.json"}


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        path = disk.folder / "summary.json"
        write_whole(path, "old")
        with pytest.raises(UserError) as raised:
            write_whole(path, b"x" * 2_000_000)
        found = str(raised.value)
        assert found.startswith(f"can't write below {disk.folder} ({disk.message}), ")
        assert "MB are free there; make room, or let this user write there, then run the same command again" in found
        assert path.read_text() == "old"
        assert names(disk.folder) <= {"summary.json", "ballast"}
        disk.make_room()
        write_whole(path, b"x" * 2_000_000)
        assert path.stat().st_size == 2_000_000


def test_a_place_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"can't write below .*file/deeper \(Not a directory\)"):
        write_whole(tmp_path / "file" / "deeper" / "summary.json", "x")


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "weights" / "v000001"

    def fail_halfway() -> None:
        with folder_written_whole(target) as folder:
            (folder / "a").write_text("torn")
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail_halfway()
    assert names(tmp_path) == {"weights"}
    for content in ("first", "second"):
        with folder_written_whole(target) as folder:
            assert not target.exists() or (target / "a").read_text() == "first"
            (folder / "deeper").mkdir()
            (folder / "deeper" / "b").write_text(content)
            (folder / "a").write_text(content)
    assert names(tmp_path) == {"weights", "v000001", "a", "deeper", "b"}
    assert (target / "a").read_text() == "second"


def test_a_temporary_folder_is_there_while_it_is_needed_and_known_as_a_leftover(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="halfway"), temporary_folder(tmp_path / "deeper" / "saving") as folder:  # noqa: PT012
        (folder / "model").write_text("torn")
        assert leftovers(tmp_path / "deeper") == [folder]
        raise ValueError("halfway")
    assert names(tmp_path) == {"deeper"}


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    (Path(temporary(str(tmp_path / ".v000001"))) / "inside").mkdir(parents=True)
    Path(temporary(str(tmp_path / "a.parquet"))).write_text("")
    (tmp_path / "a.parquet").write_text("")
    (tmp_path / "notes.tmp-mine").write_text("")
    (tmp_path / "v000002").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == {"a.parquet", "notes.tmp-mine", "v000002"}
    remove_leftovers(tmp_path / "nowhere")


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
