"""Which model a conversation is on. Bounded: the conversation that was silent longest is forgotten first."""

from collections import OrderedDict
from hashlib import blake2b

_DIGEST_BYTES = 16
"""A client's text, however long, takes so much."""


class Conversations:
    """At most ``most`` conversations."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._models: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def model_of(self, conversation: str) -> str | None:
        """The model that its last request went to, if that is known still."""
        return self._models.get(_key(conversation))

    def went_to(self, conversation: str, model: str) -> None:
        """A request of it goes to ``model``."""
        key = _key(conversation)
        self._models[key] = model
        self._models.move_to_end(key)
        while len(self._models) > self._most:
            self._models.popitem(last=False)


def _key(conversation: str) -> bytes:
    return blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
