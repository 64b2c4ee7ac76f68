"""vLLM's scheduler behind the engine port: ``compat`` reads it, ``apply`` carries plans out."""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, repeat
from typing import Any, Final

from vllm.v1.request import Request

from sloserve.core.arrays import IntArray
from sloserve.core.clock import Clock
from sloserve.core.kernels.requests import counts_of, read_counts
from sloserve.core.rows import State
from sloserve.core.stated import StatedSLO
from sloserve.engine.columns import live_columns, static_columns
from sloserve.engine.request_table import RequestTable
from sloserve.engine.step_clock import StepClock
from sloserve.lso.preemption import Holding
from sloserve.scheduler.policy import EngineFacts, Plan
from sloserve.vllm_plugin.engine import apply, compat, prefix_cache
from sloserve.vllm_plugin.engine.swapping import Swapping
from sloserve.vllm_plugin.kv_groups import layout_of


def admitted_ids(output: Any) -> Sequence[str]:
    """Return the ids of the requests that a step admitted, in order of admission.

    Args:
        output: A ``SchedulerOutput``.
    """
    ids = [new.req_id for new in output.scheduled_new_reqs]
    resumed = output.scheduled_cached_reqs.resumed_req_ids
    if resumed:
        members = resumed.union(ids)
        # They come after all that ran before.
        last_first = islice((i for i in reversed(output.num_scheduled_tokens) if i in members), len(members))
        ids = list(last_first)[::-1]
    return ids


class VllmReader:
    """A reader of vLLM's requests, see :class:`sloserve.engine.port.RequestReader`.

    Args:
        swapping: Knows for which requests KV is kept; ``None`` without a swap space.
    """

    def __init__(self, swapping: Swapping | None = None) -> None:
        self._swapping = swapping

    def is_plannable(self, request: Request) -> bool:
        # A session with streaming input comes and goes by its own rules; a pooling request generates nothing.
        return not request.resumable and request.sampling_params is not None

    def may_be_skipped(self, request: Request) -> bool:
        # vLLM counts thinking tokens as they come. When a request comes back to the batch it counts its output again,
        # and otherwise than before: an output that thinks again after what its prompt began is then not held to its
        # budget.
        return getattr(request.sampling_params, "thinking_token_budget", None) is None

    def is_blocked(self, request: Request) -> bool:
        return compat.is_blocked(request)

    def state_of(self, request: Request) -> State:
        return compat.state_of(request)

    def is_aborted(self, request: Request) -> bool:
        return compat.is_aborted(request)

    def lora_id(self, request: Request) -> int | None:
        return compat.lora_id(request)

    def cached_tokens(self, request: Request) -> int | None:
        return None if request.prefill_stats is None else int(request.prefill_stats.num_cached_tokens)

    def hit_tokens(self, request: Request, before: int) -> int:
        return 0  # without a scheduler there is no cache

    def prompt_contents(self, request: Request, stretch_tokens: int) -> Sequence[Hashable]:
        return ()

    def items_to_encode(self, request: Request, computed: int) -> tuple[int, int]:
        return items_to_encode(request, computed, (), 0)

    def swapped_tokens(self, request: Request) -> int:
        return 0 if self._swapping is None else self._swapping.swapped_tokens(request)

    def static_columns(self, request: Request, stated: StatedSLO) -> dict[str, float]:
        return {**static_columns(request, stated), "item_tokens": item_tokens(request)}

    def live_columns(self, request: Request, stated: StatedSLO, now_s: float) -> dict[str, float]:
        return live_columns(request, stated, self.cached_tokens(request), now_s)

    def read(self, requests: list[Any], slots: IntArray, columns: Mapping[str, IntArray]) -> None:
        read_columns(requests, slots, columns)

    def tokens_scheduled(self, step: Any) -> tuple[dict[str, int], int] | None:
        return None  # without a scheduler steps are not reported

    def tokens_sampled(self, results: Any) -> tuple[list[list[int]], dict[str, int]] | None:
        return None

    @property
    def num_drafts(self) -> int:
        return 0  # without a scheduler steps are not reported

    def drafts_of(self, step: Any, ids: Sequence[str]) -> Sequence[int]:
        return list(map(len, map(step.scheduled_spec_decode_tokens.get, ids, repeat(()))))

    def admitted_ids(self, output: Any) -> Sequence[str]:
        return admitted_ids(output)

    def new_tokens(self, outputs: Mapping[int, Any]) -> tuple[Sequence[str], Sequence[int] | IntArray]:
        """Return the ids of the requests that have new tokens, and how many tokens each has.

        Args:
            outputs: ``EngineCoreOutputs`` by client.
        """
        found = [
            core_output for batch in outputs.values() for core_output in batch.outputs if core_output.new_token_ids
        ]
        return [core_output.request_id for core_output in found], counts_of(found, ("new_token_ids",))[0]


