"""A place for immutable files: a local folder or a prefix in an object store, behind one face."""

from rft_core.storage.base import Stat, Storage
from rft_core.storage.local import LocalStorage
from rft_core.storage.opening import check_place, open_storage

__all__ = ["LocalStorage", "Stat", "Storage", "check_place", "open_storage"]
