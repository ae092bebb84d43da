"""Real servers for tests and benchmarks, on free ports of the loopback: PostgreSQL, and an object store that speaks S3.

`python -m tests.servers COMMAND [ARGUMENTS...]` runs a command with both of them, and ends as it ends. Both servers end with whoever
started them, however that comes about: the kernel tells them (prctl's PR_SET_PDEATHSIG). After a SIGKILL alone their files stay in the
temporary folder.
"""

import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

POSTGRES = "TIDEMILL_TEST_POSTGRES"
"""Names the variable with the URL of a PostgreSQL database whose user may make other databases."""
OBJECT_STORE = "TIDEMILL_TEST_S3"
"""Names the variable with the endpoint of an object store that speaks S3."""
REGION = "us-east-1"
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "tidemill",
    "AWS_SECRET_ACCESS_KEY": "tidemill",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What clients of the object store need in their environment. It checks no password; nobody asks the network for one."""

HOST = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below those that the kernel gives to connections, so that none of them takes a port between its choice and its use."""
DEBIAN_HOME = Path("/usr/lib/postgresql")
"""Where Debian keeps the server programs of each version of PostgreSQL, off the PATH."""
START_LIMIT_S = 60
STOP_LIMIT_S = 15

_BOUND = '[ "$PPID" = "$1" ] && shift && exec "$@"'
"""Starts a command unless its parent, whose id comes first, died before the kernel was asked to tell of its death."""


class ServerError(Exception):
    """A server is not installed or did not start."""


@dataclass(frozen=True)
class Bucket:
    """A place in an object store for one test."""

    url: str
    """As in `s3://bucket/prefix`; nothing is in it yet."""
    options: Mapping[str, str]
    """What `pyarrow.fs.S3FileSystem` needs beside the account, which is in the environment: endpoint, scheme and region."""


def missing_postgres() -> str | None:
    """Why PostgreSQL can't be started here, in one line; null if it can."""
    if _programs() is None:
        return f"PostgreSQL's initdb is neither on the PATH nor under {DEBIAN_HOME}: install it (Debian's package is `postgresql`)"
    if os.geteuid() == 0 and _unprivileged() is None:
        return "PostgreSQL does not run as root, and there is no user `postgres` to run it as: make one, or be another user"
    return _missing_setpriv()


def missing_object_store() -> str | None:
    """Why the object store can't be started here, in one line; null if it can."""
    if find_spec("moto") is None or find_spec("flask") is None:
        return "the object store is not installed: pip install 'moto[server]', which is in the extra `dev`"
    return _missing_setpriv()


@contextmanager
def postgres() -> Iterator[str]:
    """Run an empty PostgreSQL for as long as the thread that enters is inside; it is as durable as one in production.

    Yields:
        The URL of its database, with a random password: `postgresql://user:password@127.0.0.1:port/database`.

    Raises:
        ServerError: It is not installed or did not start.
    """
    _require(missing_postgres())
    programs, user = _programs(), _unprivileged()
    assert programs is not None
    password = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="tidemill-postgres-") as name:
        folder = Path(name)
        _initialise(programs, folder, user, password)
        port = free_port()
        settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": folder, "shared_buffers": "16MB"}
        command = [str(programs / "postgres"), "-D", str(folder / "data")]
        command += [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        asking = [str(programs / "pg_isready"), "-q", "-h", HOST, "-p", str(port)]
        # SIGQUIT is its immediate shutdown: nobody will read the files again.
        with _server("PostgreSQL", command, folder, signal.SIGQUIT, lambda: subprocess.run(asking).returncode == 0, user):
            yield f"postgresql://tidemill:{password}@{HOST}:{port}/postgres"


@contextmanager
def object_store() -> Iterator[str]:
    """Run an empty object store, which keeps objects in memory, for as long as the thread that enters is inside.

    Yields:
        Its endpoint, `http://127.0.0.1:port`. Clients need `ACCOUNT` in their environment.

    Raises:
        ServerError: It is not installed or did not start.
    """
    _require(missing_object_store())
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-s3-") as folder,
        _server("the object store", command, Path(folder), signal.SIGTERM, lambda: _lists_buckets(port)),
    ):
        yield f"http://{HOST}:{port}"


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """Make an empty database beside another one, and drop it afterwards, whoever is still connected.

    Yields:
        Its URL.
    """
    import psycopg
    from psycopg.sql import SQL, Identifier

    name = f"test_{secrets.token_hex(8)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("create database {}").format(Identifier(name)))
        try:
            yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(SQL("drop database {} with (force)").format(Identifier(name)))


