# Made by nanobind's stubgen from csrc/bindings: make stub.
"""
Compiled kernels of sloserve; use the typed wrappers in sloserve.core.kernels.
"""

from collections.abc import Iterable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class BatchRow(enum.IntEnum):
    """Rows of the matrix of requests to plan in batches."""

    PREFILL_BASE_S = 0

    PREFILL_SLOPE_S = 1

    DECODE_BASE_S = 2

    DECODE_SLOPE_S = 3

    SHARE = 4

    WAITED_S = 5

    TTFT_S = 6

    DECODE_LIMIT_S = 7

    E2E_S = 8

def anneal(requests: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], max_batch: int, *, fixed: int, initial: float, final: float, tau: float, moves: int, seed: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], int, float]: ...

def exhaustive(requests: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], max_batch: int, *, fixed: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], int, float]: ...

def pack_exact(gain: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, capacity: int, num_items: int, at_most: bool) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))] | None: ...

class ReplyColumns:
    """What is expected of replies, and foreseen: a column for each fact."""

    def __init__(self, *, now_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], ttft_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], left_tokens: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], prefill_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], first_token_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

def deliver(curves: Annotated[NDArray[numpy.float64], dict(shape=(None, 5), order='C', device='cpu')], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], times_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

def foresee(curves: Annotated[NDArray[numpy.float64], dict(shape=(None, 5), order='C', device='cpu')], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], replies: ReplyColumns, *, steps_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], horizon_s: float, alpha: float) -> tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.float64], dict(shape=(None,))]]: ...

def stand(curves: Annotated[NDArray[numpy.float64], dict(shape=(None, 5), order='C', device='cpu')], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], replies: ReplyColumns, *, alpha: float) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

class KvGroups:
    """KV cache groups that are counted alike."""

    def __init__(self, *, num_groups: int, block_size: int, window_tokens: int, chunk_tokens: int, states: int, checkpoints: int, spare_blocks: int, most_blocks: int, copied_blocks: int) -> None: ...

class KvLayout:
    def __init__(self, groups: Sequence[KvGroups], lookahead_tokens: int, max_model_len: int) -> None: ...

    def held(self, computed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], in_flight: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def growth(self, computed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def most_growth(self, tokens: int, requests: int) -> int: ...

    def to_admit(self, tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def filled(self, tokens: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

    def mean(self, tokens: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

class Chances:
    def __init__(self, longer: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, stride: int, class_id: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], output_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], max_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ahead: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], known: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], known_row: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None: ...

    def matrix(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def mean_left(longer: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, beyond: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], stride: int, class_id: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], output_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], max_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def how_many_fit(runs: Chances, layout: KvLayout, *, tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], grown: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], held: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], asked: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], capacity: float, sigmas: float) -> int:
    """
    Return how many of ``asked``, in order, fit into the KV cache beside ``held`` until all have ended.

    None is counted after the first that does not fit. :mod:`sloserve.lso.forecast` says how the cache is foreseen.

    Args:
        runs: the chances that each of ``n`` requests still runs at each of ``t`` steps.
        layout: the layout of the KV cache.
        tokens: ``[n]``, the tokens that each has in its KV, or will have when it is admitted.
        grown: ``[t]``, the tokens that come until each step.
        held: places of the running requests among the ``n``, contiguous.
        asked: places of the requests that ask for admission, contiguous.
        capacity: the blocks of the KV cache.
        sigmas: how many standard deviations of the sum are kept free.

    Raises:
        ValueError: for a place outside the ``n``, or arrays that do not fit together.
    """

class WorthColumns:
    """Columns of the request table that gain and cost follow from, by slot."""

    def __init__(self, *, arrival_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], ttft_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tpot_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], e2e_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], first_token_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], class_rank: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], prompt_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], output_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], max_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

