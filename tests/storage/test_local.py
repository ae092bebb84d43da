"""Files in a folder: nothing torn is ever seen or left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rft_core.errors import UserError
from rft_core.storage import open_storage
from tests.disks import full_disk

ROOT = Path(__file__).parents[2]
KILLED_WRITER = """
import resource, signal, sys
from rft_core.storage import open_storage
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # a write beyond the limit ends the process
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
open_storage(sys.argv[1]).write(sys.argv[2], b"x" * 1_000_000)
"""


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, if this is root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_killed_writer_leaves_a_leftover_and_no_file(scheme: str, tmp_path: Path) -> None:
    storage = open_storage(f"{scheme}://{tmp_path}")
    storage.write("segments/whole", b"x")
    done = subprocess.run([sys.executable, "-c", KILLED_WRITER, storage.url, "segments/ü torn"], cwd=ROOT)
    assert done.returncode == -signal.SIGXFSZ
    assert set(storage.files("segments")) == {"segments/whole"}
    assert storage.size("segments/ü torn") is None
    ((leftover, stat),) = storage.leftovers("segments").items()
    assert leftover.startswith("segments/ü torn.tmp-")
    assert stat.bytes == 100_000
    storage.delete(leftover)
    assert names(tmp_path) == {"whole"}


def test_what_lies_in_a_temporary_folder_is_a_leftover(tmp_path: Path) -> None:
    (tmp_path / "weights" / ".v000001.tmp-0123abcd").mkdir(parents=True)
    (tmp_path / "weights" / ".v000001.tmp-0123abcd" / "model.safetensors").write_bytes(b"x")
    storage = open_storage(tmp_path)
    assert storage.files() == {}
    assert set(storage.leftovers()) == {"weights/.v000001.tmp-0123abcd/model.safetensors"}


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        storage = open_storage(disk.folder / "run")
        storage.write("segments/a", b"old")
        for uri in ("segments/a", "segments/b"):
            with pytest.raises(UserError) as raised:
                storage.write(uri, b"x" * 2_000_000)
            found = str(raised.value)
            assert found.startswith(f"can't write below {disk.folder}/run/segments ({disk.message}), ")
            assert found.endswith(" MB are free there; make room, or let this user write there, then run the same command again")
            assert "\n" not in found
        assert storage.read("segments/a").to_pybytes() == b"old"
        assert names(disk.folder / "run") == {"a"}
        disk.make_room()
        storage.write("segments/b", b"x" * 2_000_000)
        assert storage.size("segments/b") == 2_000_000


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    storage = open_storage(tmp_path)
    storage.write("segments/a", b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        storage.write("segments/a", b"new")
    assert names(tmp_path) == {"a"}
    assert storage.read("segments/a").to_pybytes() == b"old"


def test_a_folder_that_this_user_may_not_enter_is_one_line(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "run")
    storage.write("segments/a", b"x")
    (tmp_path / "run" / "segments").chmod(0)
    try:
        with nobody():
            with pytest.raises(UserError, match=r"can't write below .*/segments \(Permission denied\), \d+ MB are free there; make room"):
                storage.write("segments/b", b"x")
            for doing, use in {"read": storage.read, "look at": storage.size, "delete": storage.delete}.items():
                with pytest.raises(UserError, match=rf"can't {doing} .*/segments/a \(Permission denied\); let this user do that"):
                    use("segments/a")
            with pytest.raises(UserError, match=r"can't list .*/segments \(Permission denied\)"):
                storage.files("segments")
    finally:
        (tmp_path / "run" / "segments").chmod(0o700)
    assert names(tmp_path) == {"a"}


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    storage.write("file", b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"can't write below .*/file/deeper \(Not a directory\)"):
        storage.write("file/deeper/b", b"x")
    with pytest.raises(UserError, match=r"can't read .*/folder \(Is a directory\)"):
        storage.read("folder")
    with pytest.raises(UserError, match=r"can't write below .* \(Is a directory\)"):
        storage.write("folder", b"x")
    assert names(tmp_path) == {"file"}


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't write below .*/segments \(File name too long\)"):
        open_storage(tmp_path).write(f"segments/{'ü' * 125}", b"x")
    assert names(tmp_path) == set()


def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "new" / "run")
    assert storage.files() == storage.leftovers() == {}
    assert storage.size("a") is None
    assert list(tmp_path.iterdir()) == []


def test_a_relative_folder_is_found_from_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("runs/ü 1")
    storage.write("segments/a", b"x")
    assert storage.url == "runs/ü 1"
    assert storage.dataset_source()[1] == str(tmp_path / "runs" / "ü 1")
