"""A simulated fleet in which gateways know what each prefix cache holds, as exact and immediate KV events would say.

A live gateway estimates from the prompts that it sent which beginnings of a prompt an engine still has. vLLM can
publish an event for each block that it stores or drops. The fleet here asks the simulated caches themselves, which is
more than events could say: nothing comes late, and nothing is lost.
"""

from collections.abc import Sequence
from typing import Any

from sloserve.fleet.gateway.prefixes import Beginning, PrefixTable
from sloserve.fleet.simulated.dispatcher import Operation, SimulatedView, Switch, WaitingRequest
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.simulated_gateway import beginnings_of

Prompts = dict[bytes, tuple[WaitingRequest, int]]
"""A request that begins like that, and the tokens of the beginning, by its digest."""


class KnownPrefixes(PrefixTable):
    """The table of an instance with a prefix cache that is looked into.

    Args:
        instance: The simulated instance, which serves one model.
        prompts: All beginnings so far.
    """

    def __init__(self, instance: Any, prompts: Prompts) -> None:
        super().__init__()
        self._instance, self._prompts = instance, prompts

    def cached_tokens(self, prompt: Sequence[Beginning]) -> int:
        if not prompt or not self._instance.engines:
            return 0
        kv = self._instance.engines[0].scheduler.kv
        request, tokens = self._prompts[prompt[-1].digest]
        nodes, size = kv._nodes, int(kv.block_size)
        node, found = None, 0
        for i in range(tokens // size):
            node = nodes._nodes.get((node, *nodes._content(request, i)))
            if node is None or kv._pool.found(node) is None:
                break
            found = (i + 1) * size
        return found


class KnowingFleet(LiveFleet):
    """A live fleet of instances that serve one model, with gateways that know what their prefix caches hold."""

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        self._prompts: Prompts = {}
        self._simulated = {one.name: one for one in view.instances}
        return super().begin(view)

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        for one in beginnings_of(request):
            self._prompts.setdefault(one.digest, (request, one.tokens))
        super().arrived(request, view)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        for gateway in self._gateways:
            for name, one in gateway._instances.by_name.items():
                if not isinstance(one.prefixes, KnownPrefixes):
                    one.prefixes = KnownPrefixes(self._simulated[name], self._prompts)
        return super().tick(view)
