"""From an address to the storage that it names."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

from fsspec import get_filesystem_class
from fsspec.core import url_to_fs

from rft_core.errors import UserError
from rft_core.storage import clients
from rft_core.storage.base import Storage
from rft_core.storage.local import LocalStorage
from rft_core.storage.remote import ArrowStorage, FsspecStorage
from rft_core.storage.service import Service, hidden, is_harmless
from rft_core.variables import revealed, variable_of

_ADDRESS = re.compile("(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_ALMOST_ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.:-]+:/")
"""What `pathlib.Path` makes of an address, or an address with a slash too few: nobody calls a folder so."""
_PASSWORD = re.compile("[^/]*:[^/]*@")

_FILE_SERVERS = frozenset({"ftp", "hdfs", "local", "sftp", "smb", "ssh", "webhdfs"})
"""Schemes of fsspec where a file shows while it is being written; the others put an object whole."""


def open_storage(url: str | Path, options: Mapping[str, str] = MappingProxyType({})) -> Storage:
    """Open the storage at an address. A local folder is made by the first write, a bucket never.

    Args:
        url: A path, `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix`, `abfs://container@account/prefix`,
            or an address of another scheme that fsspec knows.
        options: What the store's client wants to know, under the names that it has there; `env:NAME` stands for an environment variable.
            For S3 and Google, credentials are looked for in their usual places if none are given.

    Raises:
        UserError: The address or an option can't be right, the bucket is not there or refuses access, or nobody answers.
    """
    place = _parsed(url, options)
    if isinstance(place, Path):
        return LocalStorage(place)
    scheme, rest = place
    given = {name: revealed(f"the storage option {name}", value) for name, value in options.items()}
    try:
        if scheme in clients.CLIENTS:
            return _open_arrow(scheme, rest, given)
        return _open_fsspec(scheme, rest, given)
    except (ImportError, OSError, TypeError, ValueError) as error:
        problem = _unusable(scheme, given, error)
    raise problem  # out here, so that the first error, which may show a secret, is not in the chain


def check_place(url: str, options: Mapping[str, str]) -> bool:
    """Refuse an address that can't be right, and one that shows a secret to whoever reads it or its options; nothing is sent.

    Args:
        url: As for `open_storage`.
        options: As for `open_storage`, as they are written down.

    Returns:
        Whether the place is in a store, not in a folder of this machine.

    Raises:
        UserError: It shows no secret.
    """
    place = _parsed(url, options)
    for name, value in sorted(options.items()):
        if variable_of(value) is None and not is_harmless(name, value):
            raise UserError(f"the storage option {name} is written out, and may be a secret", "put it in a variable, env:NAME")
    return not isinstance(place, Path)


def _parsed(url: str | Path, options: Mapping[str, str]) -> Path | tuple[str, str]:
    """The folder that an address names, or the scheme and the rest of one in a store."""
    address = None if isinstance(url, Path) else _ADDRESS.fullmatch(url)
    folder = Path(url)
    if address is not None:
        scheme, rest = address["scheme"].lower(), address["rest"].rstrip("/")
        if scheme != "file":
            _check_address(scheme, rest)
            return scheme, rest
        if not address["rest"].startswith("/"):
            raise UserError(f"{url} is not an absolute path", "write file:///folder, or a path alone")
        folder = Path("/", unquote(rest))
    if _ALMOST_ADDRESS.match(str(folder)):
        raise UserError(f"{folder} is neither a path nor an address", "an address has two slashes after its scheme, and is no pathlib.Path")
    if options:
        raise UserError(f"the folder {folder} is given the option {min(options)}", "a local folder takes no options")
    return folder


def _open_arrow(scheme: str, rest: str, options: dict[str, str]) -> Storage:
    filesystem, service, base = clients.connect(scheme, rest, options)
    storage = ArrowStorage(service, base, filesystem)
    storage.require_bucket()
    return storage


def _open_fsspec(scheme: str, rest: str, options: dict[str, str]) -> Storage:
    try:
        get_filesystem_class(scheme)
    except ValueError:
        raise UserError(
            f"nothing here knows the scheme {scheme}://", f"known are {', '.join(clients.CLIENTS)} and those of fsspec"
        ) from None
    url = f"{scheme}://{rest}"
    filesystem, base = url_to_fs(url, **options)
    service = Service(url, url, f"the {scheme} storage", "credentials in the options of the storage", hidden(options))
    return FsspecStorage(service, base, filesystem, renames=scheme in _FILE_SERVERS)


def _check_address(scheme: str, rest: str) -> None:
    """Refuse what can't be shown, before anything of it is shown."""
    if _PASSWORD.match(rest):
        raise UserError(f"the {scheme}:// address of a storage holds a password", "give it as an option of the storage, as env:NAME")
    if "?" in rest:
        raise UserError(f"the {scheme}:// address of a storage holds a query", "give its parts as options of the storage")
    if not {".", ".."}.isdisjoint(rest.split("/")):
        raise UserError(f"{scheme}://{rest} steps outside of itself", "write it without . and ..")
    if scheme in clients.CLIENTS:
        clients.check_address(scheme, rest)


def _unusable(scheme: str, options: Mapping[str, str], error: Exception) -> UserError:
    """One line for a client that could not be made."""
    if isinstance(error, ImportError):
        return UserError(f"a package for the scheme {scheme}:// is missing ({error})", "install it, or name another storage")
    service = Service(f"{scheme}://", "", "", "", hidden(options))
    return UserError(f"{scheme}:// can't be opened ({service.shown(str(error))})", "see the address and the options of the storage")
