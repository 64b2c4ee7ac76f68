"""Remembers the model of each conversation. Memory is bounded: the longest silent conversation is forgotten first."""

from collections import OrderedDict
from hashlib import blake2b

_DIGEST_BYTES = 16
"""Bytes of a digest, which is kept in place of a client's text of any length."""


class Conversations:
    """The models of at most ``most`` conversations."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._models: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def model_of(self, conversation: str) -> str | None:
        """Return the model that received the last request of the conversation, if it is still known."""
        return self._models.get(_key(conversation))

    def went_to(self, conversation: str, model: str) -> None:
        """Record that a request of the conversation goes to ``model``."""
        key = _key(conversation)
        self._models[key] = model
        self._models.move_to_end(key)
        while len(self._models) > self._most:
            self._models.popitem(last=False)


def _key(conversation: str) -> bytes:
    return blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
