"""Rivals of tenants' shares: a fair queue in the engine, and fair gateways in front of an engine that serves in order.

All of them see tokens only as they are served, and no target. Weights are by the number of the tenant's account, in the
order in which tenants come.

``VTC`` is the virtual token counter (Sheng et al., OSDI 2024, Algorithm 2) in the engine: the waiting request of the
tenant with the least counter comes first. A token of a prompt counts 1, a token of an output 2, as in section 4.1. The
counter of a tenant that comes back is lifted to the least counter of the tenants that wait.

A gateway keeps requests until the engine has room: fewer than :data:`QUEUE_DEPTH` requests wait in the engine, and less
than :data:`KV_USED` of its KV cache is in use, which are the thresholds of llm-d's saturation detector. What was sent
waits in the engine as it came. The delay of the network is 0.

``LeastAttained`` sends the request of the tenant with the fewest tokens served. ``DeficitRoundRobin`` sends in rounds,
in each of which a tenant's deficit grows by a quantum of prompt tokens per weight. ``Caps`` sends a request if its
tenant has less than its part of ``in_flight`` requests in the engine.
"""

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows, State
from sloserve.scheduler.policy import Plan, Policy, Snapshot

QUEUE_DEPTH: Final = 5
KV_USED: Final = 0.8
QUANTUM_TOKENS: Final = 2048
OUTPUT_WEIGHT: Final = 2.0


class TokenCounter:
    """Tokens served by account, per weight: a prompt counts when its request first runs, outputs as they come."""

    NEEDS: Final = frozenset({"account", "prompt_tokens", "output_tokens"})

    def __init__(self, weights: Sequence[float], output_weight: float = 1.0) -> None:
        """Start without any token.

        Args:
            weights: Weight by account; 1 beyond the end.
            output_weight: What a token of an output counts, where a token of a prompt counts 1.
        """
        self._weights, self._output_weight = weights, output_weight
        self.served: dict[int, float] = {}
        self._seen: dict[int, int] = {}  # output tokens by seq of the request

    def weight(self, account: int) -> float:
        return self._weights[account] if account < len(self._weights) else 1.0

    def look(self, rows: Rows, slots: IntArray) -> None:
        """Count what the requests in ``slots``, which run, were served since the last look."""
        for slot in slots.tolist():
            seq, account, outputs = int(rows.seq[slot]), int(rows.account[slot]), int(rows.output_tokens[slot])
            before = self._seen.get(seq)
            tokens = (0 if before is None else outputs - before) * self._output_weight
            if before is None:
                tokens = int(rows.prompt_tokens[slot]) + outputs * self._output_weight
            self.served[account] = self.served.get(account, 0.0) + tokens / self.weight(account)
            self._seen[seq] = outputs

    def forget(self, rows: Rows, slot: int) -> None:
        """Count the last tokens of a request that ends."""
        if int(rows.seq[slot]) in self._seen:
            self.look(rows, np.array([slot]))
            del self._seen[int(rows.seq[slot])]

    def lift(self, present: Sequence[int], came: Sequence[int]) -> None:
        """Give tenants that come back no credit for the time in which they sent nothing."""
        others = [self.served.get(account, 0.0) for account in present if account not in came]
        if others:
            for account in came:
                self.served[account] = max(self.served.get(account, 0.0), min(others))

    def of(self, accounts: IntArray) -> FloatArray:
        return np.array([self.served.get(account, 0.0) for account in accounts.tolist()])