class WorthEngine:
    """
    How fast the engine is, what it can hold, and what gains are weighed by.

    Args:
        step_s: seconds of a step without prompts.
        full_s: seconds of a step that computes as many prompt tokens as it may.
        prompt_token_s: seconds of one prompt token in full steps.
        token_s: seconds that one more decode adds to a step.
        step_wait_s: seconds until the next token of a prompt, beside the time of its own tokens.
        kv_blocks: blocks of the KV cache.
        seats: the most requests that may run.
        wait_share: the share of the cost of all waiting requests after which a request that is not served now is served.
        late_wait_share: the same share where step time is short and many requests have no chance any more.
        late_at: the share of promised requests without a chance from which ``late_wait_share`` holds in full.
        reader_ttft_s: seconds until the first token that a reader expects who states only a speed.
        reader_tds: tokens per second of a reader who states only a first token.
        experience: the weight of a reader's experience.
        stretch: the weight of target over target and latency.
        unhurried_s: the target in seconds of a request that states none.
        price_power: the power of a machine's need, relative to the greatest, that is its price.
        tail: how much the longest waits of requests without targets count; 0 to serve the least cost first.
    """

    def __init__(self, *, step_s: float, full_s: float, prompt_token_s: float, token_s: float, step_wait_s: float, kv_blocks: float, seats: float, wait_share: float, late_wait_share: float, late_at: float, reader_ttft_s: float, reader_tds: float, experience: float, stretch: float, unhurried_s: float, price_power: float, tail: float) -> None: ...

def worth(runs: Chances, layout: KvLayout, engine: WorthEngine, columns: WorthColumns, *, queued: int, left: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], per_step: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], prefill: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], again_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], weights: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], now_s: float) -> tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.float64], dict(shape=(None,))], float]:
    """
    Return gain, cost and urgency of ``n`` requests, ``[n]`` each, and the mean delay in seconds.

    :mod:`sloserve.scheduler.auto.worth` says what they mean.

    Args:
        runs: the chances that more tokens than it looks ahead are still to come.
        layout: the layout of the KV cache.
        engine: how fast the engine is, what it can hold, and what gains are weighed by.
        columns: columns of the request table.
        queued: how many of the first of the ``n`` requests wait.
        left: ``[n]``, the expected tokens still to come.
        per_step: ``[n]``, the tokens that a step is expected to bring, at least 1.
        prefill: ``[n]``, the tokens to compute before the next one.
        again_s: ``[n - queued]``, the seconds until each running request has its KV back.
        weights: the weight of each class rank; the last one holds for all ranks beyond.
        now_s: the time now in seconds, on the clock of ``arrival_s``.

    Raises:
        ValueError: where these do not fit together.
    """

class ProgressColumns:
    """
    Columns of the request table that say how far requests are, in tokens, by slot.
    """

    def __init__(self, *, prompt_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], output_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], computed_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], swapped_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], hit_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

def counts_of(objects: list[object], names: tuple[str, ...]) -> list[Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def read_counts(objects: list[object], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], names: tuple[str, ...], columns: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]]) -> None: ...

def tokens_without_kv(progress: ProgressColumns, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def uncomputed_tokens(progress: ProgressColumns, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def split_running(progress: ProgressColumns, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], int]: ...

def context_and_uncomputed(progress: ProgressColumns, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def service_order(progress: ProgressColumns, preemptable: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)], order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, layout: KvLayout, free_blocks: int, token_budget: int, decode_tokens: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def slots_misused(slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], state: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu', writable=False)], allowed: int) -> int: ...

def any_up_to(state: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu', writable=False)], allowed: int, seq: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], last: int) -> bool: ...

def places_stated(column: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def chunks_scheduled(tokens_of: dict[str, int], ids: list[str], computed: list[int]) -> list[tuple[int, int]]: ...

def slots_in_order(objects: list[object], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], order: list[object]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def moved_to_front(present: list[object], objects: list[object], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[list[object], list[object]] | None: ...

def slots_found(slot_of: dict[str, int], objects: Iterable[object], name: str, most: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def token_pace(tpot_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def without_targets(slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, ttft_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tpot_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], e2e_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.bool_], dict(shape=(None,))]: ...

def top_k(keys: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], seqs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], k: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def by_class(key: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], rank: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], undecided: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

def ranked(key: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, queued: int, class_rank: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, seq: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], undecided: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, most: int) -> tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def first_places(*, key: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], lowered: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], rank: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seq: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], k: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

class PromiseColumns:
    """
    Columns of the request table that say what requests were promised and how far they are, by slot.
    """

    def __init__(self, *, arrival_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], ttft_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tpot_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], e2e_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], first_token_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], output_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], in_flight_tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

def any_promised(columns: PromiseColumns, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> bool: ...

class Decoding:
    def __init__(self, columns: PromiseColumns, slots: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, left: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], per_step: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], starts_s: float, alone_s: float, headroom: float, spend_tokens: float) -> None: ...

    def __len__(self) -> int: ...

    def bearable_s(self, place: int) -> float: ...

    @property
    def lost_already(self) -> int: ...

    def lost(self, *, step_s: float, rate: float, pending: float, arrival_rate: float) -> int: ...

