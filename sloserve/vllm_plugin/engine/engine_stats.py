"""Count what happens in one scheduler, whatever its policy: waiting requests by class, outcomes, cost of planning.

The figures are one array of slots (:class:`~sloserve.engine.metrics.engine_page.Layout`). While there is a page the
array is the page's, so that counting is publishing. It costs a few microseconds a step, and one reading of each
request's SLO.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from vllm.v1.request import Request

from sloserve.core import numbers
from sloserve.core.arrays import FloatArray
from sloserve.core.errors import InvalidRequest
from sloserve.core.served import InEngine
from sloserve.core.slo import ClassTable
from sloserve.core.stated import StatedSLO
from sloserve.core.tenants import TenantTable
from sloserve.engine.metrics.engine_page import SCALARS, Layout, PageWriter
from sloserve.engine.metrics.swap_figures import SWAP_COUNTERS, SWAP_SCALARS
from sloserve.engine.metrics.tenant_figures import TenantRows
from sloserve.engine.policy_change import PolicyChanged
from sloserve.engine.read_stated import StatedReader
from sloserve.engine.stages import Stages
from sloserve.engine.step_shares import StepShares, kv_seconds
from sloserve.engine.tenant_shares import Balances, TenantShares
from sloserve.lso.plan import SwapFacts
from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.vllm_port import admitted_ids
from sloserve.wire.xargs import internal_keys

logger = logging.getLogger(__name__)

COUNTERS = (
    "plans", "reused_plans", "stale_plans", "plan_errors", "internal_errors", "policy_preemptions", "paused_steps",
    "limited_steps", "malformed_slo",
)  # fmt: skip
"""Figures that other parts count in the counters of the scheduler."""

_AT = Layout.at
_LAST_STEP_S, _RUNNING, _WAITING, _PREEMPTED, _PAUSED = (
    _AT[name] for name in ("last_step_s", "running", "waiting", "preempted", "paused")
)
_STEPS, _TOKENS, _PREEMPTIONS = _AT["steps"], _AT["scheduled_tokens"], _AT["vllm_preemptions"]
_SHADOW = {name.removeprefix("shadow_"): at for name, at in _AT.items() if name.startswith("shadow_")}
_COUNTER_OF = {"policy_preemptions": "evictions", "swapped_by_policy": "swapped_evictions"}
"""Figures with a counter that has another name, which is a key of result.json and stays."""
_COUNTERS = tuple((_AT[name], _COUNTER_OF.get(name, name)) for name in COUNTERS)
_SWAP_COUNTERS = tuple(
    (at, _COUNTER_OF.get(name, name)) for name, at in _AT.items() if name in SWAP_COUNTERS or name not in SCALARS
)
_SWAP_NAMES = tuple(name for name in _AT if name in SWAP_SCALARS or name not in SCALARS)
_POOL_USED, _POOL_PEAK, _POOL_TOTAL = (_AT[f"swap_pool_{kind}_bytes"] for kind in ("used", "peak", "total"))


class EngineStats:
    """The figures of one scheduler, and each live request's SLO, read once.

    Attributes:
        stages: Stage of each of its requests, and when the stage began.
    """

    def __init__(
        self,
        classes: ClassTable,
        counters: Counter[str],
        tenants: TenantTable | None = None,
        tenant_rows: TenantRows | None = None,
        shares: StepShares | None = None,
    ) -> None:
        self.slo_of: dict[str, StatedSLO] = {}
        self._reader = StatedReader(classes, tenants)
        self._class_id = {c.name: i for i, c in enumerate(classes)}
        self._counters = counters
        self._tenant_rows = tenant_rows
        self._layout = Layout(len(self._class_id), 0 if tenant_rows is None else tenant_rows.size)
        self._values: FloatArray = np.zeros(self._layout.size)
        self._page: PageWriter | None = None
        self._waiting: dict[str, int] = {}  # class of each request never admitted yet
        self._preempted: set[str] = set()
        self._shares = shares or StepShares()
        self.stages = Stages(self._shares)
        self._found: dict[str, int] = {}  # tokens of each admitted request that a cache had, less those computed again
        self._just_preempted: list[str] = []
        self._paused: Counter[str] = Counter()
        self._swaps: Counter[str] | None = None  # of live requests; None while there is no pool
        self._preemptions = 0
        self._steps = self._tokens = 0

    def follow(self, classes: ClassTable) -> None:
        """Read the requests to come by ``classes``, which have the names of the classes so far."""
        self._reader.follow(classes)

    def enqueued(self, request: Request, host_ahead_s: float = 0.0) -> StatedSLO:
        """Count a new request; return what it states.

        Args:
            request: The request.
            host_ahead_s: Seconds by which the host's clock, by which its task is due, is ahead of the scheduler's.
        """
        stated = self._read(request)
        if host_ahead_s and stated.call is not None:
            stated = replace(stated, call=stated.call.later(-host_ahead_s))
        self.slo_of[request.request_id] = stated
        self._waiting[request.request_id] = stated.class_id
        self.stages.arrived(request.request_id, request.arrival_time)
        self._values[self._layout.enqueued + stated.class_id] += 1
        self._values[self._layout.waiting + stated.class_id] += 1
        return stated

    def _read(self, request: Request) -> StatedSLO:
        extra_args = request.sampling_params.extra_args if request.sampling_params is not None else None
        try:
            return self._reader.read(extra_args, compat.lora_name(request))
        except InvalidRequest as error:
            # The engine cannot answer 400 any more; the front end has refused such a request before it came here.
            self._counters["malformed_slo"] += 1
            if self._counters["malformed_slo"] == 1:
                logger.warning("request %s is served without its SLO: %s", request.request_id, error)
            return self._reader.read(internal_keys(extra_args), compat.lora_name(request))

    def preempted(self, request: Request) -> None:
        self._preempted.add(request.request_id)
        self._just_preempted.append(request.request_id)
        self._preemptions += 1

    def stepped(self, scheduler: Any, output: Any, paused: Sequence[Request], now_s: float) -> None:
        """Count one step: the requests that it admitted, and the state after it."""
        values = self._values
        self.stages.scheduled(admitted_ids(output), self._just_preempted, paused, now_s)
        for new in output.scheduled_new_reqs:
            class_id = self._waiting.pop(new.req_id, None)
            if class_id is not None:
                values[self._layout.waiting + class_id] -= 1
                values[self._layout.admitted + class_id] += 1
            self._found[new.req_id] = new.num_computed_tokens
        if output.scheduled_cached_reqs.resumed_req_ids:
            self._resumed(scheduler.requests, output.scheduled_cached_reqs)
        if self._preempted:
            self._preempted -= self._preempted & output.num_scheduled_tokens.keys()
        for request in paused:
            self._paused[request.request_id] += 1
        running, waiting = scheduler.get_request_counts()
        values[_LAST_STEP_S] = now_s
        values[_RUNNING] = running
        values[_WAITING] = waiting
        values[_PREEMPTED] = len(self._preempted)
        values[_PAUSED] = len(paused)
        self._steps += 1
        self._tokens += output.total_num_scheduled_tokens
        values[_STEPS] = self._steps
        values[_TOKENS] = self._tokens
        if self._preemptions:
            values[_PREEMPTIONS] = self._preemptions - self._counters.get("evictions", 0)
        if self._counters:
            for at, name in _COUNTERS:
                values[at] = self._counters.get(name, 0)

    def _resumed(self, requests: Mapping[str, Request], cached: Any) -> None:
        """Count the tokens of resumed requests that are computed again."""
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request_id in cached.resumed_req_ids and request_id in self._found:
                self._found[request_id] -= requests[request_id].num_tokens - computed

    def swap_space(self, pool: SwapFacts, peak_blocks: int) -> None:
        """Set the figures of the host pool as it is after a step, and what was counted of swapping.

        Args:
            pool: The pool.
            peak_blocks: Most blocks that were in use at any time.
        """
        if self._swaps is None:
            self._swaps = Counter()
        values = self._values
        values[_POOL_TOTAL] = pool.total_blocks * pool.block_bytes
        values[_POOL_USED] = (pool.total_blocks - pool.free_blocks) * pool.block_bytes
        values[_POOL_PEAK] = peak_blocks * pool.block_bytes
        for at, name in _SWAP_COUNTERS:
            values[at] = self._counters.get(name, 0)

    def swapped(self, request_id: str) -> None:
        """Record that the KV of a preempted request goes to the host."""
        if self._swaps is not None:
            self._swaps[request_id] += 1

    def copied(self, direction: str, num_bytes: int, seconds: float) -> None:
        """Count copies that ended.

        Args:
            direction: ``out`` to the host, ``in`` back.
            num_bytes: Bytes that were copied.
            seconds: Seconds that the copies took.
        """
        self._values[_AT[f"swap_{direction}_bytes"]] += num_bytes
        self._values[_AT[f"swap_{direction}_seconds"]] += seconds

    def planned(self, cost_s: float) -> None:
        """Count one plan with its cost, in seconds."""
        self._values[_AT["plan_seconds_sum"]] += cost_s
        self._values[Layout.bucket(cost_s)] += 1

    def shadowed(self, figures: Mapping[str, float] | None) -> None:
        """Set the shadow policy's figures, by their names without ``shadow_``; all 0 for ``None``."""
        for name, at in _SHADOW.items():
            self._values[at] = 0.0 if figures is None else figures[name]

    def step_times(self, figures: Mapping[str, float]) -> None:
        """Set the figures that show how well the times of steps are known."""
        for name, value in figures.items():
            self._values[_AT[name]] = value

    def recording(self, lost: int, failed: bool) -> None:
        """Set what the recording has lost; its own thread calls this.

        Args:
            lost: Number of events that were lost.
            failed: Whether the recording has ended because it cannot be written.
        """
        self._values[_AT["recording_lost"]] = lost
        self._values[_AT["recording_failed"]] = failed

    def set_tenants(self, shares: TenantShares, balances: Balances) -> None:
        """Set what the tenants have had and are due."""
        if self._tenant_rows is not None:
            self._values[self._layout.tenants :] = self._tenant_rows.figures(shares, balances).ravel()
            if self._page is not None:
                self._page.name_tenants(self._tenant_rows.names)

    def freed(self, request: Request, now_s: float, kv_share: float = 0.0) -> None:
        """Record that a request ended, in whatever way.

        What it met is on the page before its last output leaves.

        Args:
            request: The request.
            now_s: The present time, in epoch seconds.
            kv_share: Share of the KV cache that it holds.
        """
        request_id = request.request_id
        self.slo_of.pop(request_id, None)
        class_id = self._waiting.pop(request_id, None)
        if class_id is not None:
            self._values[self._layout.waiting + class_id] -= 1
        self._preempted.discard(request_id)
        if self._swaps is not None:
            swaps = self._swaps.pop(request_id, 0)
            self._values[Layout.swap_bucket(swaps)] += 1
            self._values[_AT["swaps_sum"]] += swaps
        met = self._met(request, now_s, kv_share)
        if met is not None and self._page is not None:
            self._page.note_ended(request_id, met)
            # One of several outputs of a request: its own id is the id of the request behind its number.
            index, _, parent = request_id.partition("_")
            if numbers.is_whole(index) and parent:
                self._page.note_ended(parent, met, is_part=True)

    def _met(self, request: Request, now_s: float, kv_share: float) -> InEngine | None:
        """Return what a request met and used; ``None`` if it was never admitted."""
        request_id, prompt, tokens = request.request_id, request.num_prompt_tokens, request.num_output_tokens
        stages, spent = self.stages.by_id.get(request_id), self.stages.ended(request_id, now_s)
        paused, found = self._paused.pop(request_id, 0), self._found.pop(request_id, None)
        if found is None or stages is None:
            return None
        return InEngine(
            paused_steps=paused,
            paused_s=spent.paused_s,
            preempted_s=spent.preempted_s,
            engine_s=max(prompt - found, 0) * self._shares.prompt_token_s + stages.decoded_s,
            kv_s=kv_seconds(kv_share, prompt, tokens, spent.running_s + spent.paused_s),
        )

    def status(self) -> dict[str, Any]:
        """Return the figures as plain values.

        The figures of the host pool are under ``swap_space``, which is ``None`` without a pool.
        """
        named = dict(zip(_AT, self._values.tolist(), strict=False))
        swap = {name: named.pop(name) for name in _SWAP_NAMES}
        first = self._layout.waiting
        waiting = {name: int(self._values[first + i]) for name, i in self._class_id.items()}
        return {**named, "waiting_by_class": waiting, "swap_space": None if self._swaps is None else swap}

    def publish_on(self, page: PageWriter) -> None:
        """Publish the figures: move them into ``page``, where they are counted afterwards."""
        page.values[:] = self._values
        self._values, self._page = page.values, page

    def say_policies(
        self, policy: str, shadow_policy: str | None, plans_off: str | None, change: PolicyChanged | None
    ) -> None:
        if self._page is not None:
            self._page.set_policies(policy, shadow_policy, plans_off, change)

    def close(self) -> None:
        """Take the page away; counting goes on."""
        if self._page is not None:
            self._values = self._values.copy()
            self._page.close()
            self._page = None