class VTC(Policy):
    """The virtual token counter."""

    needs = TokenCounter.NEEDS

    def __init__(self, weights: Sequence[float] = (), *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.counter = TokenCounter(weights, OUTPUT_WEIGHT)
        self._waited: set[int] = set()

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self.counter.forget(rows, slot)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, waiting = snapshot.rows, snapshot.waiting
        self.counter.look(rows, snapshot.running)
        present = set(rows.account[waiting].tolist())
        self.counter.lift(sorted(present), sorted(present - self._waited))
        self._waited = present
        if not waiting.size:
            return Plan.IDENTITY
        # The prompt of a request counts when it is chosen, and the next choice sees it.
        most = snapshot.engine.max_num_seqs
        in_order = waiting[np.argsort(rows.seq[waiting])]
        left = {
            account: deque(in_order[rows.account[in_order] == account][:most].tolist()) for account in sorted(present)
        }
        at = {account: self.counter.served.get(account, 0.0) for account in left}
        order: list[int] = []
        while left and len(order) < most:
            account = min(left, key=lambda one: (at[one], one))
            slot = left[account].popleft()
            order.append(slot)
            at[account] += float(rows.prompt_tokens[slot]) / self.counter.weight(account)
            if not left[account]:
                del left[account]
        return Plan(waiting=np.array(order, np.int64))


class Gateway(Policy):
    """A gateway in front of an engine that serves in the order in which requests come from it."""

    needs = TokenCounter.NEEDS

    def __init__(self, weights: Sequence[float] = (), *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.counter = TokenCounter(weights)
        self._held: dict[int, deque[int]] = {}  # slots by account, each in order of arrival; none is empty
        self._sent: dict[int, int] = {}  # place in the order of sending, by slot
        self._places = 0

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._held.setdefault(int(rows.account[slot]), deque()).append(slot)

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self.counter.forget(rows, slot)
        if self._sent.pop(slot, None) is None:
            self._held[int(rows.account[slot])].remove(slot)
            self._forget_empty(int(rows.account[slot]))

    def _forget_empty(self, account: int) -> None:
        if not self._held[account]:
            del self._held[account]

    @abstractmethod
    def choose(self, rows: Rows, held: dict[int, deque[int]], in_flight: Counter[int]) -> int | None:
        """Return the account of the next request to send; ``None`` to send none.

        Args:
            rows: The request table.
            held: Slots that the gateway holds, by account, each in order of arrival; no account has none.
            in_flight: Requests in the engine by account.
        """

    def has_room(self, snapshot: Snapshot, queued: int) -> bool:
        """Return whether the engine takes a request, with ``queued`` requests that wait in it."""
        engine = snapshot.engine
        return queued < QUEUE_DEPTH and engine.held_blocks < KV_USED * engine.total_blocks

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, running = snapshot.rows, snapshot.running
        self.counter.look(rows, running)
        for slot in running.tolist():
            if slot not in self._sent:  # the engine took it while no plan was in force
                self._held[int(rows.account[slot])].remove(slot)
                self._forget_empty(int(rows.account[slot]))
                self._sent[slot] = self._places = self._places + 1
        # Requests that were preempted were sent before all others, as they are in front of the engine's own queue.
        queued = [slot for slot in self._sent if rows.state[slot] in (State.WAITING, State.PREEMPTED)]
        in_flight = Counter(rows.account[np.array(list(self._sent), np.int64)].tolist())
        while self._held and (self.has_room(snapshot, len(queued)) or not self._sent):
            account = self.choose(rows, self._held, in_flight)
            if account is None:
                break
            slot = self._held[account].popleft()
            self._forget_empty(account)
            in_flight[account] += 1
            self._sent[slot] = self._places = self._places + 1
            queued.append(slot)
        most = max(int(running.size) + len(queued), 1)
        return Plan(waiting=np.array(queued, np.int64), max_running=most)


class LeastAttained(Gateway):
    """A gateway that sends the request of the tenant with the fewest tokens served."""

    def choose(self, rows: Rows, held: dict[int, deque[int]], in_flight: Counter[int]) -> int | None:
        return min(held, key=lambda account: (self.counter.served.get(account, 0.0), account))


class DeficitRoundRobin(Gateway):
    """A gateway that sends in rounds by prompt tokens."""

    def __init__(self, weights: Sequence[float] = (), *, seed: int = 0) -> None:
        super().__init__(weights, seed=seed)
        self._deficit: dict[int, float] = {}
        self._next = 0

    def choose(self, rows: Rows, held: dict[int, deque[int]], in_flight: Counter[int]) -> int | None:
        for account in [one for one in self._deficit if one not in held]:
            del self._deficit[account]  # an empty queue keeps no deficit
        while True:
            ring = sorted(held)
            account = next((one for one in ring if one >= self._next), ring[0])
            tokens = int(rows.prompt_tokens[held[account][0]])
            if self._deficit.get(account, 0.0) >= tokens:
                self._deficit[account] -= tokens
                self._next = account
                return account
            self._deficit[account] = self._deficit.get(account, 0.0) + QUANTUM_TOKENS * self.counter.weight(account)
            self._next = account if self._deficit[account] >= tokens else account + 1


class Caps(Gateway):
    """A gateway with a cap on each tenant's requests in the engine, which needs no other signal."""

    def __init__(self, weights: Sequence[float], in_flight: int, *, seed: int = 0) -> None:
        """Set the caps.

        Args:
            weights: Weight by account.
            in_flight: Requests in the engine that all tenants may have together.
            seed: Not used.
        """
        super().__init__(weights, seed=seed)
        total = sum(weights[1:])
        self._most = [max(round(in_flight * weight / total), 1) for weight in weights]

    def has_room(self, snapshot: Snapshot, queued: int) -> bool:
        return True

    def choose(self, rows: Rows, held: dict[int, deque[int]], in_flight: Counter[int]) -> int | None:
        able = [account for account in held if in_flight[account] < self._most[account]]
        return min(able, key=lambda account: int(rows.seq[held[account][0]]), default=None)


def rivals(weights: Sequence[float], in_flight: int) -> dict[str, Any]:
    """Return functions that build each rival, by name.

    Args:
        weights: Weight by account; the first is of requests without a tenant.
        in_flight: See :class:`Caps`.
    """
    return {
        "vtc": lambda: VTC(weights),
        "least attained": lambda: LeastAttained(weights),
        "deficit round robin": lambda: DeficitRoundRobin(weights),
        "caps": lambda: Caps(weights, in_flight),
    }
