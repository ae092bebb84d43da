"""Short runs whose rewards are scripted, so that it is known which groups have something to teach."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rft_core.buffer import Questions
from rft_core.catalog import Catalog, StepRow
from rft_core.config import RunConfig, parse
from rft_core.disk import file_sha256
from rft_core.engines.base import engines
from rft_core.engines.scripted import ScriptedConfig, ScriptedEngine
from rft_core.operators.apply import pipeline_version
from rft_core.rewards.combine import RewardSet
from rft_core.storage import open_storage
from rft_core.types import GenerationRequest, Reward, Task
from tasks.progress import watched_by
from tests import explorer_parts, loop
from tests.tiny_files import recipe, write_sums

assert explorer_parts.MOODY  # imported for the environments that it registers


class InProcess:
    """Scores by the recipe's rewards in this process: worker processes take longer to start than these runs take."""

    def __init__(self, config: RunConfig) -> None:
        self._rewards = RewardSet(config.rewards) if config.rewards else None

    async def score(self, task: Task, answer: str, timeout_s: float) -> Reward:
        return self._rewards(task, answer) if self._rewards else Reward(None)

    async def close(self) -> None: ...


class Notes:
    """Hears what a run does, and keeps what people should know."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[int] = []
        self.begun: list[tuple[int, int]] = []

    def begin(self, run: str, done: int, last: int) -> None:
        self.begun.append((done, last))

    def stage(self, step: int, stage: str) -> None: ...

    def step(self, step: int, last: int, figures: Mapping[str, float]) -> None:
        self.steps.append(step)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Runs:
    """Makes recipes in a folder, and runs them."""

    def __init__(self, folder: Path, policy: Path) -> None:
        self.folder = folder
        self._policy = policy
        write_sums(folder / "sums.jsonl")

    def recipe(self, tasks: str = "", name: str = "run", **changes: Any) -> dict[str, Any]:
        """A recipe of two groups of two attempts a step.

        Args:
            tasks: The task set in order. A letter is a task of which one answer is right and one wrong; a dot is one of
                which both are wrong, so that its group is dropped. Each question holds its number, so no two are the same.
            name: Of the run.
            changes: Keys of the recipe, with `__` for the dot.
        """
        source = self.folder / f"{name}.jsonl"
        rows = [{"question": f"{i % 10}+{'9' if kind == '.' else '0'}={i}", "answer": str(i)} for i, kind in enumerate(tasks or "a" * 24)]
        source.write_text("\n".join(map(json.dumps, rows)) + "\n")
        answers = {f"+0={row['answer']}": [row["answer"], "-"] for row in rows[::-1]}
        script = {"name": "scripted", "args": {"answers": answers, "default": ["-"], "by_attempt": True}}
        values: dict[str, Any] = {
            "name": name,
            "data__train__source": str(source),
            "data__train__order": "sequential",
            "data__evaluation": None,
            "rollout__engine": script,
            "rollout__batch_groups": 2,
            "rollout__group_size": 2,
            "checkpoint__every": 100,
        }
        return recipe(self.folder, self._policy, **{**values, **changes})

    def copy(self, values: dict[str, Any]) -> dict[str, Any]:
        """The recipe of a copy of a run, in this folder: what runs of other tests left is not changed."""
        copied = {**values, "runs_dir": str(self.folder / "runs")}
        shutil.copytree(loop.run_dir(values).root, loop.run_dir(copied).root)
        return copied

    def run(self, values: dict[str, Any]) -> Notes:
        heard = Notes()
        with watched_by(heard):
            loop.run(values)
        return heard

    def look(self, values: dict[str, Any]) -> "Look":
        return Look(values)


class Look:
    """What became of a run."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.run_dir = loop.run_dir(values)
        catalog = Catalog(f"sqlite:///{self.run_dir.catalog_file}")
        self.steps: list[StepRow] = catalog.claims.steps()
        self.fates = catalog.leases.fates()
        self.num_issued = catalog.leases.num_issued()
        self.versions = {known.version: known for known in catalog.versions.all()}
        self.evaluations = {known.version: dict(known.metrics) for known in catalog.versions.evaluations("held_out")}
        self.claims = {step.step: catalog.claims.find(step.step) for step in self.steps}
        questions = Questions(open_storage(self.run_dir.root), catalog, pipeline_version(parse(values).operators))
        self.ask: Callable[[str], list[dict[str, Any]]] = lambda question: questions.ask(question).to_pylist()
        leased = self.ask("select step, slot, task_id, epoch, fate from fates order by step, slot, epoch")
        self.leases = [(row["step"], row["slot"], row["epoch"], row["fate"]) for row in leased]
        self.per_step = dict(Counter(row["step"] for row in leased))
        catalog.close()
        assert sum(self.fates.values()) == self.num_issued

    def statuses(self) -> str:
        """One letter a step: trained or skipped."""
        return "".join(row.status[0] for row in self.steps)

    def metric(self, name: str) -> list[float | None]:
        return [row.metrics.get(name) for row in self.steps]

    def folders(self, of: str) -> set[str]:
        return {path.name for path in (self.run_dir.root / of).iterdir()}

    def weights(self, version: int) -> str:
        return file_sha256(self.run_dir.version(version) / "model.safetensors")


class PeakConfig(ScriptedConfig):
    """Which versions answer how well."""

    right: dict[int, int] = Field(default={})
    """How many of the first held-out tasks a version answers rightly."""


@engines.register("tests_peak", config=PeakConfig)
class PeakEngine(ScriptedEngine):
    """A script whose greedy answers depend on the version of the weights, as if training went up and down."""

    def _answer(self, prompt: str, request: GenerationRequest) -> str:
        assert isinstance(self._config, PeakConfig)
        if request.temperature > 0:
            return super()._answer(prompt, request)
        a, b = prompt.rstrip("=").split("+")
        return str(int(a) + int(b)) if request.order[0] < self._config.right.get(self.version, 0) else "-"


def peak(right: Mapping[int, int], answers: Sequence[str] = ("1", "2")) -> dict[str, Any]:
    """The engine of a recipe, by how many held-out tasks each version gets right."""
    return {"name": "tests_peak", "args": {"right": dict(right), "default": list(answers), "by_attempt": True}}
