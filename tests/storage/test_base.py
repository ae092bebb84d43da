"""What every storage promises, on each kind of it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from rft_core.errors import UserError
from rft_core.storage import Storage, open_storage

PLACES = ("folder", "memory", "file_server", "s3")


@pytest.fixture(params=PLACES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """An empty place: a local folder, two that only fsspec knows, a bucket."""
    if request.param == "folder":
        yield open_storage(tmp_path / "run")
    elif request.param == "file_server":
        yield open_storage(f"local://{tmp_path}/run")
    elif request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        yield open_storage(bucket.url, bucket.options)
    else:
        place = open_storage(f"memory://{tmp_path.name}/run")
        yield place
        for uri in place.files():
            place.delete(uri)


def test_what_is_written_is_read_back(storage: Storage) -> None:
    data = b"\x00\xff some bytes"
    for uri, given in {"a": data, "segments/b.parquet": memoryview(data), "weights/v000001/c": pa.py_buffer(data), "empty": b""}.items():
        storage.write(uri, given)
        assert storage.read(uri).to_pybytes() == bytes(memoryview(given))
        assert storage.size(uri) == len(memoryview(given))


def test_a_file_is_replaced_whole(storage: Storage) -> None:
    storage.write("a", b"the first, which is longer")
    storage.write("a", b"the second")
    assert storage.read("a").to_pybytes() == b"the second"
    assert set(storage.files()) == {"a"}


def test_what_is_not_there_is_said_not_to_be(storage: Storage) -> None:
    storage.write("segments/there", b"x")
    for uri in ("segments", "segments/nowhere", "segments/there/deeper", "elsewhere/x"):
        assert storage.size(uri) is None
    for uri in ("segments/nowhere", "segments/there/deeper", "elsewhere/x"):
        with pytest.raises(FileNotFoundError, match=uri):
            storage.read(uri)
        storage.delete(uri)
    assert storage.files("elsewhere") == storage.leftovers("elsewhere") == {}


def test_files_are_listed_with_their_size_and_time(storage: Storage) -> None:
    assert storage.files() == {}
    for uri, length in {"segments/a": 1, "segments/deeper/b": 20, "segments2/c": 3}.items():
        storage.write(uri, b"x" * length)
    found = storage.files("segments")
    assert {uri: stat.bytes for uri, stat in found.items()} == {"segments/a": 1, "segments/deeper/b": 20}
    assert all(abs(time.time() - stat.modified_s) < 3600 for stat in found.values())
    assert set(storage.files()) == {"segments/a", "segments/deeper/b", "segments2/c"}


def test_what_is_deleted_is_gone(storage: Storage) -> None:
    storage.write("segments/a", b"x")
    storage.write("segments/b", b"x")
    storage.delete("segments/a")
    assert storage.size("segments/a") is None
    assert set(storage.files("segments")) == {"segments/b"}
    storage.delete("segments/b")
    assert storage.files("segments") == {}


@pytest.mark.parametrize(
    "name", ["größe.parquet", "日本 語.parquet", "a=b&c+d%25#?.parquet", "ru\u0308ckwa\u0308rts", "*.tmp-", "'quoted'"]
)
def test_names_mean_themselves(name: str, storage: Storage) -> None:
    uri = f"segments/{name}/{name}"
    storage.write(uri, name.encode())
    assert storage.read(uri).to_pybytes() == name.encode()
    assert set(storage.files("segments")) == set(storage.files(f"segments/{name}")) == {uri}
    storage.delete(uri)
    assert storage.size(uri) is None


@pytest.mark.parametrize("uri", ["", "/etc/passwd", "..", "a/../../b", "./a", "a//b", "a/", "a\0b"])
def test_a_uri_stays_within_the_place(uri: str, storage: Storage) -> None:
    for use in (storage.read, storage.size, storage.delete, lambda uri: storage.write(uri, b"x")):
        with pytest.raises(UserError, match="does not name a file within .*; a URI is relative and clean, as in segments/x.parquet"):
            use(uri)
    if uri:
        for listing in (storage.files, storage.leftovers):
            with pytest.raises(UserError, match="does not name a file within"):
                listing(uri)


def test_of_two_writers_at_once_one_stays_whole(storage: Storage) -> None:
    rounds, contents = 5, [bytes([number]) * 300_000 for number in range(2)]
    storage.write("a", contents[0])
    start = Barrier(3)

    def write(content: bytes) -> None:
        for _ in range(rounds):
            start.wait(60)
            storage.write("a", content)

    def read() -> list[bytes]:
        seen = []
        for _ in range(rounds):
            start.wait(60)
            seen.append(storage.read("a").to_pybytes())
        return seen

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, content) for content in contents]
        seen = pool.submit(read)
        for writer in writers:
            writer.result()
        assert set(seen.result()) <= set(contents)
    assert storage.read("a").to_pybytes() in contents
    assert set(storage.files()) == {"a"}
    assert storage.leftovers() == {}


def test_a_dataset_reads_from_it(storage: Storage) -> None:
    table = pa.table({"reward": [0.0, 0.5, 1.0]})
    for uri in ("segments/a.parquet", "segments/ü b.parquet"):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        storage.write(uri, sink.getvalue())
    filesystem, base = storage.dataset_source()
    dataset = pads.dataset([f"{base}/{uri}" for uri in storage.files("segments")], filesystem=filesystem, format="parquet")
    assert dataset.to_table(filter=pads.field("reward") > 0).num_rows == 4


def test_it_is_opened_again_by_its_url(storage: Storage, request: pytest.FixtureRequest) -> None:
    storage.write("a", b"x")
    options = request.getfixturevalue("s3_bucket").options if storage.url.startswith("s3") else {}
    again = open_storage(storage.url, options)
    assert again.url == storage.url
    assert again.read("a").to_pybytes() == b"x"
    assert repr(again).endswith(f"Storage({storage.url!r})")
