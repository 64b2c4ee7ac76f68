"""A gateway of a fleet with a fair queue, in front of engines with stock's scheduler: a rival of shares over the fleet.

The order is of :mod:`benchmarks.baselines.tenants`, with a queue for each model, and counts the tokens that a tenant
was served in the whole fleet. A request goes to the engine with the fewest requests, of those with its model and with
room: fewer than ``QUEUE_DEPTH`` requests wait there, and less than ``KV_USED`` of the KV cache is in use. The gateway
knows both at once, and the tokens that were served after ``LOOK_S``.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.baselines.tenants import KV_USED, QUEUE_DEPTH, Gateway, TokenCounter
from sloserve.fleet.simulated.dispatcher import Dispatcher, Give, Operation, SimulatedView, Switch, WaitingRequest
from sloserve.fleet.simulated.simulated_instance import SimulatedInstance

LOOK_S: Final = 0.1
"""Seconds between two counts of the tokens that requests in engines have."""


class _Rows:
    """The columns that orders read, by the number of the request."""

    def __init__(self) -> None:
        self.seq: list[int] = []
        self.account: list[int] = []
        self.prompt_tokens: list[int] = []
        self.output_tokens: list[int] = []

    def add(self, account: int, prompt_tokens: int) -> int:
        """Add a request without output, and return its number."""
        slot = len(self.seq)
        self.seq.append(slot)
        self.account.append(account)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(0)
        return slot


class FairGateway(Dispatcher):
    """Sends the requests of tenants in the order of a rival. Each instance keeps the model that it begins with.

    Args:
        order: Makes the order of one model's queue.
    """

    def __init__(self, order: Callable[[], Gateway]) -> None:
        self._make, self._orders = order, dict[str, Gateway]()
        self._counter, self._rows, self._looked_s = TokenCounter(()), _Rows(), 0.0
        self._accounts: dict[str, int] = {}
        self._held: dict[str, dict[int, deque[int]]] = {}  # requests by model and account, in order of arrival
        self._ids: list[str] = []
        self._sent: dict[str, tuple[int, SimulatedInstance]] = {}

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        return ()

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        account = self._accounts.setdefault(request.tenant, len(self._accounts))
        slot = self._rows.add(account, request.prompt_tokens)
        self._ids.append(request.request_id)
        self._held.setdefault(request.model, {}).setdefault(account, deque()).append(slot)

    def ended(self, request_id: str, tokens: int, view: SimulatedView) -> None:
        slot, _ = self._sent.pop(request_id)
        self._rows.output_tokens[slot] = tokens
        self._counter.forget(self._rows_of_orders, slot)

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        self._look(view.now_s)
        operations: list[Operation] = []
        new: Counter[str] = Counter()
        for model, held in self._held.items():
            able = [one for one in view.instances if one.active == model and isinstance(one, SimulatedInstance)]
            while held and (having := [one for one in able if _has_room(one, new[one.name])]):
                account = self._order(model).choose(self._rows_of_orders, held, Counter())
                assert account is not None
                slot = held[account].popleft()
                if not held[account]:
                    del held[account]
                one = min(having, key=lambda it: (it.num_in_flight + new[it.name], it.name))
                new[one.name] += 1
                self._sent[self._ids[slot]] = slot, one
                operations.append(Give(self._ids[slot], one.name))
        return operations

    @property
    def _rows_of_orders(self) -> Any:
        return self._rows

    def _order(self, model: str) -> Gateway:
        if model not in self._orders:
            self._orders[model] = self._make()
            self._orders[model].counter = self._counter
        return self._orders[model]

    def _look(self, now_s: float) -> None:
        """Count what the requests in engines were served since the last look."""
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        for request_id, (slot, one) in self._sent.items():
            self._rows.output_tokens[slot] = one.generated(request_id)
        self._counter.look(self._rows_of_orders, np.array([slot for slot, _ in self._sent.values()], np.int64))


def _has_room(one: SimulatedInstance, new: int) -> bool:
    """Return whether an instance takes a request. new: requests that it was given and does not count yet."""
    (engine,) = one.engines
    queued = one.num_in_flight + new - int(engine.scheduler.running.size)
    return (queued < QUEUE_DEPTH and engine.kv_used < KV_USED) or one.num_in_flight + new == 0
