"""The experience table: the face of the buffer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from rft_core.buffer import files, forms, rows, schema
from rft_core.buffer.labels import Combine, combined
from rft_core.catalog import REWARD, Catalog, NewGroup, Settlement, StoredFile
from rft_core.errors import DeadlineError, LostClaimError, SegmentError
from rft_core.failpoints import failpoint
from rft_core.run_dir import EVALUATIONS, OVERLAYS, SEGMENTS
from rft_core.storage import Storage
from rft_core.types import Experience, Source, digest

_READERS = 4
"""Segments that are read side by side."""
_AT_ONCE = 64_000_000
"""Bytes of files from which on a scan gathers no further one to those that it reads together."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """What a pipeline made of one experience."""

    experience_id: str
    shaped_reward: float | None
    dropped_by: str | None = None
    drop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group's rows as they happened, what was said of them since, and what a pipeline made of them."""

    group_id: str
    rows: tuple[Experience, ...]
    shaped: Mapping[str, Shaped]
    """By experience id; empty where no overlay was asked for."""
    labelled: Mapping[str, float] = field(default_factory=dict)
    """Labels of the reward, by experience id."""

    def attempts(self) -> list[tuple[Experience, ...]]:
        """The rows of each attempt."""
        return [tuple(attempt) for _, attempt in groupby(self.rows, key=lambda row: row.attempt)]

    def reward_of(self, attempt: Sequence[Experience]) -> float | None:
        """The reward of an attempt before any shaping: its label where it has one, or what the scorer gave."""
        labels = [self.labelled[row.experience_id] for row in attempt if row.experience_id in self.labelled]
        return labels[-1] if labels else attempt[-1].reward


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a run takes rows into its table."""

    writer: str = "explorer-0"
    """Who writes: an explorer's name, or what the process does. What a killed writer left is swept under this name."""
    awaits_rewards: bool = True
    """Whether a group of which no attempt has a reward waits for labels; false for runs that learn without rewards."""
    awaits_each: bool = False
    """Whether it waits already when one attempt has none; else such an attempt is not trained, and the others are."""
    deadline_s: float | None = None
    """How long it waits; null: to the end of the run."""
    pipeline: str | None = None
    """Version of the run's pipeline of operators, which groups pass before they are trained; null for none."""
    score: Callable[[Sequence[float]], float | None] = lambda rewards: None
    """The priority of a group, given the rewards of its attempts."""
    then: Settlement = "drop"
    """What becomes of a group whose deadline passes."""
    combine: Combine = "newest"
    """What counts where several labels of one experience differ."""

    @property
    def ready_for(self) -> Literal["shaping", "training"]:
        """What groups with rewards wait for next."""
        return "training" if self.pipeline is None else "shaping"


