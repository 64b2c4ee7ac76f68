"""An upper bound on the share of requests that any scheduler can serve in time, by a linear program over time slots.

Time is cut into slots, at quantiles of the moments of arrival and of those by which requests must be done. The program
chooses for each request to which part, 0 to 1, it is served in time, how many of its prompt tokens are computed in
each slot and how many of its output tokens come in it; and for each slot how many steps with prompts and how many of
decodes alone the engine makes. It maximises the sum of the parts.

**Why no schedule does better.** Take any run of the engine, and distribute each of its steps over the slots that it
lies in, in proportion to time. What follows is a solution of the program with part 1 for each request in time, 0 for
others:

- *Time*: the engine makes one step after another, so what the steps in a slot take is no longer than the slot. A step
  takes at least what the profile says less what is left out: what a prompt costs by itself, and the dearer one of the
  two coefficients of attention. The fit's hinge, base + token x max(0, tokens - free), is the larger of two planes.
- *Steps*: a step computes at most ``max_num_batched_tokens`` tokens, decodes at most ``max_num_seqs`` requests, and at
  most one token of each. The KV of all that a step computes, with what precedes it, is in the cache during the step.
- *Requests*: a request in time computes its whole prompt and reply between its arrival and the last moment at which it
  can end; its prompt before the last moment of its first token; and nothing of its reply before its prompt. A token's
  context is at least that of the first token of its part of the prompt or the reply (:data:`PARTS`).

**What makes it loose**: a request may be served in fractions; it takes no KV and no seat while it is not computed, as
if it could be put away and taken back for nothing; a pace counts as the time by which the reply ends, not as a mean
from the first token on; nothing that is late costs anything. So it is often 100 %: then it says nothing.

Holds for profiles of the form ``hinge``, full attention, without prefix cache and swap space.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from sloserve.core.arrays import FloatArray
from sloserve.core.finished import TOLERANCE_S
from sloserve.core.request import WorkloadRequest
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.latency import Hinge, StepLoad
from sloserve.estimator.step_time.profile import Profile

SLOTS = 80
PARTS = 4
"""Most, of a prompt or a reply; the tokens of a part count with the context at its beginning."""
PART_TOKENS = {"prompt": 1024, "reply": 128}
"""Least of a part."""
MS = 1e-3


@dataclass(frozen=True, slots=True)
class Bound:
    """share: of the requests with targets. parts: ``[n]`` of each request served in time, 0 without targets.
    starts_s: ``[n]``, the mean time at which its prompt is computed, its arrival where it is not. slot_s: length of the
    median slot.
    """

    share: float
    parts: FloatArray
    starts_s: FloatArray
    slot_s: float

    @property
    def is_vacuous(self) -> bool:
        return self.share > 1.0 - 1e-9


@dataclass(slots=True)
class _Rows:
    """Rows of ``a x <= b``, or ``= b``, as triples."""

    limits: list[float] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)

    def new(self, limit: float, *terms: tuple[int, float]) -> int:
        self.limits.append(limit)
        row = len(self.limits) - 1
        self.entries += [(row, column, value) for column, value in terms]
        return row

    def matrix(self, columns: int) -> coo_array:
        at = np.array(self.entries).reshape(-1, 3)
        places = (at[:, 0].astype(int), at[:, 1].astype(int))
        return coo_array((at[:, 2], places), shape=(len(self.limits), columns))


def last_moments_s(request: WorkloadRequest) -> tuple[float, float]:
    """By when a request in time has its first token, and its last; infinite where no target says."""
    targets, arrival_s = request.slo.targets, request.arrival_s
    ends_s = math.inf if targets.e2e_s is None else arrival_s + targets.e2e_s + TOLERANCE_S
    first_s = math.inf if targets.ttft_s is None else arrival_s + targets.ttft_s + TOLERANCE_S
    if targets.pace_s is not None:
        ends_s = min(ends_s, first_s + (targets.pace_s + TOLERANCE_S) * (request.output_tokens - 1))
    return min(first_s, ends_s), ends_s


def upper_bound(
    requests: Sequence[WorkloadRequest], settings: EngineSettings, profile: Profile, slots: int = SLOTS
) -> Bound:
    """The bound for these requests; see the module's text.

    Raises: ValueError for an engine that it does not hold for, or where no request has a target.
    """
    latency = profile.latency
    if not isinstance(latency, Hinge) or not settings.layout.is_full or settings.swap_space_gib:
        raise ValueError(f"profile {profile.name}: the bound holds for hinge, full attention, without swap space")
    if settings.enable_prefix_caching:
        raise ValueError("enable_prefix_caching: the bound does not hold with a prefix cache; leave it off")
    chosen = [i for i, one in enumerate(requests) if one.slo.targets]
    if not chosen:
        raise ValueError(f"none of {len(requests)} requests has a target; the bound counts those in time")
    limits = {i: last_moments_s(requests[i]) for i in chosen}
    finite = [ends_s for _, ends_s in limits.values() if ends_s < math.inf]
    work_s = sum(_alone_s(one, settings, profile) for one in requests)
    horizon_s = max([*finite, requests[-1].arrival_s])
    if len(finite) < len(chosen):  # an end that is not limited: all of them one after another
        horizon_s += work_s
    moments_s = [one.arrival_s for one in requests] + [min(at, horizon_s) for both in limits.values() for at in both]
    edges_s = np.unique(np.append(np.quantile(moments_s, np.linspace(0.0, 1.0, slots)), horizon_s))
    count = edges_s.size - 1

    le, eq = _Rows(), _Rows()
    x = {i: place for place, i in enumerate(chosen)}
    columns = len(chosen)
    mixed, alone, extra, decoded = (columns + count * j + np.arange(count) for j in range(4))
    columns += 4 * count
    overhead_ms = profile.engine_overhead_ms
    attends_ms = min(latency.context_token_ms, latency.decode.context_token_ms)
    pairs_ms = min(latency.attention_token2_ms, latency.prefix_attention_token2_ms)
    seats, tokens, kv = settings.max_num_seqs, settings.max_num_batched_tokens, settings.kv_blocks * settings.block_size
    time, over, room, held, seated, pure, prompts = ([0] * count for _ in range(7))
    for k in range(count):
        m, q, t, d = int(mixed[k]), int(alone[k]), int(extra[k]), int(decoded[k])
        time[k] = le.new(
            float(edges_s[k + 1] - edges_s[k]) / MS,
            (m, latency.base_ms + overhead_ms),
            (q, latency.decode.base_ms + overhead_ms),
            (t, latency.token_ms),
            (d, latency.seq_ms - latency.decode.seq_ms),
        )
        over[k] = le.new(0.0, (d, 1.0), (m, -float(latency.free_tokens)), (t, -1.0))
        prompts[k] = le.new(0.0, (d, 1.0), (m, -float(tokens)))
        room[k] = le.new(0.0, (d, 1.0), (m, -float(seats)))
        seated[k] = le.new(0.0, (d, -1.0), (q, -float(seats)))
        pure[k] = le.new(0.0, (d, 1.0))
        held[k] = le.new(0.0, (m, -float(kv)), (q, -float(kv)))

    step_s = (min(latency.base_ms, latency.decode.base_ms) + overhead_ms) * MS
    full = StepLoad(prefill_tokens=tokens)
    tokens_per_s = tokens / (profile.step_s(full))
    computed: dict[int, list[tuple[int, int]]] = {i: [] for i in chosen}
    for i in chosen:
        one, (first_s, ends_s) = requests[i], limits[i]
        places: dict[str, dict[int, list[int]]] = {"prompt": {}, "reply": {}}
        for kind, until_s, length in (("prompt", first_s, one.prompt_tokens), ("reply", ends_s, one.output_tokens - 1)):
            window = _window(one.arrival_s, until_s, edges_s)
            for start, size in _parts(length, PART_TOKENS[kind]):
                whole = [(x[i], -float(size))]
                for k, _ in window:
                    at = columns
                    columns += 1
                    whole.append((at, 1.0))
                    places[kind].setdefault(k, []).append(at)
                    if kind == "prompt":
                        computed[i].append((at, k))
                        le.entries += [(time[k], at, pairs_ms * (2 * start + 1)), (over[k], at, 1.0)]
                        le.entries += [(prompts[k], at, 1.0), (held[k], at, 1.0 + start / tokens)]
                    else:
                        context = one.prompt_tokens + start + 1
                        le.entries += [(time[k], at, latency.decode.seq_ms + attends_ms * context)]
                        le.entries += [(seated[k], at, 1.0), (pure[k], at, -1.0), (held[k], at, float(context))]
                eq.new(0.0, *whole)
            rate = tokens_per_s if kind == "prompt" else 1.0 / step_s
            for k, overlap_s in window:
                every = [(at, 1.0) for at in places[kind].get(k, [])]
                if every:
                    le.new(0.0, *every, (x[i], -rate * overlap_s))
                    if kind == "reply":
                        le.new(0.0, *every, (int(mixed[k]), -1.0), (int(alone[k]), -1.0))
        if one.output_tokens > 1 and places["prompt"]:
            so_far: list[tuple[int, float]] = []
            for k in range(min(places["prompt"]), max(places["prompt"])):
                so_far += [(at, 1.0 / (one.output_tokens - 1)) for at in places["reply"].get(k, [])]
                so_far += [(at, -1.0 / one.prompt_tokens) for at in places["prompt"].get(k, [])]
                le.new(0.0, *so_far)
    gain = np.zeros(columns)
    gain[: len(chosen)] = -1.0
    most = np.full(columns, np.inf)
    most[: len(chosen)] = 1.0
    found = linprog(
        gain,
        A_ub=le.matrix(columns),
        b_ub=le.limits,
        A_eq=eq.matrix(columns),
        b_eq=eq.limits,
        bounds=np.stack([np.zeros(columns), most], axis=1),
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    parts, starts_s = np.zeros(len(requests)), np.array([one.arrival_s for one in requests])
    for i in chosen:
        parts[i] = found.x[x[i]]
        weights = np.array([found.x[at] for at, _ in computed[i]])
        if weights.sum() > 0.0:
            middles_s = np.array([edges_s[k : k + 2].mean() for _, k in computed[i]])
            starts_s[i] = float(np.average(middles_s, weights=weights))
    # So many are whole requests; the solver's own tolerance is not one.
    in_time = math.floor(-found.fun + 1e-4)
    return Bound(min(in_time / len(chosen), 1.0), parts, starts_s, float(np.median(np.diff(edges_s))))


def _alone_s(one: WorkloadRequest, settings: EngineSettings, profile: Profile) -> float:
    """More than it takes without any other."""
    tokens = settings.max_num_batched_tokens
    prompt_s = math.ceil(one.prompt_tokens / tokens) * profile.step_s(StepLoad(tokens, 1, 0, 0, one.prompt_tokens**2))
    context = one.prompt_tokens + one.output_tokens
    return prompt_s + one.output_tokens * profile.step_s(StepLoad(decode_seqs=1, decode_context_tokens=context))


def _parts(length: int, least: int) -> list[tuple[int, int]]:
    """First token and size of each part of a prompt or a reply; none where it has no tokens."""
    if length < 1:
        return []
    edges = np.linspace(0, length, min(max(length // least, 1), PARTS) + 1).astype(int).tolist()
    return [(start, end - start) for start, end in zip(edges, edges[1:], strict=False)]


def _window(from_s: float, until_s: float, edges_s: FloatArray) -> list[tuple[int, float]]:
    """The slots that lie between two moments, and how long of each does."""
    overlaps_s = np.minimum(edges_s[1:], until_s) - np.maximum(edges_s[:-1], from_s)
    return [(k, float(overlaps_s[k])) for k in np.flatnonzero(overlaps_s > 0.0).tolist()]