class VllmPort(VllmReader):
    """One scheduler of vLLM's; see :class:`sloserve.engine.port.EnginePort`."""

    def __init__(self, scheduler: Any, steps: StepClock, clock: Clock, swapping: Swapping | None = None) -> None:
        super().__init__(swapping)
        self._scheduler = scheduler
        self._steps, self._clock = steps, clock
        self._layout = layout_of(scheduler)
        # Where drafts may be rejected or loads of KV fail, counts change by more than what steps schedule and sample.
        self._counts_follow = scheduler.num_spec_tokens == 0 and scheduler.connector is None

    @property
    def running(self) -> Sequence[Request]:
        found: Sequence[Request] = self._scheduler.running
        return found

    @property
    def waiting(self) -> Iterable[Request]:
        found: Iterable[Request] = self._scheduler.waiting
        return found

    @property
    def requests(self) -> Mapping[str, Request]:
        found: Mapping[str, Request] = self._scheduler.requests
        return found

    def tokens_scheduled(self, step: Any) -> tuple[dict[str, int], int] | None:
        return (step.num_scheduled_tokens, step.total_num_scheduled_tokens) if self._counts_follow else None

    def tokens_sampled(self, results: Any) -> tuple[list[list[int]], dict[str, int]] | None:
        return (results.sampled_token_ids, results.req_id_to_index) if self._counts_follow else None

    @property
    def num_drafts(self) -> int:
        return int(self._scheduler.num_spec_tokens)

    @property
    def max_loras(self) -> int | None:
        return compat.max_loras(self._scheduler)

    @property
    def takes_back_computed(self) -> bool:
        return self._scheduler.connector is not None

    @property
    def keeps_swapped(self) -> bool:
        """Whether there is a host pool that may keep the KV of preempted requests."""
        return self._swapping is not None

    @property
    def _promised(self) -> int:
        return 0 if self._swapping is None else self._swapping.loads.promised

    @property
    def free_slots(self) -> int:
        return compat.free_slots(self._scheduler, self._promised)

    def facts(self, num_running: int, others: Iterable[Request]) -> EngineFacts:
        swapping, promised = self._swapping, self._promised
        facts = compat.engine_facts(
            self._scheduler,
            self._layout,
            running=num_running,
            others=others,
            clock=self._steps,
            monotonic_s=self._clock.monotonic_s(),
            promised=promised,
        )
        return facts if swapping is None else replace(facts, swap=swapping.facts())

    def prompt_contents(self, request: Request, stretch_tokens: int) -> Sequence[Hashable]:
        return prefix_cache.prompt_contents(self._scheduler, request, stretch_tokens)

    def hit_tokens(self, request: Request, before: int) -> int:
        return prefix_cache.hit_tokens(self._scheduler, self._layout, request, before)

    def items_to_encode(self, request: Request, computed: int) -> tuple[int, int]:
        cached = compat.encoded_items(self._scheduler)
        return items_to_encode(request, computed, cached, compat.encoder_lookahead(self._scheduler))

    def holding(self, request: Request) -> Holding:
        return compat.holding(self._scheduler, request)

    def drafts_ready(self, slots: IntArray, table: RequestTable) -> IntArray:
        return counts_of(table.requests_in(slots), ("spec_token_ids",))[0]

    def trim_drafts(self, slots: IntArray, lengths: IntArray, table: RequestTable) -> int:
        return apply.trim_drafts(table.requests_in(slots), lengths.tolist())

    def running_requests(self, slots: IntArray, table: RequestTable) -> list[Request]:
        return apply.running_requests(self._scheduler, slots, table)

    def apply_plan(self, plan: Plan, table: RequestTable, limits: apply.StockLimits) -> list[Request]:
        return apply.apply_plan(self._scheduler, plan, table, limits)


_ATTRIBUTES: Final = {
    "computed_tokens": "num_computed_tokens",
    "in_flight_tokens": "num_in_flight_tokens",
    "output_tokens": "_output_token_ids",  # as num_output_tokens, a call less for each
}


def read_columns(requests: list[Any], slots: IntArray, columns: Mapping[str, IntArray]) -> None:
    """See :meth:`sloserve.engine.port.RequestReader.read`."""
    read_counts(requests, slots, tuple(map(_ATTRIBUTES.__getitem__, columns)), list(columns.values()))


def item_tokens(request: Request) -> int:
    """Return the longest image or other multimodal item of the prompt, in tokens; 0 where it has none."""
    return max((item.mm_position.length for item in request.mm_features or ()), default=0)


def items_to_encode(request: Request, computed: int, cached: Container[str], lookahead: int) -> tuple[int, int]:
    """Return what :meth:`sloserve.engine.port.RequestReader.items_to_encode` does, as vLLM's scheduler counts.

    vLLM computes nothing of a request while the encoder has no room for the item that its next token lies in, or that
    begins within the lookahead of draft layers behind it, see :func:`~.compat.encoder_lookahead`. It computes the text
    before an item without room for the item.

    Args:
        request: A request that waits.
        computed: Tokens of its prompt that have KV already.
        cached: Identifiers of the items that the encoder's cache holds.
        lookahead: Tokens before an item without room of which vLLM computes nothing.
    """
    first, found = 0, dict[str, int]()
    for item in request.mm_features or ():
        place, name = item.mm_position, item.identifier
        if place.offset + place.length > computed and name not in found and name not in cached:
            found[name] = place.get_num_embeds()
            if place.offset <= computed + lookahead:
                first += found[name]
    return first, sum(found.values())