class ExperienceStore:
    """Appends segments and overlays, and reads groups back.

    Args:
        storage: Where the files are.
        catalog: What makes them part of the table.
        terms: How rows become groups that are trained on.
    """

    def __init__(self, storage: Storage, catalog: Catalog, terms: Terms = Terms()) -> None:
        self._storage = storage
        self._catalog = catalog
        self.terms = terms

    def append(self, key: str, experiences: Sequence[Experience], explorer: str, step: int, rejected: str | None = None) -> StoredFile:
        """Append the rows of whole groups as one segment, and close their leases.

        Args:
            key: Names this append: a second one with it changes nothing.
            experiences: Attempts of any number of groups; they are stored group by group and attempt by attempt.
            explorer: Who sampled them.
            step: The step that they were sampled for.
            rejected: Why none of them may be trained, where too many attempts failed; their leases are issued again.

        Raises:
            TidemillError: A row is not valid.
            LostClaimError: Another process took over these leases.
            UserError: The file can't be written.
        """
        groups = _by_group(experiences)
        table = rows.to_arrow([row for group in groups for row in group])
        uri = f"{SEGMENTS}/{files.unique_name(key)}"
        known = self._catalog.segments.find_or_intend(key, uri, self.terms.writer)
        if known is not None:
            return known
        failpoint("segment.intended")
        file = files.write(self._storage, uri, table, "segment.renamed")
        new = [self._new_group(group) for group in groups]
        if rejected is not None:
            new = [replace(group, status="failed", reason=rejected, queue=None) for group in new]
        try:
            self._catalog.segments.commit(key, file, explorer, step, schema.VERSION, new, rejected)
        except LostClaimError:
            self._storage.delete(uri)  # whoever took over may have swept already, and would never find it
            raise
        failpoint("segment.committed")
        return file

    def overlay(
        self, segment: str, shaped: Mapping[str, Sequence[Shaped]], account: Any, dropped: Mapping[str, str], read_at: int | None = None
    ) -> None:
        """Lay what the run's pipeline made of groups over them; the same groups a second time change nothing.

        Args:
            segment: Key of the append that brought them.
            shaped: By group id, one for each of its rows.
            account: What the operators say of what they did, as plain values.
            dropped: Groups of which nothing is left, with the reason.
            read_at: Sequence number of the state that the groups were read at: those that got another reward since are shaped again.
                The present one if left out, which is right where nobody labels meanwhile.

        Raises:
            LostClaimError: Another process swept this one's intent.
        """
        pipeline = self.terms.pipeline
        assert pipeline is not None, "a run without operators shapes nothing"
        read_at = self._catalog.segments.snapshot() if read_at is None else read_at
        labelled = self._catalog.labels.newest(list(shaped), REWARD, read_at)  # a group that gets another label is shaped again
        key = f"{pipeline}-{segment}-{digest('overlay', labelled, *sorted(shaped))[:8]}"
        if self._catalog.segments.has_overlay(key):
            return
        values = [
            {"pipeline": pipeline, **{name: _clean(getattr(row, name)) for name in Shaped.__slots__}}
            for group in shaped.values()
            for row in group
        ]
        uri = f"{OVERLAYS}/{files.unique_name(key)}"
        self._catalog.segments.intend(key, uri, self.terms.writer)
        file = files.write(self._storage, uri, pa.Table.from_pylist(values, schema=schema.OVERLAY), "overlay.renamed")
        try:
            self._catalog.segments.commit_overlay(key, pipeline, file, list(shaped), account, dropped, read_at=read_at)
        except LostClaimError:
            self._storage.delete(uri)
            raise

    def groups(self, group_ids: Sequence[str], pipeline: str | None = None, at: int | None = None) -> list[StoredGroup]:
        """Read groups back, in the order asked for.

        Args:
            group_ids: Which.
            pipeline: Bring what this pipeline made of them too.
            at: Sequence number of the state whose labels and overlays count; the present one if left out.

        Raises:
            SegmentError: A file that holds them is missing, torn or altered, or was deleted since nothing needed it any more.
        """
        found = self._rows_of(group_ids)
        shaped = self._shaped(pipeline, found, at) if pipeline else {}
        labelled = combined(self._catalog.labels.of_groups(group_ids, REWARD, at), self.terms.combine)
        return [
            StoredGroup(
                group_id,
                mine := found[group_id],
                {row.experience_id: shaped[row.experience_id] for row in mine if row.experience_id in shaped},
                {row.experience_id: labelled[row.experience_id] for row in mine if row.experience_id in labelled},
            )
            for group_id in group_ids
        ]

    def kept(self, group_ids: Sequence[str]) -> list[str]:
        """Those of some groups whose rows are still there: the others were let go, as the recipe's `table.retention` says."""
        where = self._catalog.segments.of_groups(group_ids)
        return [group_id for group_id in group_ids if group_id in where]

    def scan(self, stored: Sequence[StoredFile]) -> Iterator[dict[str, Any]]:
        """Read segments whole, as arrays: by column, a NumPy view a row for what is per token, a value a row for the rest.

        Args:
            stored: Which segments. Small ones come together, some thousand rows at a time.

        Raises:
            SegmentError: One is missing, torn or altered.
        """
        with ThreadPoolExecutor(_READERS) as readers:
            for together in _batches(stored):
                # Not one further ahead: threads that read and Python that decodes would wait for each other most of the time.
                tables = list(readers.map(partial(files.read, self._storage), together))
                yield rows.to_arrays(files.segments_as_one(together, tables))

    def settle(self) -> tuple[int, int]:
        """Settle the groups whose deadline for labels has passed; returns how many were dropped, and how many go on."""
        return self._catalog.labels.settle(self.terms.then, self.terms.ready_for)

    def write_answers(self, name: str, answers: Sequence[Mapping[str, Any]]) -> StoredFile:
        """Write the scored answers of an evaluation, of the columns of `schema.EVALUATION`, to a new file, for `record_evaluation`."""
        cleaned = [{key: _clean(value) for key, value in row.items()} for row in answers]
        table = pa.Table.from_pylist(cleaned, schema=schema.EVALUATION)
        uri = f"{EVALUATIONS}/{files.unique_name(name)}"
        self._catalog.segments.intend(uri, uri, self.terms.writer)
        return files.write(self._storage, uri, table, "evaluation.written")

    def sweep(self) -> None:
        """Remove what killed writers left: the intents of this one's name and those that are too old, and their files after."""
        self._catalog.segments.sweep(self.terms.writer, remove=remover_of_tries(self._storage))

    def _new_group(self, group: list[Experience]) -> NewGroup:
        attempts = [list(attempt) for _, attempt in groupby(group, key=lambda row: row.attempt)]
        status, reason = _status(attempts, self.terms)
        rewards = [attempt[-1].reward for attempt in attempts if attempt[-1].reward is not None]
        pending = status == "pending"
        return NewGroup(
            group_id=group[0].group_id,
            lease_id=group[0].lease_id,
            size=len(attempts),
            status=status,
            reason=reason,
            lowest_version=min(row.policy_version for row in group),
            source=next((row.source.value for row in group if row.source is not Source.POLICY), Source.POLICY.value),
            priority=self.terms.score(rewards) or 0.0,
            queue="labels" if pending else self.terms.ready_for if status == "ready" else None,
            rewarded=len(rewards),
            awaits=[[row.experience_id for row in attempt] for attempt in attempts if _is_unrewarded(attempt)] if pending else [],
            due_in_s=self.terms.deadline_s if pending else None,
        )

    def _rows_of(self, group_ids: Sequence[str]) -> dict[str, tuple[Experience, ...]]:
        """The rows of groups. A compaction may delete a file between the look-up and the read: then the rows are in another one."""
        found: dict[str, tuple[Experience, ...]] = {}
        where = self._catalog.segments.of_groups(group_ids)
        gone = next((group_id for group_id in group_ids if group_id not in where), None)
        if gone is not None:
            raise SegmentError(f"the rows of group {gone} were let go", "keep more of the table (table.retention), or pin what is needed")
        for file in dict.fromkeys(file for _, file in where.values()):
            try:
                table = files.read_segment(self._storage, file)
            except SegmentError:
                if file in {now for _, now in self._catalog.segments.of_groups(group_ids).values()}:
                    raise
                return self._rows_of(group_ids)
            found.update(_grouped(table, pa.array(group_ids)))
        return found

    def _shaped(self, pipeline: str, found: Mapping[str, Sequence[Experience]], at: int | None) -> dict[str, Shaped]:
        """What a pipeline made of groups, given their rows, by experience id. As with rows, a compaction may move it meanwhile."""
        overlays = self._catalog.segments.overlays_of(pipeline, list(found), at)
        if at is not None and len(overlays) < len(found) and files.num_deleted(self._catalog, at, pipeline):
            lost = next(group_id for group_id in found if group_id not in overlays)
            raise SegmentError(f"what operators made of group {lost} at {at} was deleted", "pin a state for as long as it is needed")
        shaped: dict[str, Shaped] = {}
        for file in dict.fromkeys(overlays.values()):
            # It may say something older of other groups.
            mine = [row.experience_id for group_id, newest in overlays.items() if newest == file for row in found[group_id]]
            try:
                table = files.read(self._storage, file).select(Shaped.__slots__)
            except SegmentError:
                if file in self._catalog.segments.overlays_of(pipeline, list(found), at).values():
                    raise
                return self._shaped(pipeline, found, at)
            of_mine = table.filter(pc.is_in(table["experience_id"], value_set=pa.array(mine, pa.string())))
            shaped.update({row["experience_id"]: Shaped(**row) for row in of_mine.to_pylist()})
        return shaped


