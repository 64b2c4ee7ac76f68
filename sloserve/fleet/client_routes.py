"""The routes of engines that clients of a fleet reach, by what they do with a request.

Each is POST; the engine of a model decides which of them the model has.
"""

from typing import Final

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
"""Route of Anthropic's API."""
AUDIO: Final = ("/v1/audio/transcriptions", "/v1/audio/translations")
"""Routes of which the body is a form with a recording."""

GENERATING: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, *AUDIO)
"""Routes that generate tokens, so that engines keep the SLO of a request."""
POOLING: Final = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")
"""Routes that compute prompts, and no output."""
TOKENIZING: Final = ("/tokenize", "/detokenize", f"{MESSAGES}/count_tokens")
"""Routes that no GPU computes."""
FORWARDED: Final = (*GENERATING, *POOLING, *TOKENIZING)
"""All routes that a gateway passes on."""
SALTED: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, *POOLING)
"""Routes of which the body may have ``cache_salt``."""
