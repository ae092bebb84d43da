"""The weight store: published versions as ordinary Hugging Face folders with a manifest."""

import json
import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from rft_core.catalog import Catalog, Version
from rft_core.disk import file_sha256, folder_written_whole, no_space
from rft_core.errors import WeightsError
from rft_core.failpoints import failpoint
from rft_core.run_dir import RunDir

MANIFEST = "manifest.json"
READER_TIMEOUT_S = 120.0
"""A reader that was not seen for so long no longer keeps its version from being collected."""


class WeightStore:
    """Publishes and fetches versions of the policy.

    Args:
        run_dir: Where the folders are.
        catalog: What makes them known.
        generation: Of this trainer; a replaced one can't publish.
        base_model: `model.path` of the recipe, for the manifest.
    """

    def __init__(self, run_dir: RunDir, catalog: Catalog, generation: int, base_model: str) -> None:
        self._run_dir = run_dir
        self._versions = catalog.versions
        self._generation = generation
        self._base_model = base_model

    def publish(self, version: int, step: int, source: Path, hashes: Mapping[str, str] | None = None) -> Path:
        """Publish the files of a Hugging Face folder as a version; they are linked, or copied where they can't be.

        Args:
            version: Its number.
            step: The step that made it.
            source: The folder.
            hashes: SHA-256 by file name, where they are known.

        Raises:
            ReproducibilityError: The version is known with other bytes.
            LostClaimError: Another trainer took over.
            UserError: The folder can't be written.
        """
        target = self._run_dir.version(version)
        manifest = self._manifest(version, step, source, hashes)
        made = Version(version, step, self._run_dir.relative(target), sha256(manifest.encode()).hexdigest())
        self._versions.check(made, self._generation)
        if not _is_whole(target, manifest):
            try:
                with folder_written_whole(target) as folder:
                    for name in json.loads(manifest)["files"]:
                        _link(source / name, folder / name)
                    (folder / MANIFEST).write_text(manifest)
            except OSError as error:
                raise no_space(error, target.parent) from None
        failpoint("publish.renamed")
        self._versions.record(made, self._generation)
        failpoint("publish.after")
        return target

    def publish_shared(self, version: int, step: int) -> None:
        """Write down a version that lives in this process only; it has no files until it is checkpointed.

        Raises:
            LostClaimError: Another trainer took over.
        """
        self._versions.record(Version(version, step, None, None), self._generation)
        failpoint("publish.after")

    def fetch(self, version: int) -> Path:
        """The folder of a version, verified.

        Raises:
            WeightsError: There is no such version, it has no files, or one is torn or altered; names it.
        """
        return fetch(self._run_dir, self._versions.find(version), version)

    def retire(self, after: int) -> None:
        """Take back every version after one, where training does not make the same bytes again."""
        later = [known.version for known in self._versions.all() if known.version > after]
        self._versions.retire(after, self._generation)
        for version in later:
            shutil.rmtree(self._run_dir.version(version), ignore_errors=True)

    def collect(self, keep: int, needed: set[int]) -> list[Path]:
        """Remove the files of old versions: not of the last `keep`, the needed, the pinned, or those that a live reader uses.

        Returns:
            Folders that can't be removed; they are tried again the next time.
        """
        known = self._versions.all()
        stored = [version.version for version in known if version.uri is not None]
        pinned = {version.version for version in known if version.pinned}
        kept = set(stored[-keep:]) | needed | pinned | self._versions.in_use(READER_TIMEOUT_S)
        for version in stored:
            if version not in kept:
                self._versions.forget_files(version)
        without = {self._run_dir.version(version.version) for version in self._versions.all() if version.uri is None}
        gone = sorted(without.intersection(self._run_dir.weights.glob("v*")))
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)
        return [folder for folder in gone if folder.exists()]

    def _manifest(self, version: int, step: int, source: Path, hashes: Mapping[str, str] | None) -> str:
        names = sorted(path.name for path in source.iterdir() if path.is_file() and path.name != MANIFEST)
        files = {name: (hashes or {}).get(name) or file_sha256(source / name) for name in names}
        content = {"version": version, "step": step, "base_model": self._base_model, "form": "full", "files": files}
        return json.dumps(content, indent=1)


def fetch(run_dir: RunDir, known: Version | None, version: int) -> Path:
    """The folder of a version, verified; for readers that are not this run's trainer.

    Raises:
        WeightsError: There is no such version, it has no files, or one is torn or altered; names it.
    """
    if known is None:
        raise WeightsError(f"{run_dir.root} has no version {version}", "`rft show` lists the versions")
    if known.uri is None:
        raise WeightsError(
            f"version {version} of {run_dir.root} has no files any more, or never had", "choose one that `rft show` lists with files"
        )
    folder = run_dir.resolve(known.uri)
    if not (folder / MANIFEST).exists() or file_sha256(folder / MANIFEST) != known.sha256:
        raise WeightsError(f"{folder / MANIFEST} is missing or altered", "publish the version again from its checkpoint")
    damaged = _damaged(folder, (folder / MANIFEST).read_text())
    if damaged is not None:
        raise WeightsError(f"{damaged} is missing, torn or altered", "publish the version again from its checkpoint")
    return folder


def newest_complete(run_dir: RunDir, versions: list[Version]) -> tuple[int, Path]:
    """The newest version whose files are whole, and its folder.

    Raises:
        WeightsError: There is none.
    """
    for known in reversed(versions):
        if known.uri is not None:
            try:
                return known.version, fetch(run_dir, known, known.version)
            except WeightsError:
                continue
    raise WeightsError(f"{run_dir.root} holds no whole version", "a run has one after its first checkpoint")


def _is_whole(folder: Path, manifest: str) -> bool:
    """Whether a folder holds exactly what a manifest says."""
    written = folder / MANIFEST
    return written.exists() and written.read_text() == manifest and _damaged(folder, manifest) is None


def _damaged(folder: Path, manifest: str) -> Path | None:
    """The first file that is not what the manifest says."""
    files = json.loads(manifest)["files"]
    return next((folder / name for name in files if not (folder / name).exists() or file_sha256(folder / name) != files[name]), None)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
