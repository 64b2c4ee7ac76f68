"""What a request needs of a model: features, room for its prompt, and the conversation that it belongs to."""

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from sloserve.fleet.client_routes import RESPONSES
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.sizes import MEDIA_TOKENS, prompt_bytes
from sloserve.wire.body import BYTES_PER_TOKEN, Body, parse

TOOLS: Final = "tools"
GRAMMAR: Final = "grammar"
MEDIA: Final = {"image": "images", "audio": "audio", "video": "video"}
"""Feature that a part of a message needs, by a word in its type, as ``image_url``."""


class _Asked(Body):
    """Fields of a body that say what a model must support; read only where there are models to choose from."""

    messages: Any = None
    input: Any = None
    prompt: Any = None
    text: Any = None
    output_config: Any = None
    tools: Any = None
    tool_choice: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request needs of a model.

    Args:
        features: Features that a model must support.
        prompt_tokens: Estimated tokens of all its prompts.
        longest_tokens: Estimated tokens of the longest of several prompts, since each has a context of its own.
        conversation: Key that is equal for all requests of one conversation; ``None`` for a request that has none.
        begins: Whether it is the first request of its conversation.
    """

    features: frozenset[str]
    prompt_tokens: int
    longest_tokens: int
    conversation: str | None
    begins: bool


def needs_of(request: GatewayRequest) -> Needs:
    """Read the needs of a request from its body. Raises: InvalidRequest if the body cannot be read."""
    if request.is_form:
        return Needs(frozenset({MEDIA["audio"]}), request.prompt_tokens, request.prompt_tokens, None, True)
    read = parse(request.body, _Asked)
    said = read.messages if read.messages is not None else read.input
    said = [{"role": "user", "content": said}] if request.route == RESPONSES and isinstance(said, str) else said
    messages = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    features, media = _media(messages)
    if read.tools and read.tool_choice not in ("none", {"type": "none"}):
        features.add(TOOLS)
    if _asks_for_grammar(read):
        features.add(GRAMMAR)
    text_tokens = request.prompt_tokens - prompt_bytes(json.dumps(media).encode()) // BYTES_PER_TOKEN
    prompt_tokens = max(text_tokens, 1) + MEDIA_TOKENS * len(media)
    roles = [one.get("role") for one in messages]
    begin = messages[: roles.index("user") + 1] if "user" in roles else messages
    longest = math.ceil(prompt_tokens * _longest_share(read.prompt))
    return Needs(
        frozenset(features), prompt_tokens, longest, json.dumps(begin) if begin else None, "assistant" not in roles
    )


def _asks_for_grammar(read: _Asked) -> bool:
    grammars = (read.structured_outputs, read.guided_json, read.guided_regex, read.guided_choice, read.guided_grammar)
    within = (_of(read.text, "format"), _of(read.output_config, "format"), read.response_format)
    kinds = [one.get("type", "text") for one in within if isinstance(one, dict)]
    return any(kind != "text" for kind in kinds) or any(grammar is not None for grammar in grammars)


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _longest_share(prompt: Any) -> float:
    """Return the longest prompt's share of the length of all; 1 if there is one prompt."""
    sizes = [len(one) for one in prompt if isinstance(one, str | list)] if isinstance(prompt, list) else []
    return max(sizes) / total if (total := sum(sizes)) else 1.0


def _media(messages: list[dict[str, Any]]) -> tuple[set[str], list[Any]]:
    """Return what the parts of the messages that are not text need, and these parts.

    vLLM takes parts without a type, too. A body may have 100,000s of parts, and the event loop waits: each word is
    looked for once in each kind of part.
    """
    contents = [content for one in messages if isinstance(content := one.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    kinds = [str(part["type"]) if "type" in part else " ".join(part) for part in parts]
    needed = {kind: {needed for word, needed in MEDIA.items() if word in kind} for kind in set(kinds)}
    media = [part for kind, part in zip(kinds, parts, strict=True) if needed[kind]]
    return set().union(*needed.values()), media
