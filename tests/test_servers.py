"""The servers that tests run against are real, give each test a place of its own, and end with whoever started them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from tests import servers

ROOT = Path(__file__).parents[1]
VARIABLES = {servers.POSTGRES, servers.OBJECT_STORE, *servers.ACCOUNT}
BARE = {key: value for key, value in os.environ.items() if key not in VARIABLES}
"""An environment that leads to no server."""
COMMAND = f"""
import os, sys
from tests import servers
with servers.fresh_database(os.environ["{servers.POSTGRES}"]), servers.fresh_bucket(os.environ["{servers.OBJECT_STORE}"]):
    print("ready", flush=True)
    sys.stdin.read()
raise SystemExit(7)
"""
"""Uses both servers, then waits for the end of its input."""
END_LIMIT_S = 30

starts_servers = pytest.mark.skipif(
    bool(servers.missing_postgres() or servers.missing_object_store()),
    reason=str(servers.missing_postgres() or servers.missing_object_store()),
)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder that PostgreSQL's user may enter, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="tidemill-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def wrapper(command: list[str], temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """`python -m tests.servers` with a command, outside of any servers that are there already."""
    environment = BARE | {"TMPDIR": str(temporary)}
    arguments = [sys.executable, "-m", "tests.servers", *command]
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended within the limit; who ended but was not yet buried by its new parent has ended."""
    deadline = time.monotonic() + END_LIMIT_S
    while (alive := [process for process in processes if lives(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def settings(url: str, *names: str) -> dict[str, str]:
    with psycopg.connect(url) as connection:
        return {name: connection.execute("select current_setting(%s)", [name]).fetchone()[0] for name in names}


def test_postgres_keeps_what_is_committed(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table fates (lease text primary key, fate text)")
        connection.execute("insert into fates values (%s, %s)", ["lease-1", "ready"])
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select * from fates").fetchall() == [("lease-1", "ready")]


def test_postgres_is_as_durable_as_in_production(postgres_url: str) -> None:
    safe = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
    assert settings(postgres_url, *safe) == safe


def test_postgres_lets_nobody_in_without_the_password(postgres_url: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres_url, password="guessed")


def test_databases_are_apart_and_dropped(postgres_url: str) -> None:
    with servers.fresh_database(postgres_url) as other:
        with psycopg.connect(other) as connection:
            connection.execute("create table fates (lease text)")
        with psycopg.connect(postgres_url) as connection:
            assert connection.execute("select to_regclass('fates')").fetchone() == (None,)
        left_open = psycopg.connect(other)
    with left_open, pytest.raises(psycopg.OperationalError, match="terminating connection"):
        left_open.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(other)


def test_an_object_is_read_as_it_was_written(s3_bucket: servers.Bucket) -> None:
    files = S3FileSystem(**s3_bucket.options)
    path = s3_bucket.url.removeprefix("s3://") + "/segments/0001.parquet"
    payload = bytes(range(256)) * 50_000  # more than one part of an upload
    with files.open_output_stream(path) as stream:
        stream.write(payload)
    with files.open_input_stream(path) as stream:
        assert stream.read() == payload


def test_buckets_are_apart_and_deleted(s3_bucket: servers.Bucket) -> None:
    files = S3FileSystem(**s3_bucket.options)
    endpoint = f"{s3_bucket.options['scheme']}://{s3_bucket.options['endpoint_override']}"
    with servers.fresh_bucket(endpoint) as other:
        place = other.url.removeprefix("s3://")
        with files.open_output_stream(f"{place}/segment") as stream:
            stream.write(b"rows")
        assert [found.path for found in files.get_file_info(FileSelector(place))] == [f"{place}/segment"]
        assert files.get_file_info(FileSelector(s3_bucket.url.removeprefix("s3://"), allow_not_found=True)) == []
    with pytest.raises(OSError, match="NO_SUCH_BUCKET"):
        files.get_file_info(FileSelector(place))


@starts_servers
@pytest.mark.parametrize(("number", "code"), [(None, 7), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_command_has_both_servers_and_leaves_none(number: signal.Signals | None, code: int, temporary: Path) -> None:
    with wrapper([sys.executable, "-c", COMMAND], temporary) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        started = psutil.Process(process.pid).children(recursive=True)
        assert len([child for child in started if child.name() == "postgres"]) > 1
        assert len([child for child in started if "moto.server" in child.cmdline()]) == 1
        if number is None:
            process.stdin.close()
        else:
            process.send_signal(number)
        assert process.wait(END_LIMIT_S) == code
        left = still_alive(started)
        for child in left:
            child.kill()
        assert left == []
    if number != signal.SIGKILL:
        assert list(temporary.iterdir()) == []


def test_without_servers_tests_are_skipped_and_say_how_to_get_them() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__)), "-k", "committed or written"]
    done = subprocess.run(command, cwd=ROOT, env=BARE, capture_output=True, text=True)
    assert "2 skipped" in done.stdout, done.stdout
    for variable in (servers.POSTGRES, servers.OBJECT_STORE):
        assert f"{variable} is not set: run `python -m tests.servers make test`" in done.stdout


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(servers, "DEBIAN_HOME", tmp_path)
    assert servers.missing_postgres() == (
        f"PostgreSQL's initdb is neither on the PATH nor under {tmp_path}: install it (Debian's package is `postgresql`)"
    )
    with pytest.raises(servers.ServerError, match="initdb is neither"), servers.postgres():
        pass


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((servers.HOST, 0))
        monkeypatch.setattr(servers, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(servers.ServerError, match="(?s)the object store did not start.*in use"), servers.object_store():
            pass
