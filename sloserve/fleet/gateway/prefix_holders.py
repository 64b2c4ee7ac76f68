"""Remembers which instances may have the beginning of a prompt in their prefix caches: no draw leaves them out.

In a large fleet a gateway looks at a few instances for each request. The ones that were lately sent the same beginning
are always among them. What is kept here are hints: whether an instance still has the prompt is for its own
:class:`~sloserve.fleet.gateway.prefixes.PrefixTable` to say.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sloserve.fleet.gateway.gateway_instance import GatewayInstance
from sloserve.fleet.gateway.prefixes import Beginning

MOST_HOLDERS: Final = 6
"""Most instances that are remembered of one beginning; where more have it, the drawn ones are likely to have it too."""
MOST: Final = 1 << 18
"""Most beginnings that are remembered, about 50 MB; the ones not sent for longest are forgotten first."""


class PrefixHolders:
    """The last instances that were sent each beginning."""

    def __init__(self) -> None:
        self._holders: OrderedDict[bytes, tuple[GatewayInstance, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def sent(self, one: GatewayInstance, prompt: Iterable[Beginning], seed: int) -> None:
        """Record that an instance computes a prompt.

        Args:
            one: The instance.
            prompt: Beginnings of the prompt.
            seed: Seed that says which of too many holders is replaced, so that no few of them get all requests.
        """
        for digest, _ in prompt:
            known = self._holders.get(digest, ())
            if one not in known:
                if len(known) >= MOST_HOLDERS:
                    place = seed % MOST_HOLDERS
                    known = known[:place] + known[place + 1 :]
                self._holders[digest] = (*known, one)
            self._holders.move_to_end(digest)
        while len(self._holders) > MOST:
            self._holders.popitem(last=False)

    def of(self, prompt: Sequence[Beginning]) -> Iterator[GatewayInstance]:
        """Iterate over instances that may have a part of the prompt, the ones with the longest part first."""
        for digest, _ in reversed(prompt):
            yield from reversed(self._holders.get(digest, ()))
