"""One process that works Trinity-RFT's own SQL buffer; `trinity.py` starts it with the python of Trinity's environment.

Each line of stdin is a job in JSON. The worker prepares it, answers `{"ready": true}` on the pipe that its argument numbers, waits for one
more line, does the job, and answers with what it measured. Nothing of Trinity is patched: errors are counted by an event of SQLAlchemy.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

import torch
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from trinity.buffer.storage.sql import SQLExperienceStorage
from trinity.common.config import StorageConfig
from trinity.common.experience import EID, Experience

from benchmarks.rows import BATCH_ROWS, GROUP_SIZE, rows

MAX_RETRIES = 100
"""Of one call, after Trinity's own three tries: a storage that is locked for longer than this is broken."""
PAGE_ROWS = 1000
"""Of a page of `query`; larger pages suit it better than those of a batch."""

Work = Callable[[], Awaitable[list[Experience]]]


class Client:
    """Calls a storage as Trinity's callers do, and keeps count of what went wrong."""

    def __init__(self, url: str) -> None:
        self.storage = SQLExperienceStorage(
            StorageConfig(
                name="experiences",
                storage_type="sql",
                path=url,
                schema_type="experience",
                batch_size=BATCH_ROWS,
                max_read_timeout=120,
                wrap_in_ray=False,
            )
        )
        self.errors: Counter[str] = Counter()
        """What SQLite refused, by its message; Trinity tries such a call three times, a second apart, before it raises."""
        self.retries = 0
        """Calls that raised even so, and were made again at once."""
        self.call_s: list[float] = []

    async def prepare(self) -> None:
        await self.storage.prepare()
        event.listen(self.storage.engine.sync_engine, "handle_error", self._count)

    async def call(self, method: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        begun = time.monotonic()
        for _ in range(MAX_RETRIES):
            try:
                result = await method(*args)
            except OperationalError as error:
                if "locked" not in str(error.orig):
                    raise
                self.retries += 1
            else:
                self.call_s.append(time.monotonic() - begun)
                return result
        raise RuntimeError(f"the database was locked through {MAX_RETRIES} calls of {method.__name__}")

    def _count(self, context: Any) -> None:
        self.errors[str(context.original_exception)] += 1


def experience(row: dict[str, Any]) -> Experience:
    """A row as Trinity's explorer would make it: tensors, ids and texts in its own fields, in `info` what its runner puts there."""
    prompt = row["prompt_length"]
    return Experience(
        eid=EID(batch=row["step"], task=row["group"], run=row["attempt"]),
        tokens=torch.tensor(row["tokens"], dtype=torch.int32),
        logprobs=torch.tensor(row["logprobs"], dtype=torch.float32),
        action_mask=torch.tensor(row["action_mask"][prompt:], dtype=torch.bool),
        prompt_length=prompt,
        reward=row["reward"],
        prompt_text=row["prompt_text"],
        response_text=row["response_text"],
        truncate_status="response_truncated" if row["stop_reason"] == "length" else None,
        info={
            "model_version": row["policy_version"],
            "model_version_drift": 0,
            "use_count": 0,
            "task_index": {"taskset_id": 0, "index": row["group"]},
        },
    )


def write(client: Client, job: dict[str, Any]) -> Work:
    """Writes batches `writer`, `writer + writers`, ...; they are built before the start, as they would come from an explorer."""
    batches = [
        [experience(row) for row in rows(min(BATCH_ROWS, job["rows"] - first), job["seed"], first)]
        for first in range(job["writer"] * BATCH_ROWS, job["rows"], job["writers"] * BATCH_ROWS)
    ]

    async def work() -> list[Experience]:
        for batch in batches:
            await client.call(client.storage.write, batch)
        return []

    return work


def read(client: Client, job: dict[str, Any]) -> Work:
    """Takes rows as Trinity's trainer does, until it has `rows`: the newest unread batch, marked as read, decoded to tensors."""

    async def work() -> list[Experience]:
        taken: list[Experience] = []
        while len(taken) < job["rows"]:
            taken += await client.call(client.storage.read, min(BATCH_ROWS, job["rows"] - len(taken)))
        return taken

    return work


def scan(client: Client, job: dict[str, Any]) -> Work:
    """Reads the whole table through Trinity's `query`, which marks nothing, decoded to tensors."""

    async def work() -> list[Experience]:
        taken: list[Experience] = []
        while page := await client.call(client.storage.query, len(taken), PAGE_ROWS):
            taken += page
        return taken

    return work


COMMANDS = {"write": write, "read": read, "scan": scan}


def index_of(stored: Experience) -> int:
    return int(stored.eid.task) * GROUP_SIZE + stored.eid.run


def check(stored: Experience, seed: int) -> None:
    """A row that was read is the row that was written."""
    expected = experience(next(rows(1, seed, index_of(stored))))
    for name in ("tokens", "logprobs", "action_mask"):
        if not torch.equal(getattr(stored, name), getattr(expected, name)):
            raise RuntimeError(f"row {index_of(stored)} came back with other {name}")
    for name in ("reward", "prompt_text", "response_text", "truncate_status", "info"):
        if getattr(stored, name) != getattr(expected, name):
            raise RuntimeError(f"row {index_of(stored)} came back with another {name}")


async def perform(job: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
    client = Client(job["url"])
    await client.prepare()
    try:
        work = COMMANDS[job["command"]](client, job)
        answer({"ready": True})
        if not sys.stdin.readline():
            return
        started = time.monotonic()
        taken = await work()
        finished = time.monotonic()
    finally:
        await client.storage.engine.dispose()
    for stored in taken[:BATCH_ROWS]:
        check(stored, job["seed"])
    answer(
        {
            "started": started,
            "finished": finished,
            "call_s": client.call_s,
            "retries": client.retries,
            "errors": client.errors,
            "indices": [index_of(stored) for stored in taken],
        }
    )


async def main(answers: TextIO) -> None:
    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    while line := sys.stdin.readline():
        await perform(json.loads(line), answer)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "w") as pipe:
        asyncio.run(main(pipe))
