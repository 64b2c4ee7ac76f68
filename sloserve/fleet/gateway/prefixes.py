"""Prompt beginnings that an instance has in its prefix cache, as far as a gateway knows.

These are the ones that it sent there, and whole prompts that other gateways sent there, which the agent reports. A
cache drops what was used longest ago. So a beginning counts until the instance has been sent as many new tokens since
as its KV cache holds beside it.

A prompt is cut where another is likely to go on alike: a conversation after each message, a text every 2,048 bytes. The
digest of each beginning covers all that stands before the cut.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from sloserve.fleet.sizes import prompt_bytes
from sloserve.wire.body import BYTES_PER_TOKEN

MOST: Final = 4096
"""Most beginnings that are remembered of one instance."""
_NAMED: Final = 2
"""Beginnings of a prompt that reports name."""
_CUTS: Final = 64
"""Most cuts of one prompt: the last ones, since a longer match is worth more."""
_TEXT_BYTES: Final = 2048
_MOST_COMMAS: Final = 16_384
"""Most commas in messages that are parsed: each may end a message, which takes a microsecond and 100 bytes."""

_parts = msgspec.json.Decoder(list[msgspec.Raw])


class Beginning(NamedTuple):
    """The beginning of a prompt up to a cut.

    Args:
        digest: Digest of the model's name and of all that stands before the cut.
        tokens: Estimated tokens up to the cut.
    """

    digest: bytes
    tokens: int


def beginnings(model: str, messages: memoryview, prompt: memoryview) -> tuple[Beginning, ...]:
    """Return the beginnings of a request's prompt, the longest last.

    Args:
        model: Model that the request asks for.
        messages: Bytes of ``messages`` in the body; empty if there are none.
        prompt: Bytes of ``prompt`` in the body; empty if there is none.
    """
    size = 0

    def sized() -> Iterator[tuple[memoryview, int]]:
        nonlocal size
        for piece in _pieces(messages, prompt):
            size += prompt_bytes(piece)
            yield piece, size // BYTES_PER_TOKEN

    return chained(model, sized())


def chained(model: str, pieces: Iterable[tuple[bytes | memoryview, int]]) -> tuple[Beginning, ...]:
    """Return the beginnings of a prompt that end with a piece, the longest last; only the last of many.

    Args:
        model: Model that the request asks for.
        pieces: Pieces of the prompt, each with the number of tokens of the prompt up to its end.
    """
    digest = hashlib.blake2b(model.encode(), digest_size=12)
    found: list[Beginning] = []
    for piece, tokens in pieces:
        digest.update(piece)
        found.append(Beginning(digest.digest(), tokens))
    return tuple(found[-_CUTS:])


def part(raw: object) -> memoryview:
    """Return a part of a body as it stands there; it is empty if the body lacks it, or was read in another way."""
    return memoryview(raw if isinstance(raw, msgspec.Raw) else b"")


def _pieces(messages: memoryview, prompt: memoryview) -> Iterator[memoryview]:
    if messages and bytes(messages).count(b",") <= _MOST_COMMAS:
        try:
            for message in _parts.decode(messages):
                yield memoryview(message)
        except (msgspec.MsgspecError, RecursionError):
            return
    else:
        text = messages or prompt
        for start in range(0, len(text), _TEXT_BYTES):
            yield text[start : start + _TEXT_BYTES]


def names_of(prompt: Sequence[Beginning]) -> dict[str, int]:
    """Return what reports say of a prompt: the tokens of its longest beginnings by digest, in hexadecimal digits.

    The longest is the whole prompt, with which a conversation goes on. A text goes on within its last piece, and so
    does a conversation of which the last message is changed: then the beginning before it is found again.
    """
    return {one.digest.hex(): one.tokens for one in prompt[-_NAMED:]}


def _digest_of(name: str) -> bytes:
    """Return the digest of a name in a report; empty if it is none."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""


class PrefixTable:
    """Beginnings of prompts that one instance computed; the ones not sent for longest are forgotten first.

    Attributes:
        capacity_tokens: Tokens that the instance's cache holds; infinite if that is not known.
    """

    def __init__(self) -> None:
        self.capacity_tokens = math.inf
        self._last_sent: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Tokens of each beginning, and the new tokens that the instance had been sent when it was sent last."""
        self._new_tokens = 0.0

    def __len__(self) -> int:
        return len(self._last_sent)

    def sent(self, prompt: Sequence[Beginning], new_tokens: float = 0.0) -> None:
        """Record that the instance computes this prompt.

        Args:
            prompt: Beginnings of the prompt.
            new_tokens: Tokens of prompt and output that were not in the cache; 0 if they are not known, so that other
                prompts are believed to be in the cache for longer than they are.
        """
        self._new_tokens += new_tokens
        for digest, tokens in prompt:
            self._last_sent[digest] = tokens, self._new_tokens
            self._last_sent.move_to_end(digest)
        while len(self._last_sent) > MOST:
            self._last_sent.popitem(last=False)

    def reported(self, cached: Mapping[str, int]) -> list[Beginning]:
        """Record beginnings that the instance computes, as its agent reports them: some came through other gateways.

        Args:
            cached: Tokens of each beginning by its digest in hexadecimal digits.

        Returns: the beginnings that were not known.
        """
        known = self._last_sent
        named = {digest: tokens for name, tokens in cached.items() if (digest := _digest_of(name)) not in known}
        new = [Beginning(digest, tokens) for digest, tokens in named.items() if digest]
        self.sent(new)
        return new

    def cached_tokens(self, prompt: Sequence[Beginning]) -> int:
        """Return the number of tokens of a prompt that the instance should have in its cache."""
        for digest, _ in reversed(prompt):
            tokens, sent_at = self._last_sent.get(digest, (0, 0.0))
            if tokens and tokens + self._new_tokens - sent_at <= self.capacity_tokens:
                return tokens
        return 0

    def clear(self) -> None:
        """Empty the table: another model came, and the cache is empty."""
        self._last_sent.clear()
