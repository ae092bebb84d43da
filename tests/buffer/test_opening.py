"""Where a recipe says that a table lives."""

from pathlib import Path
from typing import Any

import pytest

from rft_core.buffer import check_places, is_there, open_catalog, open_files, open_table
from rft_core.config import TableConfig, parse
from rft_core.errors import ConfigError, UserError
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
            UserError, match="^table.catalog is env:TIDEMILL_NOWHERE, and the environment has no TIDEMILL_NOWHERE; set it where"
        ):
            open_catalog(run_dir, config)


@pytest.mark.parametrize(
    "places",
    [
        {},
        {"files": "elsewhere/runs"},
        {"files": "file:///mnt/runs"},
        {"catalog": POSTGRES},
        {"catalog": "postgres://ada@db.example:5433/runs"},
        {"catalog": "postgresql://db.example/runs"},
        {"catalog": POSTGRES, "files": S3, "options": {"region": "eu-west-1"}},
        {"catalog": "env:CATALOG", "files": S3},
    ],
)
def test_what_can_work_is_accepted_without_looking(places: dict[str, Any]) -> None:
    check_places(TableConfig(**places))


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"catalog": "mysql://ada:secret@h/d"}, "table.catalog: found 'mysql'; postgresql://USER@HOST/DATABASE"),
        ({"catalog": "runs.db"}, "table.catalog: found 'runs.db'; "),
        (
            {"catalog": "postgresql://ada:secret@h/d"},
            "table.catalog: found 'an address with a password in it'; .*put it in a variable, env:NAME",
        ),
        ({"catalog": "postgresql://ada@h/d?password=secret"}, "table.catalog: found 'an address with a password in it'; "),
        ({"files": S3}, "table.files: found 's3://…'; files in an object store need table.catalog: a SQLite file serves one machine"),
        ({"files": "s3://ada:secret@bucket"}, "table.files: found 's3://…'; "),
    ],
)
def test_what_cannot_work_is_refused_by_key_and_shows_no_secret(places: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}") as raised:
        check_places(TableConfig(**places))
    assert "secret" not in str(raised.value)
