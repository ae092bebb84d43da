"""How much an engine may write for a request; the same for every engine."""

from rft_core.errors import EmptyPromptError, EngineError, PromptTooLongError
from rft_core.types import GenerationRequest


def token_limit(request: GenerationRequest, max_context: int) -> int:
    """The most tokens that an answer to this request may have.

    Args:
        request: What is asked.
        max_context: Prompt and answer together, in tokens.

    Raises:
        EmptyPromptError: The prompt has no tokens.
        PromptTooLongError: The prompt leaves no room for an answer.
        EngineError: The request asks for less than one token.
    """
    length = len(request.prompt_tokens)
    if length == 0:
        raise EmptyPromptError("the prompt has no tokens", "the task's messages must render to some text")
    if length >= max_context:
        raise PromptTooLongError(
            f"the prompt has {length} tokens and the context holds {max_context}",
            "leave room for an answer: a shorter prompt or a larger `model.max_context`",
        )
    if request.max_tokens < 1:
        raise EngineError(f"the request asks for {request.max_tokens} tokens", "ask for at least one")
    return min(request.max_tokens, max_context - length)
