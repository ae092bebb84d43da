"""Tell the author of an environment what is wrong with it, before a run does."""

import asyncio
import inspect
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, Protocol

from rft_core.environments.base import Environment
from rft_core.errors import EmptyPromptError
from rft_core.types import Completion, Message, Source, StopReason, Task, Trajectory, Turn

REPLY = " 42 "
"""What the policy of a check always says; with space around it, which an environment must hand on."""


class ChatTokenizer(Protocol):
    """What a check needs of a tokenizer; `rft_core.tokens.Tokenizer` is one."""

    def render(self, messages: Sequence[Message]) -> str: ...

    def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]: ...


class LetterTokenizer:
    """A tokenizer with a token for each character, and a chat template that only ever adds to what was there."""

    def render(self, messages: Sequence[Message]) -> str:
        return "".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant: "

    def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        return tuple(map(ord, text))


class RecordingPolicy:
    """A policy that always says the same and remembers each turn that it gave.

    Args:
        tokenizer: Renders and tokenises prompts.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.turns: list[tuple[Turn, Source]] = []

    async def start(self, messages: Sequence[Message]) -> Turn:
        await asyncio.sleep(0)
        return self._turn(messages, REPLY, -1.0, Source.POLICY)

    def reply(self, messages: Sequence[Message], response: str) -> Turn:
        return self._turn(messages, response, 0.0, Source.EXPERT)

    def _turn(self, messages: Sequence[Message], response: str, logprob: float, source: Source) -> Turn:
        prompt_text = self._tokenizer.render(messages)
        prompt = self._tokenizer.encode(prompt_text)
        if not prompt:
            raise EmptyPromptError("the prompt has no tokens", "a prompt needs at least one")
        tokens = self._tokenizer.encode(response)
        completion = Completion(tokens, (logprob,) * len(tokens), StopReason.EOS, 0, 0)
        turn = Turn(prompt, completion, prompt_text, response)
        self.turns.append((turn, source))
        return turn


def check_environment(
    environment: Environment, task: Task | None = None, tokenizer: ChatTokenizer | None = None, limit_s: float = 20.0
) -> list[str]:
    """Run an environment once against a small policy in memory, and say in sentences what is wrong.

    Args:
        environment: A fresh one: it is used up.
        task: A task as its task set gives them; a sum if left out.
        tokenizer: A model's own, to check multi-turn prompts with its chat template; one token a character if left out.
        limit_s: How long it may take.

    Returns:
        What is wrong, one sentence each; nothing if the environment keeps to the protocol.

    Example:
        >>> from rft_core.environments.single_turn import SingleTurn
        >>> from rft_core.registry import ExtensionConfig
        >>> check_environment(SingleTurn(ExtensionConfig()))
        []
    """
    run: Any = getattr(environment, "run", None)
    if not callable(run):
        return [f"{type(environment).__name__} has no method `run(task, policy)`."]
    policy = RecordingPolicy(tokenizer or LetterTokenizer())
    task = task or Task("check", (Message("user", "What is 6 * 7?"),), answer="42", response="42")
    try:
        started = run(task, policy)
    except Exception as error:  # noqa: BLE001 - a user's code: what it raises is what this function is to tell
        return [_raised(error)]
    if not inspect.isawaitable(started):
        return ["`run` is not async: write `async def run(self, task, policy)`, so that attempts can run side by side."]
    try:
        returned = _finish(started, limit_s)
    except TimeoutError:
        return [f"`run` did not end within {limit_s:g} s, though the policy answers at once."]
    except Exception as error:  # noqa: BLE001 - as above
        return [_raised(error)]
    return _problems(returned, policy)


def _finish(started: Any, limit_s: float) -> Any:
    """Await in a thread of its own: a notebook has a running loop in this one, and code that blocks must not block here."""
    result: Future[Any] = Future()

    async def finish() -> Any:
        return await started

    def body() -> None:
        try:
            result.set_result(asyncio.run(finish()))
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
            result.set_exception(error)

    Thread(target=body, daemon=True).start()
    return result.result(limit_s)


def _raised(error: Exception) -> str:
    return f"`run` raised {type(error).__name__}: {error}"


def _problems(returned: object, policy: RecordingPolicy) -> list[str]:
    if returned is None:
        return ["`run` returned None: return a list of trajectories; perhaps a `return` is missing."]
    if not isinstance(returned, list) or not all(isinstance(item, Trajectory) for item in returned):
        return [f"`run` returned {_kind(returned)}: return a list of `Trajectory`."]
    if not returned:
        return ["`run` returned no trajectory: an attempt that can't be made raises an error that says why."]
    problems = [] if policy.turns else ["`run` never asked the policy: there is nothing to train."]
    used: list[Turn] = []
    for number, trajectory in enumerate(returned, start=1):
        problems += [f"Trajectory {number} {problem}" for problem in _trajectory_problems(trajectory, policy, used)]
    return problems


def _trajectory_problems(trajectory: Trajectory, policy: RecordingPolicy, used: list[Turn]) -> list[str]:
    if not trajectory.turns:
        return ["has no turns."]
    problems = []
    before: Turn | None = None
    for number, turn in enumerate(trajectory.turns, start=1):
        problems += [f"turn {number} {problem}" for problem in _turn_problems(turn, trajectory.source, policy)]
        if any(turn is other for other in used):
            problems.append(f"turn {number} is in the result twice: its tokens would be trained twice.")
        used.append(turn)
        if before is not None and not _continues(turn, before):
            problems.append(
                f"turn {number} does not begin with the tokens of turn {number - 1}: hand every earlier message on unchanged, "
                "the policy's own words included, or return the turns as trajectories of their own."
            )
        before = turn
    return problems


def _turn_problems(turn: Turn, source: Source, policy: RecordingPolicy) -> list[str]:
    given = [(own, its_source) for own, its_source in policy.turns if own == turn]
    if given:
        its_source = given[0][1]
        if its_source is source or source is Source.HUMAN:
            return []
        return [
            f"came from `policy.{'start' if its_source is Source.POLICY else 'reply'}`, but the trajectory's source is {source.value!r}."
        ]
    for own, _ in policy.turns:
        if own.completion.tokens == turn.completion.tokens and own.prompt_tokens != turn.prompt_tokens:
            return ["has other prompt tokens than the policy was given: return turns as they are."]
        if own.prompt_tokens == turn.prompt_tokens:
            return ["has another completion than the policy gave: sampled tokens, their log-probs and text must be kept as they are."]
    return ["is not from the policy: return the turns that `policy.start` or `policy.reply` gave."]


def _continues(turn: Turn, before: Turn) -> bool:
    whole = before.prompt_tokens + before.completion.tokens
    return turn.prompt_tokens[: len(whole)] == whole


def _kind(value: object) -> str:
    if isinstance(value, list):
        return f"a list with a {next(type(item).__name__ for item in value if not isinstance(item, Trajectory))}"
    return f"a {type(value).__name__}"
