"""Swapping in the model engine: what ``Swapping`` and ``SwapConnector`` do on the scheduler's side beside live vLLM.

The same store, rule and link clock; see :mod:`sloserve.vllm_plugin.engine.swapping` for which load may begin when.
"""

from sloserve.engine.swap.control import SwapControl
from sloserve.engine.swap.retained import Ending
from sloserve.engine.virtual.virtual_swap_worker import Load, Store, Told
from sloserve.scheduler.policy import EngineFacts
from sloserve.sim.model.blocks import KVBlocks
from sloserve.sim.model.model_requests import RUNNING, ModelRequest, ModelRequests


class KVSwap:
    """The KV of preempted requests in host memory; ``begun`` lists the requests that the last step began to load."""

    def __init__(self, requests: ModelRequests, kv: KVBlocks, control: SwapControl) -> None:
        self._requests, self._kv = requests, kv
        self.control = control
        self._kept: set[int] = set()
        self._loading: dict[str, int] = {}
        self._stores: list[Store] = []
        self._loads: list[Load] = []
        self._ending: tuple[int, Ending] | None = None
        self.begun: list[ModelRequest] = []

    @property
    def num_kept(self) -> int:
        """An upper bound on the requests that wait with KV in the pool."""
        return len(self._kept)

    def take(self) -> tuple[list[Store], list[Load]]:
        """Return and clear the copies that the next step begins: the stores and the loads."""
        taken = self._stores, self._loads
        self._stores, self._loads = [], []
        return taken

    def given(self, index: int) -> None:
        """Note a new request, which may have KV in the pool already, or continue an ended one that has."""
        request_id = self._requests.handles[index].request_id
        if self.control.store.tokens_of(request_id) or self._continues(index):
            self._kept.add(index)

    def _continues(self, index: int) -> bool:
        contents = self._kv.contents(index, int(self._requests.prompt[index]))
        if not contents:
            return False
        hit_tokens = self._kv.hit_tokens(index, 0)
        request_id = self._requests.handles[index].request_id
        return self.control.retained.arrived(request_id, contents, self._kv.block_size, hit_tokens) > 0

    def ending(self, index: int, engine: EngineFacts) -> None:
        """Keep the KV of a running request with a complete output, if later requests may continue it."""
        counts = self._requests
        request = counts.handles[index]
        contents = self._kv.contents(index, int(counts.tokens[index]) - 1)
        if not contents or counts.left[index] or counts.state[index] != RUNNING:
            return
        ending = Ending(contents, self._kv.block_size, int(counts.prompt[index]), request.workload.call)
        self._ending = index, ending
        if self.control.is_worth_retaining(request.request_id, ending, engine):
            self._store(index, ending.tokens, ending.tokens, self.control.retained.worth_s(ending.tokens), ends=True)

    def before_preempt(self, index: int, engine: EngineFacts) -> None:
        """Keep the KV of a request that is about to lose its blocks, if the copy is worth its cost."""
        request_id, tokens = self._requests.handles[index].request_id, int(self._requests.computed[index])
        worth_s = self.control.worth_s(request_id, tokens, engine)
        if worth_s is None:
            self.control.store.counters["swap_refused_cost"] += 1
            if self.control.store.tokens_of(request_id):  # KV of the ended request that it continues
                self._kept.add(index)
            return
        self.keep(index, worth_s)

    def keep(self, index: int, worth_s: float) -> None:
        """Copy the KV of a running request to the pool, if there is room."""
        counts = self._requests
        if self._store(index, int(counts.computed[index]), int(counts.tokens[index]) - 1, worth_s):
            self._kept.add(index)

    def _store(self, index: int, tokens: int, known: int, worth_s: float, *, ends: bool = False) -> bool:
        """Copy the KV of ``tokens`` tokens, of which ``known`` are not taken back; return whether there is room."""
        request_id = self._requests.handles[index].request_id
        kept = self.control.store.store(request_id, tokens, worth_s, known, ends=ends)
        if kept is None:
            return False
        places, host_ids = kept
        if not host_ids:
            return True
        number = 0
        if ends:
            number = self.control.stores_beside(len(host_ids), self._kv.watched(index, places))
        else:
            self.control.stores(len(host_ids))
        self._stores.append((number, host_ids))
        return True

    def frontier(self, index: int, hit: int) -> int:
        """Return how many leading tokens of the request have KV after a load; 0 where there is nothing to load.

        The first ``hit`` of these tokens are found in the prefix cache.
        """
        if index not in self._kept:
            return 0
        counts = self._requests
        store = self.control.store
        frontier = store.frontier(counts.handles[index].request_id, int(counts.tokens[index]))
        return frontier if frontier > hit and store.blocks_to_load(hit, frontier) else 0

    def load(self, index: int, hit: int, frontier: int) -> None:
        """Load the KV behind the first ``hit`` tokens of a request, which has its blocks."""
        request = self._requests.handles[index]
        _, host_ids = self.control.store.load(request.request_id, hit, frontier)
        self._loads.append((request.request_id, host_ids))
        self.control.loads(request.request_id, len(host_ids))
        self._loading[request.request_id] = index
        self._kept.discard(index)
        self.begun.append(request)

    def runs(self, index: int) -> None:
        """Drop the KV kept for a request that runs without it: the prefix cache has it all."""
        if index in self._kept:
            self._kept.discard(index)
            counts = self._requests
            num_tokens = int(counts.tokens[index])
            self.control.store.unused(counts.handles[index].request_id, num_tokens, "found_elsewhere")

    def told(self, told: Told) -> list[int]:
        """Record what the worker reports with a step's output; return the requests with finished loads."""
        for request_id in told.loaded:
            self.control.store.loaded(request_id)
        self.control.timed(told.out, told.back)
        return [self._loading.pop(request_id) for request_id in told.loaded]

    def ended(self, index: int) -> None:
        """Forget the request, which will not come back."""
        ending, self._ending = self._ending, None
        self.control.ended(
            self._requests.handles[index].request_id, ending[1] if ending is not None and ending[0] == index else None
        )
        self._drop(index, "ended")

    def _drop(self, index: int, reason: str) -> None:
        self._kept.discard(index)
        self.control.store.drop(self._requests.handles[index].request_id, reason)
