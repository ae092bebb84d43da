"""Where a recipe says that a table lives."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rft_core.buffer import check_places, is_there, open_catalog, open_files, open_table
from rft_core.config import TableConfig, parse
from rft_core.errors import ConfigError, RunError, UserError
from rft_core.run_dir import RunDir
from tests.tiny_files import recipe

S3 = "s3://bucket/runs"
POSTGRES = "postgresql://ada@db.example/runs"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def test_by_default_in_the_folder_of_the_run(run_dir: RunDir, tmp_path: Path, tiny_shape: Path) -> None:
    config = parse(recipe(tmp_path, tiny_shape, labels__await_each=True, labels__deadline_s=60, selection__name="priority"))
    assert not is_there(run_dir, config.table)
    table = open_table(run_dir, config, "p", "explorer-3")
    assert is_there(run_dir, config.table)
    assert (table.catalog.place, table.storage.url) == (str(run_dir.catalog_file), str(run_dir.root))
    terms = table.store.terms
    assert (terms.writer, terms.pipeline, terms.awaits_rewards, terms.awaits_each, terms.deadline_s) == ("explorer-3", "p", True, True, 60)
    assert terms.score([1.0, 0.0]) == 0.5
    table.catalog.close()


def test_where_it_cannot_be_opened_no_catalog_is_left_open(run_dir: RunDir, tmp_path: Path, tiny_shape: Path) -> None:
    for wrong, said in (({"table__files": "nowhere://x"}, "nowhere"), ({"selection__name": "nobody"}, "nobody")):
        config = parse(recipe(tmp_path, tiny_shape, **wrong))
        with pytest.raises(UserError, match=said):
            open_table(run_dir, config, None, "explorer-0")
        assert not is_there(run_dir, config.table)


def test_a_recipe_without_rewards_waits_for_none(run_dir: RunDir, tmp_path: Path, tiny_shape: Path) -> None:
    config = parse(recipe(tmp_path, tiny_shape, rewards=[], operators=[]))
    table = open_table(run_dir, config, None, "explorer-0")
    assert not table.store.terms.awaits_rewards
    assert table.store.terms.ready_for == "training"
    table.catalog.close()


def test_each_run_has_a_place_of_its_own_under_a_shared_one(run_dir: RunDir, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert open_files(run_dir, TableConfig(files=f"{shared}/")).url == f"{shared}/{run_dir.run_id}"
    assert open_files(run_dir, TableConfig(files=f"file://{shared}")).url == f"{shared}/{run_dir.run_id}"
    assert open_files(run_dir, TableConfig(files="memory://shared")).url == f"memory://shared/{run_dir.run_id}"


def test_a_variable_that_is_not_set_is_named(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TableConfig(catalog="env:TIDEMILL_NOWHERE")
    for value in (None, ""):
        monkeypatch.delenv("TIDEMILL_NOWHERE", raising=False)
        if value is not None:
            monkeypatch.setenv("TIDEMILL_NOWHERE", value)
        with pytest.raises(
            ConfigError, match="^table.catalog: found 'env:TIDEMILL_NOWHERE'; the environment variable 'TIDEMILL_NOWHERE' must be set here"
        ):
            open_catalog(run_dir, config)


@pytest.mark.parametrize("url", ["sqlite:///{}/shared.db", "{}/shared.db", "mysql://ada:hunter2@{}/d"])
def test_what_a_variable_holds_must_be_postgresql_too(url: str, run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG", url.format(tmp_path))
    with pytest.raises(ConfigError, match="^table.catalog: found 'env:CATALOG'; it must be postgresql://USER:PASSWORD@HOST") as raised:
        open_catalog(run_dir, TableConfig(catalog="env:CATALOG"))
    assert "hunter2" not in str(raised.value)
    assert not (tmp_path / "shared.db").exists()


@pytest.mark.parametrize(
    "places",
    [
        {},
        {"files": "elsewhere/runs"},
        {"files": "file:///mnt/runs"},
        {"catalog": POSTGRES},
        {"catalog": "postgres://ada@db.example:5433/runs"},
        {"catalog": "postgresql://db.example/runs"},
        {"catalog": POSTGRES, "files": S3, "options": {"region": "eu-west-1", "endpoint_override": "http://minio:9000"}},
        {"catalog": POSTGRES, "files": S3, "options": {"access_key": "env:KEY", "secret_key": "env:NOT_SET_HERE"}},
        {"catalog": POSTGRES, "files": "sftp://ada@host/runs", "options": {"port": "2222", "password": "env:PASSWORD"}},
        {"catalog": "env:CATALOG", "files": S3},
    ],
)
def test_what_can_work_is_accepted_without_looking(places: dict[str, Any]) -> None:
    check_places(TableConfig(**places))


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"catalog": "mysql://ada:hunter2@h/d"}, "table.catalog: found 'mysql'; postgresql://USER@HOST/DATABASE"),
        ({"catalog": "runs.db"}, "table.catalog: found 'runs.db'; "),
        (
            {"catalog": "postgresql://ada:hunter2@h/d"},
            "table.catalog: found 'an address with a password in it'; .*put it in a variable, env:NAME",
        ),
        ({"catalog": "postgresql://ada@h/d?password=hunter2"}, "table.catalog: found 'an address with a password in it'; "),
        ({"files": S3}, f"table.files: found '{S3}'; files in an object store need table.catalog: a SQLite file serves one machine"),
        ({"files": "s3://ada:hunter2@bucket"}, "table.files: found 'the s3:// address of a storage holds a password'; "),
        ({"catalog": POSTGRES, "files": "s3://hunter2@bucket"}, "table.files: found 'the s3:// address of a storage holds an account'; "),
        ({"catalog": POSTGRES, "files": "abfs://c@a/x?sig=hunter2"}, "table.files: found 'the abfs:// address of a storage holds a "),
        ({"catalog": POSTGRES, "files": "s3:/bucket"}, "table.files: found 's3:/bucket is neither a path nor an address'; "),
        (
            {"catalog": POSTGRES, "files": S3, "options": {"region": "x", "secret_key": "hunter2"}},
            "table.files: found 'the storage option secret_key is written out, and may be a secret'; put it in a variable, env:NAME",
        ),
        (
            {"catalog": POSTGRES, "files": S3, "options": {"endpoint_override": "http://ada:hunter2@minio"}},
            "table.files: found 'the storage option endpoint_override is written out",
        ),
        ({"options": {"region": "x"}}, r"table.options: found \['region'\]; they are those of a store, and table.files names none"),
        ({"files": "runs", "options": {"region": "x"}}, "table.files: found 'the folder runs is given the option region'; "),
    ],
)
def test_what_cannot_work_is_refused_by_key_and_shows_no_secret(places: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}") as raised:
        check_places(TableConfig(**places))
    assert "hunter2" not in str(raised.value)


def test_a_copy_of_a_run_whose_files_lie_elsewhere_is_refused_and_a_moved_one_is_not(
    run_dir: RunDir, tmp_path: Path, tiny_shape: Path
) -> None:
    config = parse(recipe(tmp_path, tiny_shape, table__files=str(tmp_path / "shared")))
    for _ in range(2):
        open_table(run_dir, config, None, "explorer-0").catalog.close()
    copy = RunDir(tmp_path / "copy")
    shutil.copytree(run_dir.root, copy.root)
    with pytest.raises(
        RunError, match=rf"holds the files of the run whose catalog is {run_dir.catalog_file}, and {copy.root} is a copy of that run"
    ):
        open_table(copy, config, None, "explorer-0")
    shutil.rmtree(run_dir.root)
    open_table(copy, config, None, "explorer-0").catalog.close()