@contextmanager
def fresh_bucket(endpoint: str) -> Iterator[Bucket]:
    """Make an empty bucket, and delete it afterwards with all that is in it; `ACCOUNT` has to be in the environment."""
    from pyarrow.fs import S3FileSystem

    parts = urlsplit(endpoint)
    options = {"endpoint_override": parts.netloc, "scheme": parts.scheme, "region": REGION}
    files = S3FileSystem(**options, allow_bucket_creation=True, allow_bucket_deletion=True)
    name = f"test-{secrets.token_hex(8)}"
    files.create_dir(name)
    try:
        yield Bucket(f"s3://{name}/runs", options)
    finally:
        files.delete_dir(name)


def run(command: list[str]) -> int:
    """Run a command with both servers, whose addresses are in its environment.

    Returns:
        Its exit code, as a shell has it: 128 and more for a signal.

    Raises:
        ServerError: A server is not installed or did not start.
    """
    with postgres() as url, object_store() as endpoint:
        environment = os.environ | ACCOUNT | {POSTGRES: url, OBJECT_STORE: endpoint}
        process = subprocess.Popen(_bound(command, signal.SIGTERM), env=environment)
        try:
            while process.poll() is None:
                try:
                    process.wait()
                except KeyboardInterrupt:  # the terminal interrupts the command too, which may have to tidy up
                    continue
        finally:
            _end(process, signal.SIGTERM)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def main() -> int:
    """Run the command that the arguments are, and return its exit code."""
    if len(sys.argv) < 2:
        print("no command is given: python -m tests.servers COMMAND [ARGUMENTS...]", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _exit)
    try:
        return run(sys.argv[1:])
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the command ran
        return 128 + signal.SIGINT


def free_port() -> int:
    """A port of the loopback on which nobody listens."""
    for port in random.Random().sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ServerError(f"100 ports between {PORTS.start} and {PORTS.stop} were tried on {HOST}, and all are taken")


def _programs() -> Path | None:
    """The folder of PostgreSQL's programs: what the PATH leads to, or else the newest of Debian's."""
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    folders = DEBIAN_HOME.glob("[0-9]*/bin/initdb")
    return max((found.parent for found in folders), key=lambda folder: float(folder.parent.name), default=None)


def _unprivileged() -> pwd.struct_passwd | None:
    """The user that PostgreSQL runs as when this is root; null when this is not, or when there is no such user."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None


def _missing_setpriv() -> str | None:
    return None if shutil.which("setpriv") else "setpriv is not on the PATH: install util-linux"


def _require(missing: str | None) -> None:
    if missing:
        raise ServerError(missing)


def _initialise(programs: Path, folder: Path, user: pwd.struct_passwd | None, password: str) -> None:
    """Make the files of an empty PostgreSQL in `folder`/data."""
    secret = folder / "password"
    secret.write_text(password, encoding="ascii")
    if user is not None:
        for path in (folder, secret):
            os.chown(path, user.pw_uid, user.pw_gid)
    command = [*_as(user), str(programs / "initdb"), "-D", str(folder / "data")]
    command += ["-U", "tidemill", "--pwfile", str(secret), "--auth", "scram-sha-256"]
    # What initdb writes need not survive a power cut; what the server writes does.
    command += ["--encoding", "UTF8", "--no-locale", "--no-sync"]
    log = folder / "initdb.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        process.wait()
    finally:
        process.wait()  # for a second, also when interrupted: killed, it leaves a child that goes on writing
    if process.returncode != 0:
        raise ServerError(f"initdb failed; {_last_words(log)}")
    secret.unlink()


def _as(user: pwd.struct_passwd | None) -> list[str]:
    """What goes before a command that another user has to run."""
    return [] if user is None else ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _bound(command: list[str], death: signal.Signals) -> list[str]:
    """A command that gets a signal when the thread that starts it ends."""
    return ["setpriv", f"--pdeathsig={death.name}", "--", "sh", "-c", _BOUND, "tests.servers", str(os.getpid()), *command]


@contextmanager
def _server(
    name: str, command: list[str], folder: Path, stop: signal.Signals, ready: Callable[[], bool], user: pwd.struct_passwd | None = None
) -> Iterator[None]:
    """Run a server from when it is ready until the block ends."""
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_as(user), *_bound(command, stop)],  # in this order: who becomes another user is forgotten by the kernel
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # an interrupt from the terminal is for the command
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"{name} did not start; {_last_words(log)}")
            time.sleep(0.05)
        yield
    finally:
        _end(process, stop)


def _last_words(log: Path) -> str:
    return f"the end of what it said: {log.read_text(errors='replace').strip()[-1000:]}"


def _end(process: subprocess.Popen[bytes], ask: signal.Signals) -> None:
    """End a process, by force if it takes long."""
    process.send_signal(ask)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _lists_buckets(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _exit(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second one must not interrupt the tidying up
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
