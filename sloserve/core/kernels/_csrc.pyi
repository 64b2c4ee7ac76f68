from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

def deliver(
    curves: NDArray[np.float64],
    slots: NDArray[np.int64],
    tokens: NDArray[np.int64],
    times_s: NDArray[np.float64],
    tds: NDArray[np.float64],
) -> None: ...
def foresee(
    curves: NDArray[np.float64],
    slots: NDArray[np.int64],
    replies: NDArray[np.float64],
    steps_s: NDArray[np.float64],
    horizon_s: float,
    alpha: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def stand(
    curves: NDArray[np.float64], slots: NDArray[np.int64], replies: NDArray[np.float64], alpha: float
) -> NDArray[np.float64]: ...

class KvLayout:
    def __init__(
        self,
        groups: Sequence[tuple[int, ...]],
        lookahead_tokens: int,
        max_model_len: int,
    ) -> None: ...
    def held(self, computed: NDArray[np.int64], in_flight: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def growth(self, computed: NDArray[np.int64], tokens: int) -> NDArray[np.int64]: ...
    def most_growth(self, tokens: int, requests: int) -> int: ...
    def to_admit(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def filled(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def mean(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]: ...

class Chances:
    def __init__(
        self,
        longer: NDArray[np.float64],
        stride: int,
        lengths: tuple[NDArray[np.int64], ...],
        slots: NDArray[np.int64],
        ahead: NDArray[np.int64],
        known: NDArray[np.float64],
        known_row: NDArray[np.int64] | None,
    ) -> None: ...
    def matrix(self) -> NDArray[np.float64]: ...

def mean_left(
    longer: NDArray[np.float64],
    beyond: NDArray[np.float64],
    stride: int,
    lengths: tuple[NDArray[np.int64], ...],
    slots: NDArray[np.int64],
) -> NDArray[np.float64]: ...
def how_many_fit(
    runs: Chances,
    tokens: NDArray[np.int64],
    grown: NDArray[np.float64],
    layout: KvLayout,
    held: NDArray[np.int64],
    asked: NDArray[np.int64],
    capacity: float,
    sigmas: float,
) -> int: ...
def worth(
    runs: Chances,
    layout: KvLayout,
    stated: tuple[NDArray[np.float64], ...],
    counts: tuple[NDArray[np.int64], ...],
    queued: int,
    left: NDArray[np.float64],
    per_step: NDArray[np.float64],
    prefill: NDArray[np.int64],
    again_s: NDArray[np.float64],
    weights: NDArray[np.float64],
    now_s: float,
    engine: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]: ...
def counts_of(objects: list[Any], names: tuple[str, ...]) -> list[NDArray[np.int64]]: ...
def read_counts(
    objects: list[Any], slots: NDArray[np.int64], names: tuple[str, ...], columns: list[NDArray[np.int64]]
) -> None: ...
def tokens_without_kv(progress: tuple[NDArray[np.int64], ...], slots: NDArray[np.int64]) -> NDArray[np.int64]: ...
def uncomputed_tokens(progress: tuple[NDArray[np.int64], ...], slots: NDArray[np.int64]) -> NDArray[np.int64]: ...
def split_running(
    progress: tuple[NDArray[np.int64], ...], slots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]: ...
def context_and_uncomputed(
    progress: tuple[NDArray[np.int64], ...], slots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def service_order(
    progress: tuple[NDArray[np.int64], ...],
    preemptable: NDArray[np.bool_],
    order: NDArray[np.int64],
    layout: KvLayout,
    free_blocks: int,
    token_budget: int,
    decode_tokens: int,
) -> NDArray[np.int64]: ...
def slots_misused(slots: NDArray[np.int64], state: NDArray[np.int8], allowed: int) -> int: ...
def any_up_to(state: NDArray[np.int8], allowed: int, seq: NDArray[np.int64], last: int) -> bool: ...
def places_stated(column: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.int64]: ...
def chunks_scheduled(tokens_of: dict[str, int], ids: list[str], computed: list[int]) -> list[tuple[int, int]]: ...
def slots_in_order(objects: list[Any], slots: NDArray[np.int64], order: list[Any]) -> NDArray[np.int64]: ...
def moved_to_front(
    present: list[Any], objects: list[Any], slots: NDArray[np.int64]
) -> tuple[list[Any], list[Any]] | None: ...
def slots_found(slot_of: dict[str, int], objects: Iterable[object], name: str, most: int) -> NDArray[np.int64]: ...
def token_pace(
    tpot_s: NDArray[np.float64], tds: NDArray[np.float64], slots: NDArray[np.int64]
) -> NDArray[np.float64]: ...
def without_targets(targets: tuple[NDArray[np.float64], ...], slots: NDArray[np.int64]) -> NDArray[np.bool_]: ...
def top_k(keys: NDArray[np.float64], seqs: NDArray[np.int64], k: int) -> NDArray[np.int64]: ...
def by_class(
    key: NDArray[np.float64], rank: NDArray[np.int64], undecided: NDArray[np.bool_] | None
) -> NDArray[np.float64]: ...
def ranked(
    key: NDArray[np.float64],
    slots: NDArray[np.int64],
    queued: int,
    class_rank: NDArray[np.int64] | None,
    seq: NDArray[np.int64],
    undecided: NDArray[np.bool_] | None,
    most: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]: ...
def first_places(
    key: NDArray[np.float64], lowered: NDArray[np.float64], rank: NDArray[np.int64], seq: NDArray[np.int64], k: int
) -> NDArray[np.int64]: ...
def any_promised(
    stated: tuple[NDArray[np.float64], ...], tokens: tuple[NDArray[np.int64], ...], slots: NDArray[np.int64]
) -> bool: ...

class StepCounts:
    def __init__(self, running: int) -> None: ...
    def lost(self) -> None: ...
    def left(self, request_id: str, slot: int) -> None: ...
    def scheduled(
        self,
        step: object,
        tokens_of: dict[str, int],
        total: int,
        prompts: dict[str, int],
        state: NDArray[np.int8],
        seq: NDArray[np.int64],
        grow: Sequence[NDArray[np.int64]],
    ) -> None: ...
    def produced(
        self,
        step: object,
        sampled: list[list[int]],
        index_of: dict[str, int],
        state: NDArray[np.int8],
        seq: NDArray[np.int64],
        shrink: Sequence[NDArray[np.int64]],
        grow: Sequence[NDArray[np.int64]],
    ) -> None: ...
    def to_read(self, state: NDArray[np.int8]) -> NDArray[np.int64] | None: ...

class Decoding:
    def __init__(
        self,
        stated: tuple[NDArray[np.float64], ...],
        tokens: tuple[NDArray[np.int64], ...],
        slots: NDArray[np.int64],
        left: NDArray[np.float64],
        per_step: NDArray[np.float64],
        starts_s: float,
        alone_s: float,
        headroom: float,
        spend_tokens: float,
    ) -> None: ...
    def __len__(self) -> int: ...
    def bearable_s(self, place: int) -> float: ...
    @property
    def lost_already(self) -> int: ...
    def lost(self, step_s: float, rate: float, pending: float, arrival_rate: float) -> int: ...

class StepPrompts:
    def __init__(
        self,
        progress: tuple[NDArray[np.int64], ...],
        in_progress: NDArray[np.int64],
        waiting: NDArray[np.int64],
        layout: KvLayout,
        free_blocks: int,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def slots(self) -> NDArray[np.int64]: ...
    @property
    def startable(self) -> int: ...
    def end(self, place: int) -> int: ...
    def prefix(self, place: int) -> int: ...
    def load(self, tokens: int) -> tuple[int, int, int]: ...
    def in_chunks(self, tokens: int, longest: int, multiple: int) -> tuple[int, int, int]: ...
    def promise(
        self,
        stated: tuple[NDArray[np.float64], ...],
        tokens: tuple[NDArray[np.int64], ...],
        left: NDArray[np.float64],
        step_s: float,
        starts_s: float,
    ) -> None: ...
    def late(self, rate: float, full_rate: float) -> int: ...
    def late_by_token(self, token_s: float, full_token_s: float) -> int: ...

def anneal(
    requests: NDArray[np.float64],
    max_batch: int,
    fixed: int,
    initial: float,
    final: float,
    tau: float,
    moves: int,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, float]: ...
def exhaustive(
    requests: NDArray[np.float64], max_batch: int, fixed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, float]: ...
def pack_greedy(
    gain: NDArray[np.float64],
    weight: NDArray[np.int64],
    seq: NDArray[np.int64],
    capacity: int,
    max_items: int,
    stop_at_misfit: bool,
) -> NDArray[np.int64]: ...
def pack_priced(
    gain: NDArray[np.float64], weight: NDArray[np.int64], seq: NDArray[np.int64], capacity: int, max_items: int
) -> NDArray[np.int64]: ...

class PackRule(Enum):
    PRICED = ...
    GREEDY = ...
    PAPER = ...

def best_batch(
    gain_by_batch: NDArray[np.float64],
    weight: NDArray[np.int64],
    seq: NDArray[np.int64],
    capacity: int,
    batch_sizes: NDArray[np.int64],
    rule: PackRule,
) -> tuple[int, NDArray[np.int64], float]: ...
def pack_exact(
    gain: NDArray[np.float64], weight: NDArray[np.int64], capacity: int, num_items: int, at_most: bool
) -> NDArray[np.int64] | None: ...
def fleet_search(
    model: NDArray[np.int64],
    dues: NDArray[np.float64],
    work: NDArray[np.float64],
    judged: NDArray[np.float64],
    own: NDArray[np.float64],
    instances: NDArray[np.int64],
    busy: NDArray[np.float64],
    swap: NDArray[np.float64],
    min_active: float,
    swap_price: float,
    order: NDArray[np.int64],
    sizes: NDArray[np.int64],
    moves: int,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], float, float, float, float]: ...

MOST_KV_THREADS: int

def copy_blocks(
    regions: NDArray[np.int64],
    num_blocks: int,
    pool_base: int,
    pool_blocks: int,
    device_ids: NDArray[np.int64],
    host_ids: NDArray[np.int64],
    to_host: bool,
    threads: int,
) -> None: ...

class KvReservation:
    def __init__(self, capacity_blocks: int, block_size: int, now: int) -> None: ...
    @property
    def now(self) -> int: ...
    @property
    def visited(self) -> int: ...
    def __len__(self) -> int: ...
    def __contains__(self, id: int) -> bool: ...
    def put(self, requests: NDArray[np.int64]) -> None: ...
    def fits(self, requests: NDArray[np.int64], reserve_blocks: int) -> NDArray[np.uint8]: ...
    def admit(self, requests: NDArray[np.int64], reserve_blocks: int, stop_at_misfit: bool) -> NDArray[np.uint8]: ...
    def grantable(self, requests: NDArray[np.int64], reserve_blocks: int) -> NDArray[np.int64]: ...
    def remove(self, ids: NDArray[np.int64]) -> None: ...
    def advance(self, step: int) -> None: ...
    def overrunners(self, within_steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
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
    def allocate(self, requests: NDArray[np.int64], reserve_blocks: int, stop_at_misfit: bool) -> NDArray[np.uint8]: ...
    def host(self, requests: NDArray[np.int64], reserve_blocks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def remove(self, ids: NDArray[np.int64]) -> None: ...
    def advance(self, step: int) -> None: ...
    def overrunners(self, within_steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...

def fit_nonnegative(
    information: NDArray[np.float64],
    aim: NDArray[np.float64],
    theta: NDArray[np.float64],
    positive: NDArray[np.bool_],
    share: NDArray[np.float64],
    target: float,
    keep: float,
    leak: float,
    most_solves: int,
) -> None: ...
