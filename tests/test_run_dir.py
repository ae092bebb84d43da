"""Where things of a run are, and that what is written is whole or not there."""

import json
from pathlib import Path

import pytest

from rft_core.errors import RunError, UserError
from rft_core.run_dir import RunDir, file_sha256, find_run, folder_written_whole, remove_leftovers, write_whole
from tests.disks import full_disk


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_new_run_gets_an_id_and_keeps_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "deep" / "run")
    run_dir.create()
    first = run_dir.run_id
    run_dir.create()
    assert run_dir.run_id == first
    other = RunDir(tmp_path / "other")
    other.create()
    assert other.run_id != first


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="holds thesis.tex but no run; name an empty or a new folder"):
        RunDir(tmp_path).create()
    assert names(tmp_path) == {"thesis.tex"}


def test_what_a_killed_creator_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "run.json.tmp-0000").write_text("{")
    (tmp_path / "run.lock").write_text("")
    RunDir(tmp_path).create()
    assert len(RunDir(tmp_path).run_id) == 32


def test_a_run_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"the run folder .*file/run can't be made \(Not a directory\); name a folder that can"):
        RunDir(tmp_path / "file" / "run").create()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "x", "format": 2}))
    for ask in (RunDir(tmp_path).create, lambda: RunDir(tmp_path).run_id):
        with pytest.raises(RunError, match="has format 2, newer than this code's 1; upgrade tidemill"):
            ask()


@pytest.mark.parametrize("content", ["{", "[]", "{}", "", "\0"])
def test_a_damaged_identity_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError, match="is not a run; a run folder holds run.json"):
        assert RunDir(tmp_path).run_id


def test_uris_are_relative_so_that_a_run_can_be_moved(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    uri = run_dir.relative(run_dir.version(12) / "model.safetensors")
    assert uri == "weights/v000012/model.safetensors"
    assert RunDir(tmp_path / "moved").resolve(uri) == tmp_path / "moved" / "weights" / "v000012" / "model.safetensors"
    assert run_dir.relative(run_dir.checkpoint(5)) == "checkpoints/000005"


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    RunDir(tmp_path / "runs" / "mine").create()
    assert find_run("mine", tmp_path / "runs").root == tmp_path / "runs" / "mine"
    assert find_run(str(tmp_path / "runs" / "mine"), Path("elsewhere")).root == tmp_path / "runs" / "mine"
    with pytest.raises(RunError, match=r"there is no run other here or under .*runs/; known runs: mine"):
        find_run("other", tmp_path / "runs")
    with pytest.raises(RunError, match="known runs: none"):
        find_run("other", tmp_path / "nowhere")


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


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    for name in (".v000001.tmp-12ab", ".saving.tmp-xy"):
        (tmp_path / name / "inside").mkdir(parents=True)
    (tmp_path / "a.parquet.tmp-12ab").write_text("")
    (tmp_path / "a.parquet").write_text("")
    (tmp_path / "v000002").mkdir()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == {"a.parquet", "v000002"}
    remove_leftovers(tmp_path / "nowhere")


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
