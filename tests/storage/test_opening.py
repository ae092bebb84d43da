"""A mistake in an address or an option is one line, which shows no secret."""

import re
from pathlib import Path

import pytest
from werkzeug import Response

from rft_core.errors import UserError
from rft_core.storage import LocalStorage, clients, open_storage
from tests.storage.gate import gate

SECRET = "hunter2hunter2"


pytestmark = pytest.mark.usefixtures("no_account")


def refusal(url: str, **options: str) -> str:
    """The one line that opening ends with; no error of the chain shows the secret."""
    with pytest.raises(UserError) as raised:
        open_storage(url, options)
    error: BaseException | None = raised.value
    while error is not None:
        assert SECRET not in f"{error!r} {error.args}"
        error = error.__cause__ or error.__context__
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("url", ["/data/run 1%20", "data/run", Path("data/run")])
def test_a_path_is_a_folder(url: str | Path) -> None:
    storage = open_storage(url)
    assert isinstance(storage, LocalStorage)
    assert storage.url == str(url)


def test_an_address_of_a_file_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "größe 1"
    assert open_storage(folder.as_uri()).url == str(folder)
    assert refusal("file://data/run") == "file://data/run is not an absolute path; write file:///folder, or a path alone"


@pytest.mark.parametrize("url", ["s3:/bucket/run", Path("s3://bucket/run"), "simplecache::memory://run"])
def test_what_is_almost_an_address_is_no_folder(url: str | Path) -> None:
    with pytest.raises(UserError, match="is neither a path nor an address; an address has two slashes after its scheme"):
        open_storage(url)


def test_a_folder_takes_no_options() -> None:
    assert refusal("/data", region="x") == "the folder /data is given the option region; a local folder takes no options"


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("bogus://bucket/x", "nothing here knows the scheme bogus://; known are s3, gs, gcs, abfs, abfss and those of fsspec"),
        ("sftp://host/x", "a package for the scheme sftp:// is missing .*paramiko.*; install it, or name another storage"),
        ("s3://", "s3:// names no place in a bucket; write it as s3://bucket/prefix"),
        ("gs://bucket//x", "gs://bucket//x names no place in a bucket; write it as gs://bucket/prefix"),
        ("s3://bucket/../x", "s3://bucket/../x steps outside of itself; write it without . and .."),
        (
            f"s3://key:{SECRET}@bucket/x",
            "the s3:// address of a storage holds a password; give it as an option of the storage, as env:NAME",
        ),
        (f"s3://{SECRET}@bucket/x", "the s3:// address of a storage holds an account; give credentials as options of the storage"),
        (f"abfs://c@a/x?sig={SECRET}", "the abfs:// address of a storage holds a query; give its parts as options of the storage"),
        ("abfs://container/x", "abfs://container/x names no storage account; write it as abfs://container@account/prefix"),
        ("abfss://container@account/x", "Azure's storage needs the option account_key or sas_token, and has neither"),
    ],
)
def test_an_address_that_can_not_be_right_is_one_line(url: str, line: str) -> None:
    assert re.match(line, refusal(url))


def test_an_option_that_can_not_be_right_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    known = "access_key, endpoint_override, region, scheme, secret_key, session_token, tls_ca_file_path"
    assert refusal("s3://bucket/x", secret=SECRET) == f"the s3:// storage has no option secret; it has {known}"
    assert refusal("s3://bucket/x", scheme="gopher").startswith(
        "s3:// can't be opened (Invalid S3 connection scheme 'gopher'); see the address"
    )
    assert refusal("abfs://c@a/x", account_key=f"!{SECRET}").startswith(
        "the storage option account_key is not base64; give the key as Azure"
    )
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    line = "the storage option secret_key: found 'env:NO_SUCH_KEY'; the environment variable 'NO_SUCH_KEY' must be set here"
    assert refusal("s3://bucket/x", secret_key="env:NO_SUCH_KEY") == line


def test_half_of_a_pair_of_keys_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "S3 needs both access_key and secret_key, but secret_key is not set; set secret_key too, or neither"
    assert refusal("s3://bucket/x", access_key=SECRET) == line
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    line = (
        "S3 needs both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, but AWS_ACCESS_KEY_ID is not set; set AWS_ACCESS_KEY_ID too, or neither"
    )
    assert refusal("s3://bucket/x") == line


def test_nobody_listening_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_ATTEMPTS", 1)
    keys = {"access_key": "me", "secret_key": SECRET}
    found = refusal("s3://bucket/x", endpoint_override="127.0.0.1:1", scheme="http", region="us-east-1", **keys)
    assert found.startswith("127.0.0.1:1 does not answer for s3://bucket (Failed to connect to 127.0.0.1 port 1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2/")
    assert refusal("s3://bucket/x", region="us-east-1", **keys).startswith("127.0.0.1:2 does not answer for s3://bucket")
    found = refusal("ftp://127.0.0.1:1/x", username="me", password=SECRET)
    assert found == "ftp:// can't be opened ([Errno 111] Connection refused); see the address and the options of the storage"


def test_what_an_fsspec_client_does_not_take_is_one_line() -> None:
    assert refusal("ftp://127.0.0.1:1/x", port=SECRET).startswith("ftp:// can't be opened (")


def test_a_right_to_look_at_a_google_bucket_is_not_needed() -> None:
    with gate() as google:
        google.answer = lambda request: Response('{"error": {"code": 403, "message": "may not storage.buckets.get"}}', 403)
        storage = open_storage(
            "gs://bucket/x", {"endpoint_override": google.endpoint.removeprefix("http://"), "scheme": "http", "anonymous": "true"}
        )
        with pytest.raises(UserError, match="access to gs://bucket at .* is refused .*; set GOOGLE_APPLICATION_CREDENTIALS"):
            storage.read("a")
    assert google.seen[0] == "GET /storage/v1/b/bucket"
