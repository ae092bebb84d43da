"""The clients of the object stores that Arrow knows, with bounded patience."""

import base64
import binascii
import os
from collections.abc import Mapping
from datetime import timedelta

import pyarrow.fs as pafs

from rft_core.errors import UserError
from rft_core.storage.service import Service, hidden

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 6.0
"""How long S3 may stay silent. A write waits 6 s longer in Arrow 25, so a store that never answers is given up within a minute."""
MAX_ATTEMPTS = 3
"""How often a request to S3 is sent before its failure is told."""
RETRY_LIMIT_S = 10
"""How long a request to Google is sent again."""

_S3_OPTIONS = ("access_key", "endpoint_override", "region", "scheme", "secret_key", "session_token", "tls_ca_file_path")
_GOOGLE_OPTIONS = ("anonymous", "endpoint_override", "scheme")
_AZURE_OPTIONS = (
    "account_key",
    "account_name",
    "blob_storage_authority",
    "blob_storage_scheme",
    "dfs_storage_authority",
    "dfs_storage_scheme",
    "sas_token",
)

Connected = tuple[pafs.FileSystem, Service, str]
"""A client, who answers it, and the path of the place as the client wants it: bucket and prefix."""


def check_address(scheme: str, rest: str) -> None:
    """Refuse an address that names no place, or that holds credentials.

    Args:
        scheme: One of `CLIENTS`.
        rest: What comes after `://`.

    Raises:
        UserError: It can't be right.
    """
    if not all(rest.split("/")):
        raise UserError(f"{scheme}://{rest} names no place in a bucket", f"write it as {scheme}://bucket/prefix")
    if "@" in rest.partition("/")[0] and CLIENTS[scheme] is not _azure:
        raise UserError(f"the {scheme}:// address of a storage holds an account", "give credentials as options of the storage, as env:NAME")


def connect(scheme: str, rest: str, options: Mapping[str, str]) -> Connected:
    """Make the client for an address; nothing is sent yet.

    Args:
        scheme: One of `CLIENTS`.
        rest: What comes after `://`, checked by `check_address`.
        options: Of the client.

    Raises:
        UserError: The address or an option can't be right.
    """
    return CLIENTS[scheme](scheme, rest, dict(options))


def _s3(scheme: str, rest: str, options: dict[str, str]) -> Connected:
    _check(scheme, options, _S3_OPTIONS)
    endpoint = options.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        protocol, separator, host = endpoint.rstrip("/").rpartition("://")
        options |= {"endpoint_override": host} | ({"scheme": protocol} if separator else {})
    credentials = _s3_credentials(options)
    filesystem = pafs.S3FileSystem(
        **options,
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=MAX_ATTEMPTS),
        allow_delayed_open=True,  # nothing is sent before the bytes are known, so a small file is one request
    )
    host = options.get("endpoint_override", f"s3.{filesystem.region}.amazonaws.com")
    return filesystem, Service(f"{scheme}://{rest}", f"{scheme}://{rest.partition('/')[0]}", host, credentials, hidden(options)), rest


def _s3_credentials(options: Mapping[str, str]) -> str:
    """What to set if access is refused."""
    for place, names in ((options, ("access_key", "secret_key")), (os.environ, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))):
        there = [name for name in names if place.get(name)]
        if len(there) == 1:
            missing = min({*names} - {*there})
            raise UserError(f"S3 needs both {names[0]} and {names[1]}, but {missing} is not set", f"set {missing} too, or neither")
        if there:
            return f"{names[0]} and {names[1]} to the keys of somebody who may list, read, write and delete there"
    return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, which are not set here"


def _google(scheme: str, rest: str, options: dict[str, str]) -> Connected:
    _check(scheme, options, _GOOGLE_OPTIONS)
    host = options.get("endpoint_override", "storage.googleapis.com")
    service = Service(f"{scheme}://{rest}", f"{scheme}://{rest.partition('/')[0]}", host, "GOOGLE_APPLICATION_CREDENTIALS", hidden(options))
    anonymous = options.pop("anonymous", "false") == "true"
    return pafs.GcsFileSystem(**options, anonymous=anonymous, retry_time_limit=timedelta(seconds=RETRY_LIMIT_S)), service, rest


def _azure(scheme: str, rest: str, options: dict[str, str]) -> Connected:
    _check(scheme, options, _AZURE_OPTIONS)
    place, slash, prefix = rest.partition("/")
    container, _, host = place.partition("@")
    account, _, domain = host.partition(".")
    account = options.setdefault("account_name", account)
    if domain:
        options.setdefault("dfs_storage_authority", f".{domain}")
        options.setdefault("blob_storage_authority", f".{domain}".replace(".dfs.", ".blob.", 1))
    if not account.isalnum():
        raise UserError(f"{scheme}://{rest} names no storage account", f"write it as {scheme}://container@account/prefix")
    _check_azure_credentials(options)
    service = Service(
        f"{scheme}://{rest}",
        f"{scheme}://{place}",
        options.get("blob_storage_authority", f"{account}.blob.core.windows.net"),
        "the option account_key or sas_token to one that may list, read, write and delete there",
        hidden(options),
    )
    return pafs.AzureFileSystem(**options), service, f"{container}{slash}{prefix}"


def _check_azure_credentials(options: Mapping[str, str]) -> None:
    """Refuse what ends the whole process in Arrow 25: a key that is not base64, and every other kind of credentials, where they fail."""
    try:
        base64.b64decode(options.get("account_key", ""), validate=True)
    except binascii.Error:
        raise UserError("the storage option account_key is not base64", "give the key as Azure shows it, as env:NAME") from None
    if not options.get("account_key") and not options.get("sas_token"):
        raise UserError("Azure's storage needs the option account_key or sas_token, and has neither", "give one of them, as env:NAME")


def _check(scheme: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    unknown = min(set(options) - set(known), default=None)
    if unknown is not None:
        raise UserError(f"the {scheme}:// storage has no option {unknown}", f"it has {', '.join(known)}")


CLIENTS = {"s3": _s3, "gs": _google, "gcs": _google, "abfs": _azure, "abfss": _azure}
"""By the scheme."""
