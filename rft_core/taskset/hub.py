"""Hugging Face data sets, from the local cache or downloaded.

What is cached is read as the Arrow files that it is, without network and without the `datasets` package: a run goes on
with the rows that it began with, whatever was published since.
"""

import os
import re
from glob import escape
from pathlib import Path

import pyarrow as pa
from huggingface_hub.constants import HF_HOME

from rft_core.config import TaskSetConfig
from rft_core.errors import DataError
from rft_core.taskset.rows import one_line
from rft_core.taskset.tables import ArrowRows
from rft_core.types import digest

HUB = "hf:"


def hub_rows(config: TaskSetConfig) -> ArrowRows:
    """The rows of `hf:ID`, `subset` and `split`.

    Raises:
        DataError: There is no such data set, subset or split, or it can't be had from here.
    """
    files = cached_files(config)
    table = pa.concat_tables([_mapped(file) for file in files]) if files else _load(config)
    return ArrowRows(config.source, table, _content(table), config.limit)


def cached_files(config: TaskSetConfig) -> list[Path]:
    """The Arrow files of a split in the local cache, in order; none if they are not all there.

    The layout is that of the `datasets` package: `OWNER___NAME/SUBSET/VERSION/HASH/NAME-SPLIT[-00000-of-00002].arrow`.
    """
    owner, _, name = config.source.removeprefix(HUB).rpartition("/")
    name = _snake_case(name)
    set_folder = _cache_home() / (f"{owner}___{name}" if owner else name)
    built = [p.parent for p in set_folder.glob(f"{escape(config.subset or '')}{'' if config.subset else '*'}/*/*/dataset_info.json")]
    built = [folder for folder in built if not folder.name.endswith(".incomplete")]
    if not built or len({folder.parts[-3] for folder in built}) > 1:
        return []
    newest = max(built, key=lambda folder: folder.stat().st_mtime)
    prefix = escape(f"{name}-{config.split}")
    shards = sorted(newest.glob(f"{prefix}.arrow")) or sorted(newest.glob(f"{prefix}-*-of-*.arrow"))
    return shards if not shards or len(shards) == _num_shards(shards[0]) else []


def _num_shards(file: Path) -> int:
    counted = re.search(r"-of-(\d+)\.arrow$", file.name)
    return int(counted.group(1)) if counted else 1


def _cache_home() -> Path:
    return Path(os.environ.get("HF_DATASETS_CACHE", Path(HF_HOME) / "datasets"))


def _snake_case(name: str) -> str:
    words = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z\d])([A-Z])", r"\1_\2", words).lower()


def _mapped(file: Path) -> pa.Table:
    return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()


def _load(config: TaskSetConfig) -> pa.Table:
    try:
        import datasets  # noqa: PLC0415 - the heavy half
    except ImportError as error:
        raise DataError(f"{config.source} needs the package `datasets` ({error})", "pip install datasets") from None
    try:
        loaded = datasets.load_dataset(config.source.removeprefix(HUB), config.subset, split=config.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        remedy = "name a data set, `subset` and `split` that exist; without network it must be in the local cache"
        raise DataError(f"{config.source} can't be loaded ({one_line(error)})", remedy) from None
    return loaded.with_format("arrow")[:]


def _content(table: pa.Table) -> str:
    batches = (digest(batch.serialize().to_pybytes()) for batch in table.to_batches(max_chunksize=1000))
    return digest(str(table.schema.remove_metadata()), *batches)