def _batches(stored: Sequence[StoredFile]) -> Iterator[list[StoredFile]]:
    """Files in their order, as many together as make a row group, or as much as a batch may have in memory."""
    batch: list[StoredFile] = []
    for file in stored:
        batch.append(file)
        if sum(one.rows for one in batch) >= rows.ROWS_IN_GROUP or sum(one.bytes for one in batch) >= _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def remover_of_tries(storage: Storage) -> Callable[[str], None]:
    """For one sweep, what removes a file that was never committed, and what a killed writer left of it. It lists a folder once."""
    leftovers = cache(lambda folder: list(storage.leftovers(folder)))

    def remove(uri: str) -> None:
        storage.delete(uri)
        for leftover in leftovers(uri.rpartition("/")[0]):
            if leftover.startswith(f"{uri}."):
                storage.delete(leftover)

    return remove


def read_answers(storage: Storage, uri: str, sha256: str | None = None) -> list[dict[str, Any]]:
    """Read the scored answers of an evaluation back: values by the columns of `schema.EVALUATION`.

    Args:
        storage: Where they are.
        uri: Of their file.
        sha256: Of the file as it was written; not verified if left out.

    Raises:
        SegmentError: The file is missing, torn or altered.
    """
    answers: list[dict[str, Any]] = files.read(storage, StoredFile(uri, 0, 0, sha256 or "")).to_pylist()
    return answers


