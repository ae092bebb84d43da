"""Addresses of catalogs: every mistake is one line, and no secret is ever shown."""

import subprocess
import sys
import traceback
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from rft_core.catalog import Catalog, backends
from rft_core.errors import RunError
from tests import servers
from tests.catalog.conftest import Place
from tests.catalog.ledger import lease

SECRET = "s3cr3t"


def refusal(url: str, namespace: str = "tidemill") -> str:
    """What opening an address says; it is one line, and the secret is nowhere in it nor in what led to it."""
    with pytest.raises(RunError) as raised:
        Catalog(url, namespace)
    error: BaseException | None = raised.value
    seen = "".join(traceback.format_exception(raised.value))
    while error is not None:
        seen += f"{error} {error!r} {error.args} {getattr(error, 'params', '')} {getattr(error, 'statement', '')}"
        error = error.__cause__ or error.__context__
    assert SECRET not in seen
    assert "\n" not in str(raised.value)
    return str(raised.value)


RIGHT = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE is right"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"ada:{SECRET}@host/runs", f"is not a URL; {RIGHT}"),
        ("", f"is not a URL; {RIGHT}"),
        (f"postgresql://ada:{SECRET}@host:port/runs", f"has a port that is not a number; {RIGHT}"),
        (f"postgresql://ada:a@{SECRET}@host/runs", f"has more than one @; {RIGHT}; write an @ in a name or password as %40"),
        (f"mysql://ada:{SECRET}@host/runs", f"has the scheme mysql; {RIGHT}, or none for SQLite in the run's folder"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused(url: str, says: str) -> None:
    assert refusal(url) == f"the catalog's address {says}"


def test_a_server_that_does_not_answer_is_named() -> None:
    port = servers.free_port()
    says = refusal(f"postgresql://ada:{SECRET}@{servers.HOST}:{port}/runs")
    assert says.startswith(f"the catalog runs of PostgreSQL at 127.0.0.1:{port} can't be used (connection failed: ")
    assert says.endswith("; its server must answer, its disk have room, and it must be whole and writable; then run the same command again")


def test_a_host_that_is_not_known_is_named() -> None:
    assert "resolve host 'nowhere.invalid'" in refusal(f"postgresql://ada:{SECRET}@nowhere.invalid/runs")


def test_a_wrong_password_is_said_without_showing_it(postgres_place: Place) -> None:
    parts = urlsplit(postgres_place.url)
    wrong = parts._replace(netloc=f"{parts.username}:{SECRET}@{parts.hostname}:{parts.port}").geturl()
    assert f'password authentication failed for user "{parts.username}"' in refusal(wrong)


def test_a_database_that_is_not_there_is_named(postgres_place: Place) -> None:
    says = refusal(urlsplit(postgres_place.url)._replace(path="/nowhere").geturl())
    assert 'database "nowhere" does not exist' in says


def test_an_option_that_is_not_known_is_named(postgres_place: Place) -> None:
    assert 'invalid connection option "speed"' in refusal(f"{postgres_place.url}&speed=high&password={SECRET}")


def test_a_user_who_may_not_make_tables_is_told_so_until_somebody_makes_the_place(postgres_place: Place) -> None:
    parts = urlsplit(postgres_place.url)
    guest = parts._replace(netloc=f"guest:{SECRET}@{parts.hostname}:{parts.port}").geturl()
    with psycopg.connect(postgres_place.url, autocommit=True) as connection:
        connection.execute(SQL("create role guest login password {}").format(SECRET))
        try:
            assert "permission denied for database" in refusal(guest, "of_guest")
            connection.execute("create schema of_guest authorization guest")
            catalog = Catalog(guest, "of_guest")
            assert len(lease(catalog, 1, 2)) == 2
            catalog.close()
        finally:
            connection.execute("drop owned by guest cascade")
            connection.execute("drop role guest")


def test_a_missing_driver_is_one_line_that_says_how_to_get_it() -> None:
    program = f"""
import sys
sys.modules["psycopg"] = None
from rft_core.catalog import Catalog
from rft_core.errors import RunError
try:
    Catalog("postgresql://ada:{SECRET}@host/runs")
except RunError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == (
        "the catalog is in PostgreSQL, and its driver psycopg is not installed; pip install 'tidemill[postgres]'\n",
        "",
    )


def test_the_place_of_a_catalog_is_shown_without_secrets(postgres_place: Place, sqlite_place: Place) -> None:
    parts = urlsplit(postgres_place.url)
    catalog = postgres_place.open()
    assert catalog.place == f"{parts.path[1:]} of PostgreSQL at 127.0.0.1:{parts.port}"
    catalog.close()
    catalog = sqlite_place.open()
    assert catalog.place == sqlite_place.url.removeprefix("sqlite:///")
    catalog.close()


def test_both_ways_to_write_the_scheme_lead_to_postgres(postgres_place: Place) -> None:
    catalog = Catalog(postgres_place.url.replace("postgresql://", "postgres://"))
    assert catalog.leases.num_issued() == 0
    catalog.close()


def test_runs_that_share_a_database_are_apart(postgres_place: Place) -> None:
    names = ["tidemill_a", "tidemill_A", 'with "quotes", \\ and spaces']
    catalogs = [Catalog(postgres_place.url, name) for name in names]
    for count, catalog in enumerate(catalogs, start=1):
        lease(catalog, 1, count)
    assert [catalog.leases.num_issued() for catalog in catalogs] == [1, 2, 3]
    with catalogs[0]._database.write():  # one that writes does not hold up the others
        lease(catalogs[1], 2, 1)
    with psycopg.connect(postgres_place.url, autocommit=True) as connection:
        for catalog, name in zip(catalogs, names, strict=True):
            catalog.close()
            connection.execute(SQL("drop schema {} cascade").format(Identifier(name)))


@pytest.mark.parametrize("folder", ["what?x=1", "50%25", "a#b", "with space", "æ:@"])
def test_a_folder_may_have_any_name(tmp_path: Path, folder: str) -> None:
    file = tmp_path / folder / "catalog.db"
    file.parent.mkdir()
    catalog = Catalog(f"sqlite:///{file}")
    assert catalog.place == str(file)
    assert file.exists()
    catalog.close()


def test_sqlite_keeps_what_is_committed_through_a_power_cut(sqlite_place: Place) -> None:
    catalog = sqlite_place.open()
    with catalog._database.read() as connection:
        settings = {name: connection.exec_driver_sql(f"pragma {name}").scalar() for name in ("journal_mode", "synchronous", "foreign_keys")}
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    catalog.close()


def test_the_server_ends_a_writer_that_stalls(postgres_place: Place) -> None:
    catalog = postgres_place.open()
    with catalog._database.write() as connection:
        limits = [connection.exec_driver_sql(f"show {name}").scalar() for name in ("lock_timeout", "idle_in_transaction_session_timeout")]
    assert limits == [f"{backends.BUSY_TIMEOUT_S:.0f}s", "1min"]
    catalog.close()
