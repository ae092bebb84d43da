"""An object store that fails, refuses, or falls silent: one line, nothing torn, and an end in time."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pyarrow.fs as pafs
import pytest
from werkzeug import Request, Response

from rft_core.errors import UserError
from rft_core.storage import Storage, clients, open_storage
from tests.disks import full_disk
from tests.servers import Bucket
from tests.storage.gate import Gate, gate, refusal

ROOT = Path(__file__).parents[2]
BIG = b"x" * 25_000_000
"""Is sent in parts."""
WRITER = """
import sys
from rft_core.storage import open_storage
storage = open_storage(sys.argv[1], {"endpoint_override": sys.argv[2]})
print(flush=True)
storage.write("segments/big", b"x" * 25_000_000)
"""


@pytest.fixture
def s3_gate(s3_bucket: Bucket) -> Iterator[Gate]:
    """A gate before the object store."""
    with gate(s3_bucket.options["endpoint_override"]) as door:
        yield door


@pytest.fixture
def storage(s3_bucket: Bucket, s3_gate: Gate) -> Storage:
    """A place behind the gate."""
    return opened(s3_bucket, s3_gate)


def opened(bucket: Bucket, door: Gate) -> Storage:
    return open_storage(bucket.url, {"endpoint_override": door.endpoint, "region": bucket.options["region"]})


def test_a_small_file_is_one_request(storage: Storage, s3_gate: Gate) -> None:
    s3_gate.seen.clear()
    storage.write("segments/a", b"x" * 1_000_000)
    assert len(s3_gate.seen) == 1
    assert s3_gate.seen[0].startswith("PUT ")


def test_a_big_file_is_whole(storage: Storage) -> None:
    storage.write("segments/big", BIG)
    assert storage.read("segments/big").to_pybytes() == BIG
    assert storage.files("segments")["segments/big"].bytes == len(BIG)


@pytest.mark.parametrize("part", ["uploads", "partNumber", "complete"])
def test_an_upload_that_fails_leaves_nothing(part: str, storage: Storage, s3_gate: Gate) -> None:
    def answer(request: Request) -> Response | None:
        wanted = request.method == "POST" and "uploadId" in request.args if part == "complete" else part in request.args
        return refusal(403, "AccessDenied") if wanted else None

    s3_gate.answer = answer
    with pytest.raises(UserError, match=r"access to s3://\S+ at \S+ is refused \(ACCESS_DENIED during .*; set AWS_ACCESS_KEY_ID and AWS_"):
        storage.write("segments/big", BIG)
    assert storage.size("segments/big") is None
    assert storage.files() == {}


def test_an_object_store_is_not_asked_for_what_it_does_not_have(storage: Storage, s3_gate: Gate) -> None:
    storage.write("segments/a.parquet.tmp-01234567", b"x")
    s3_gate.seen.clear()
    assert storage.leftovers("segments") == {}
    assert s3_gate.seen == []


def test_a_killed_upload_shows_nothing(s3_bucket: Bucket, storage: Storage, s3_gate: Gate) -> None:
    reached = Event()

    def answer(request: Request) -> Response | None:
        if request.args.get("partNumber") == "2":
            reached.set()
            writer.wait(60)
        return None

    s3_gate.answer = answer
    writer = subprocess.Popen([sys.executable, "-c", WRITER, s3_bucket.url, s3_gate.endpoint], cwd=ROOT, stdout=subprocess.DEVNULL)
    assert reached.wait(60)
    writer.kill()
    writer.wait()
    assert storage.files() == storage.leftovers() == {}
    assert storage.size("segments/big") is None


def test_a_request_that_is_turned_away_for_now_is_sent_again(storage: Storage, s3_gate: Gate) -> None:
    turned_away = [refusal(503, "SlowDown")]
    s3_gate.answer = lambda request: turned_away.pop() if turned_away else None
    storage.write("segments/a", b"x")
    assert storage.read("segments/a").to_pybytes() == b"x"
    assert turned_away == []


def test_a_store_that_stays_in_trouble_is_one_line(storage: Storage, s3_gate: Gate) -> None:
    s3_gate.answer = lambda request: refusal(507, "XMinioStorageFull")
    with pytest.raises(
        UserError, match=r"can't write s3://\S+/segments/a \(.*XMinioStorageFull.*told by the gate\); see what the store says"
    ):
        storage.write("segments/a", b"x")
    with pytest.raises(UserError, match=r"can't look at s3://\S+/segments/a \(.*HTTP status 507"):
        storage.size("segments/a")
    with pytest.raises(UserError, match=r"can't list s3://\S+/segments \("):
        storage.files("segments")


def test_a_store_that_falls_silent_is_given_up(s3_bucket: Bucket, s3_gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr(clients, "MAX_ATTEMPTS", 2)
    over = Event()

    def answer(request: Request) -> Response | None:
        over.wait(60)
        return None

    s3_gate.answer = answer
    with pytest.raises(UserError, match=r"127.0.0.1:\d+ does not answer for s3://\S+ \(Operation too slow"):
        opened(s3_bucket, s3_gate)
    over.set()
    assert len(s3_gate.seen) == 2


def test_unsigned_requests_are_told_what_is_missing(s3_bucket: Bucket, s3_gate: Gate, no_account: None) -> None:
    s3_gate.answer = lambda request: None if "Authorization" in request.headers else refusal(403, "AccessDenied")
    with pytest.raises(UserError, match="is refused .*; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, which are not set here"):
        opened(s3_bucket, s3_gate)


def test_a_bucket_in_another_region_is_told(s3_bucket: Bucket, s3_gate: Gate) -> None:
    s3_gate.answer = lambda request: refusal(301, "PermanentRedirect", x_amz_bucket_region="eu-west-3")
    with pytest.raises(UserError, match="lies in another region .*; set the option region, or AWS_REGION, to eu-west-3"):
        opened(s3_bucket, s3_gate)


def test_a_bucket_is_never_made(s3_bucket: Bucket) -> None:
    line = "there is no bucket s3://no-such-bucket at 127.0.0.1:.*; make it, or name one that is there"
    with pytest.raises(UserError, match=line):
        open_storage("s3://no-such-bucket/run", s3_bucket.options)
    filesystem = pafs.S3FileSystem(**s3_bucket.options, allow_bucket_creation=True, allow_bucket_deletion=True)
    filesystem.create_dir("gone-in-between")
    storage = open_storage("s3://gone-in-between/run", s3_bucket.options)
    filesystem.delete_dir("gone-in-between")
    with pytest.raises(UserError, match="there is no bucket s3://gone-in-between at"):
        storage.write("segments/a", b"x")
    names = {info.path for info in filesystem.get_file_info(pafs.FileSelector(""))}
    assert names.isdisjoint({"no-such-bucket", "gone-in-between"})


def test_a_whole_bucket_is_a_place(s3_bucket: Bucket) -> None:
    storage = open_storage(s3_bucket.url.rpartition("/")[0], s3_bucket.options)
    storage.write("a", b"x")
    assert set(storage.files()) == {"a"}


def test_a_file_server_that_is_full_is_one_line_and_keeps_the_old_file(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        storage = open_storage(f"local://{disk.folder}/run")
        storage.write("segments/a", b"old")
        with pytest.raises(
            UserError, match=rf"can't write local:///.*/run/segments/a \(.*{disk.message}.*\); see what the store says of it"
        ):
            storage.write("segments/a", b"x" * 2_000_000)
        assert storage.read("segments/a").to_pybytes() == b"old"
        assert storage.leftovers() == {}