def _clean(value: Any) -> Any:
    return forms.clean_text(value) if isinstance(value, str) else value


def _grouped(table: pa.Table, wanted: pa.Array) -> dict[str, tuple[Experience, ...]]:
    """The rows of the wanted groups, by group id."""
    mine = table.filter(pc.is_in(table["group_id"], value_set=wanted))
    return {group_id: tuple(group) for group_id, group in groupby(rows.from_arrow(mine), key=lambda row: row.group_id)}


def _by_group(experiences: Sequence[Experience]) -> list[list[Experience]]:
    """Rows by group in the order in which the groups appear, in each by attempt."""
    groups: dict[str, list[Experience]] = {}
    for row in experiences:
        groups.setdefault(row.group_id, []).append(row)
    return [sorted(group, key=lambda row: row.attempt) for group in groups.values()]


def _status(attempts: list[list[Experience]], terms: Terms) -> tuple[str, str]:
    """Failed if every attempt did, pending if the rewards that it waits for are missing, else ready."""
    errors = [attempt[-1].error for attempt in attempts if attempt[-1].error is not None]
    if len(errors) == len(attempts):
        timed_out = all(error.startswith(DeadlineError.__name__) for error in errors)
        return ("timed_out" if timed_out else "failed"), errors[0]
    unrewarded = sum(map(_is_unrewarded, attempts))
    if terms.awaits_rewards and unrewarded and (terms.awaits_each or unrewarded == len(attempts) - len(errors)):
        return "pending", "no reward yet"
    return "ready", ""


def _is_unrewarded(attempt: list[Experience]) -> bool:
    return attempt[-1].error is None and attempt[-1].reward is None