class StepPrompts:
    def __init__(self, progress: ProgressColumns, *, in_progress: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], waiting: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], layout: KvLayout, free_blocks: int) -> None: ...

    def __len__(self) -> int: ...

    @property
    def slots(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    @property
    def startable(self) -> int: ...

    def end(self, place: int) -> int: ...

    def prefix(self, place: int) -> int: ...

    def load(self, tokens: int) -> tuple[int, int, int]: ...

    def in_chunks(self, tokens: int, longest: int, multiple: int) -> tuple[int, int, int]: ...

    def promise(self, columns: PromiseColumns, *, left: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], step_s: float, starts_s: float) -> None: ...

    @property
    def slack_s(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]: ...

    def late(self, rate: float, full_rate: float) -> int: ...

    def late_by_token(self, token_s: float, full_token_s: float) -> int: ...

class StepCounts:
    """
    Counts of the request table, followed from what each step schedules and brings; see :mod:`sloserve.engine.step_counts`.
    """

    def __init__(self, running: int) -> None: ...

    def lost(self) -> None: ...

    def left(self, request_id: str, slot: int) -> None: ...

    def scheduled(self, step: object, *, tokens_of: dict[str, int], total: int, prompts: dict[str, int], state: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu', writable=False)], seq: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], grow: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]]) -> None: ...

    def produced(self, step: object, *, sampled: list[list[int]], index_of: dict[str, int], state: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu', writable=False)], seq: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], shrink: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]], grow: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]]) -> None: ...

    def to_read(self, state: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))] | None: ...

MOST_KV_THREADS: int = 64

def copy_blocks(regions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, num_blocks: int, pool_base: int, pool_blocks: int, device_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], host_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], to_host: bool, threads: int) -> None: ...

class KvReservation:
    def __init__(self, capacity_blocks: int, block_size: int, now: int) -> None: ...

    @property
    def now(self) -> int: ...

    @property
    def visited(self) -> int: ...

    def __len__(self) -> int: ...

    def __contains__(self, id: int) -> bool: ...

    def put(self, requests: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

    def fits(self, requests: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], reserve_blocks: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    def admit(self, requests: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], reserve_blocks: int, stop_at_misfit: bool) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    def grantable(self, requests: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], reserve_blocks: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def remove(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def advance(self, step: int) -> None: ...

    def overrunners(self, within_steps: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

    def first_over(self, reserve_blocks: int) -> int | None: ...

    def occupied(self, step: int) -> int: ...

class KvHosting:
    def __init__(self, capacity_blocks: int, block_size: int, now: int) -> None: ...

    @property
    def now(self) -> int: ...

    @property
    def free_blocks(self) -> int: ...

    def __len__(self) -> int: ...

    def __contains__(self, id: int) -> bool: ...

    def allocate(self, requests: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], reserve_blocks: int, stop_at_misfit: bool) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    def host(self, requests: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], reserve_blocks: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

    def remove(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def advance(self, step: int) -> None: ...

    def overrunners(self, within_steps: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]: ...

def fleet_search(*, model: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], first_due_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], last_due_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], weight: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], work_s: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], judged_s: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], own_s: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], kind: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], active: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ready_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], drained_s: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], swap_s: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], min_active_s: float, swap_price: float, order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], moves: int, seed: int) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], float, float, float, float]: ...

def fit_nonnegative(*, information: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], aim: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], theta: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], positive: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')], share: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], target: float, keep: float, leak: float, most_solves: int) -> None:
    """
    Add one observation to normal equations and solve them for coefficients that are not negative, in place.

    Sums are added in one order, whatever the linear algebra library of the CPU does. With numpy each call costs more than
    the arithmetic.

    Args:
        information: ``[n, n]``, symmetric and positive definite, n at most 16.
        aim: ``[n]``, the right-hand side.
        theta: ``[n]``, the coefficients so far; the new ones are written there.
        positive: ``[n]``, which coefficients are above 0, as far as is known.
        share: ``[n]``, the weight of each coefficient in the observation ``share @ theta = target``.
        target: the observed value.
        keep: the share of earlier observations that stays.
        leak: the weight of one more observation of each term alone, which says that it is what ``theta`` says.
        most_solves: the most attempts to find which coefficients are 0; the next call corrects what is still wrong then.

    Raises:
        ValueError: for arrays of other sizes.
    """
