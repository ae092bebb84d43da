"""The flow that scores published versions on held-out tasks."""

from typing import Any

from prefect import flow

from tasks.bench import bench_opened, score_version


@flow(name="bench", flow_run_name="bench-{run}", persist_result=False)
async def bench(run: str, versions: list[int] | None = None) -> list[dict[str, Any]]:
    """Score versions of a run, greedily.

    Args:
        run: Path of a run folder.
        versions: Which; the base model and all versions that have files, if left out.
    """
    async with bench_opened(run) as opened:
        wanted = versions or [0, *(known.version for known in opened.catalog.versions.all() if known.uri is not None)]
        return [await score_version(run, version) for version in wanted]
