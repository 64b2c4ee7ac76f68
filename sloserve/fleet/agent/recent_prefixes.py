"""Prompts that an instance was sent a moment ago, which its report names for all gateways.

A gateway knows which prompts it sent itself. The next call of a task may come through another gateway, which should
send it to the same instance: there the prefix cache has the prompt. The gateway that sends a request states digests of
its prompt, the agent reports them for a few seconds, and every gateway remembers what it has read.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

REPORTED_S: Final = 5.0
"""Seconds for which a prompt is reported: gateways ask every quarter of a second, and give an agent up after 3 s."""
MOST_REPORTED: Final = 256
"""Most beginnings in a report, which are about 10 KB; the oldest are left out."""


class RecentPrefixes:
    """Tokens of beginnings of prompts by digest. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def sent(self, prompt: Mapping[str, int], now_s: float) -> None:
        """Record that the instance computes a prompt, given the tokens of its beginnings by digest."""
        for digest, tokens in prompt.items():
            self._sent[digest] = tokens, now_s
            self._sent.move_to_end(digest)
        while len(self._sent) > MOST_REPORTED:
            self._sent.popitem(last=False)

    def reported(self, now_s: float) -> Mapping[str, int]:
        """Return the tokens of each recent beginning by its digest, the newest last."""
        while self._sent:
            digest, (_, sent_s) = next(iter(self._sent.items()))
            if now_s - sent_s < REPORTED_S:
                break
            del self._sent[digest]
        return {digest: tokens for digest, (tokens, _) in self._sent.items()}

    def clear(self) -> None:
        """Forget all prompts: the cache that had them is gone."""
        self._sent.clear()
