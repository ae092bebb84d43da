"""Where things of a run are, and that what is written is whole or not there."""

import json
from pathlib import Path

import pytest

from rft_core.errors import RunError
from rft_core.run_dir import RunDir, find_run


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
