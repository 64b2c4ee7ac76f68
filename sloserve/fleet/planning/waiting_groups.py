"""Request groups of a live fleet: groups that the store holds, and groups that gateways have or expect."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sloserve.fleet.contract.reports import Demand
from sloserve.fleet.store.records import QueuedSums
from sloserve.scheduler.virtual_queues.contract import GroupSums

HORIZON_S: Final = 10.0
"""Seconds within which expected streams count as waiting, so that their model keeps its instance."""
_LEAST_EXPECTED: Final = 2.0
"""Least number of expected streams for which a model keeps an instance if none is held."""
_REACTION_S: Final = 2.5
"""Seconds until demand is reported, planned with and followed.

Streams count as due this much earlier, if their target is longer than four times this.
"""
_PART: Final = 16
"""This many streams of one model and class form one group, as far as there are instances to spread them over."""


@dataclass(frozen=True, slots=True)
class Group:
    """A request group, and the class of its requests."""

    sums: GroupSums
    slo_class: str


def durable_groups(found: Iterable[QueuedSums]) -> list[Group]:
    """Return the groups that the store holds. A group of several classes counts as the first; it has one model."""
    groups: dict[int, Group] = {}
    for one in found:
        known = groups.get(one.group)
        sums = GroupSums(
            ref=one.group,
            model=one.model,
            requests=one.requests,
            prompt_tokens=one.prompt_tokens,
            output_tokens=max(one.output_tokens, 1.0),
            output_tokens2=max(one.output_tokens2, 1.0),
            first_due_s=math.inf if one.first_due_s is None else one.first_due_s,
            last_due_s=math.inf if one.last_due_s is None else one.last_due_s,
            first_arrival_s=one.first_arrival_s,
        )
        if known is None:
            groups[one.group] = Group(sums, one.slo_class)
        elif known.sums.model == one.model:
            groups[one.group] = Group(_both(known.sums, sums), known.slo_class)
    return list(groups.values())


def streamed_groups(
    now_s: float,
    demands: Sequence[tuple[Demand, float]],
    instances_of: Mapping[str, int],
    horizon_s: float = HORIZON_S,
) -> list[Group]:
    """Return the groups of streams that gateways hold, or expect within ``horizon_s`` seconds.

    Args:
        now_s: Epoch seconds by the store's clock.
        demands: Demands of gateways, each with its age in seconds.
        instances_of: Number of instances that can serve each model.
        horizon_s: Seconds within which expected streams count.
    """
    merged: dict[tuple[str, str], GroupSums] = {}
    for demand, age_s in demands:
        key = demand.model, demand.slo_class
        sums = _sums(now_s, demand, age_s, horizon_s)
        merged[key] = _both(merged[key], sums) if key in merged else sums
    groups: list[Group] = []
    for (model, slo_class), sums in sorted(merged.items()):
        parts = min(math.ceil(sums.requests / _PART), max(instances_of.get(model, 1), 1))
        groups += [Group(_part(sums, stream_ref(model, slo_class, k), k, parts), slo_class) for k in range(parts)]
    return groups


def stream_ref(model: str, slo_class: str, part: int = 0) -> int:
    """Return the reference of a group of streams, a number below 0 that is the same for each planner."""
    digest = hashlib.sha256(f"{model}\0{slo_class}\0{part}".encode()).digest()
    return -1 - int.from_bytes(digest[:6], "big")


def _sums(now_s: float, demand: Demand, age_s: float, horizon_s: float) -> GroupSums:
    expected = demand.rate_per_s * horizon_s
    if not demand.held and expected < _LEAST_EXPECTED:
        expected = 0.0
    target_s = math.inf if demand.target_s is None else demand.target_s
    early_s = min(_REACTION_S, 0.25 * target_s)
    stated = (due_s for due_s in (demand.first_due_in_s, demand.last_due_in_s) if due_s is not None)
    dues = [now_s - age_s + due_s - early_s for due_s in stated]
    come = [now_s + target_s - early_s, now_s + horizon_s + target_s - early_s] if expected else []
    return GroupSums(
        ref=0,
        model=demand.model,
        requests=math.ceil(demand.held + expected),
        prompt_tokens=demand.prompt_tokens + expected * demand.mean_prompt_tokens,
        output_tokens=max(demand.output_tokens + expected * demand.mean_output_tokens, 1.0),
        output_tokens2=max(demand.output_tokens2 + expected * demand.mean_output_tokens**2, 1.0),
        first_due_s=min([*dues, *come], default=math.inf),
        last_due_s=max([*dues, *come], default=math.inf),
        first_arrival_s=now_s - age_s - demand.oldest_s,
        comes_over_s=horizon_s if expected else 0.0,
        until_first_token=demand.until_first_token,
        weight=demand.weight,
    )


def _both(a: GroupSums, b: GroupSums) -> GroupSums:
    if not a.requests or not b.requests:
        return a if a.requests else b
    return replace(
        a,
        requests=a.requests + b.requests,
        prompt_tokens=a.prompt_tokens + b.prompt_tokens,
        output_tokens=a.output_tokens + b.output_tokens,
        output_tokens2=a.output_tokens2 + b.output_tokens2,
        first_due_s=min(a.first_due_s, b.first_due_s),
        last_due_s=max(a.last_due_s, b.last_due_s),
        first_arrival_s=min(a.first_arrival_s, b.first_arrival_s),
        comes_over_s=max(a.comes_over_s, b.comes_over_s),
    )


def _part(sums: GroupSums, ref: int, number: int, parts: int) -> GroupSums:
    """Return part ``number`` of the sums, split into ``parts`` equal ones."""
    requests = sums.requests // parts + (number < sums.requests % parts)
    share = requests / sums.requests
    return replace(
        sums,
        ref=ref,
        requests=requests,
        prompt_tokens=sums.prompt_tokens * share,
        output_tokens=sums.output_tokens * share,
        output_tokens2=sums.output_tokens2 * share,
    )
