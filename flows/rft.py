"""The flow that improves a model: curate, rollout, shape, train, sync."""

from contextlib import nullcontext
from typing import Any, Protocol

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from pydantic import PositiveInt

import tasks
from rft_core.config import RunConfig, parse
from tasks.beside import alongside, beside
from tasks.opening import opened
from tasks.session import Session
from tasks.supervise import supervised


class Stages(Protocol):
    """The verbs of the loop: Prefect tasks, or in tests the functions in them."""

    curate: Any
    rollout: Any
    shape: Any
    gather: Any
    train: Any
    sync: Any
    evaluate: Any
    report: Any
    conclude: Any


async def improve(session: Session, do: Stages) -> dict[str, Any]:
    """Try tasks, score what was tried, learn from it, and hand the new weights back, step by step."""
    run = session.run_id
    await do.evaluate(run, session.first_step - 1)
    async with beside() as meanwhile:
        for step in session.steps():
            while await do.curate(run, step):
                await do.rollout(run, step)
                await do.shape(run, step)
            await do.train(run, step)
            await do.sync(run, step)
            await do.evaluate(run, step)
            await meanwhile(do.report, run, step)
    summary: dict[str, Any] = await do.conclude(run)
    return summary


async def improve_beside(session: Session, do: Stages) -> dict[str, Any]:
    """Learn from what explorers bring that go on meanwhile, step by step."""
    run = session.run_id
    exploration = session.exploration
    await do.evaluate(run, session.first_step - 1)
    async with beside() as meanwhile, alongside(exploration.go_on()) if exploration else nullcontext():
        for step in session.steps():
            if not await do.gather(run, step):
                break
            await do.train(run, step)
            await do.sync(run, step)
            await do.evaluate(run, step)
            await meanwhile(do.report, run, step)
    summary: dict[str, Any] = await do.conclude(run)
    return summary


def _run_name() -> str:
    parameters = flow_run.parameters
    return str(parameters["name"] or parse(dict(parameters["config"])).name)


@flow(name="rft", flow_run_name=_run_name, persist_result=False)
async def rft(config: RunConfig, name: str | None = None, steps: PositiveInt | None = None, seed: int | None = None) -> dict[str, Any]:
    """Reinforcement fine-tuning as a recipe says; the same run again goes on where it stopped.

    Args:
        config: The recipe.
        name: Another name for the run, so that one deployment can make many.
        steps: Another number of steps.
        seed: Another seed.
    """
    changes = {key: value for key, value in (("name", name), ("steps", steps), ("seed", seed)) if value is not None}
    changed = parse({**config.model_dump(mode="json"), **changes})
    if changed.mode != "async":
        return await run_recipe(changed)
    async with get_client() as client:  # children show their flows where this one does
        return await supervised(changed, {"PREFECT_API_URL": str(client.api_url)})


@flow(name="train", flow_run_name=_run_name, persist_result=False)
async def train(config: RunConfig, name: str | None = None) -> dict[str, Any]:
    """The trainer of a run of mode `async` alone: it learns from what explorers bring, which are started elsewhere.

    Args:
        config: The recipe.
        name: Another name for the run.
    """
    return await run_recipe(config if name is None else parse({**config.model_dump(mode="json"), "name": name}))


async def run_recipe(config: RunConfig, do: Stages = tasks) -> dict[str, Any]:
    """Open a run, improve its policy to the last step, and close it."""
    async with opened(config) as session:
        return await (improve if config.mode == "sync" else improve_beside)(session, do)
