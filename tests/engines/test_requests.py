import pytest

from rft_core.engines.requests import token_limit
from rft_core.errors import EmptyPromptError, EngineError, PromptTooLongError
from rft_core.types import GenerationRequest


def request(length: int, max_tokens: int = 10) -> GenerationRequest:
    return GenerationRequest(tuple(range(length)), max_tokens, temperature=1.0, seed=0)


def test_the_limit_is_what_was_asked_for_or_what_the_context_leaves() -> None:
    assert token_limit(request(5), max_context=100) == 10
    assert token_limit(request(95), max_context=100) == 5
    assert token_limit(request(99), max_context=100) == 1


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(PromptTooLongError, match="100 tokens and the context holds 100"):
        token_limit(request(100), max_context=100)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(EmptyPromptError):
        token_limit(request(0), max_context=100)


def test_a_request_for_nothing_is_refused() -> None:
    with pytest.raises(EngineError, match="asks for 0 tokens"):
        token_limit(request(5, max_tokens=0), max_context=100)
