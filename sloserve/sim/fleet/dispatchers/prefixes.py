"""Which prefixes a dispatcher sent where, and which instance should therefore complete a request first.

As a live gateway counts them: with its table of each instance, and its prediction of completion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sloserve.core.request import PREFIX_BLOCK_TOKENS
from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.queue_backlog import EngineSize
from sloserve.fleet.gateway.prediction import NOTHING, Pace, Work
from sloserve.fleet.gateway.prefixes import Beginning, PrefixTable, chained
from sloserve.scheduler.qlm.contract import RunningSums
from sloserve.scheduler.qlm.groups import Member
from sloserve.sim.fleet.contract import Held, InstanceView
from sloserve.sim.fleet.dispatchers.room import Room


class SentPrefixes:
    """What went to each instance since its model came: its prefix cache was empty then."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[tuple[str | None, float], PrefixTable]] = {}

    def sent(self, request: Held, instance: InstanceView) -> None:
        """The instance serves the request."""
        if request.prefix_ids:
            self._table(instance).sent(_beginnings(request))

    def hits(self, request: Held, instances: Sequence[InstanceView]) -> dict[str, float]:
        """Tokens of the prompt that should be cached, by instance; those without any are left out."""
        if not request.prefix_ids:
            return {}
        prompt = _beginnings(request)
        found = {
            i.name: float(min(self._table(i).cached_tokens(prompt), request.prompt_tokens))
            for i in instances
            if i.active == request.model
        }
        return {name: tokens for name, tokens in found.items() if tokens}

    def _table(self, instance: InstanceView) -> PrefixTable:
        since = instance.active, instance.activated_s
        entry = self._tables.get(instance.name)
        if entry is None or entry[0] != since:
            entry = self._tables[instance.name] = since, PrefixTable()
        return entry[1]


def first_to_complete(
    request: Held,
    output_tokens: float,
    instances: Sequence[InstanceView],
    load: Mapping[str, int],
    hits: Mapping[str, float],
) -> InstanceView:
    """The instance that should complete the request first.

    output_tokens: expected of it. load: requests that each instance has, each taken for one like this, half done. hits:
    tokens of its prompt that should be cached there.
    """
    new = Work(1, request.prompt_tokens, output_tokens)

    def seconds(instance: InstanceView) -> float:
        others = load[instance.name]
        running = RunningSums(
            others,
            context_tokens=others * (request.prompt_tokens + output_tokens / 2.0),
            output_tokens=others * output_tokens / 2.0,
        )
        comes_s = 0.0 if instance.active == request.model else instance.swap_s(request.model)
        pace = Pace(serving_of(instance, request.model))
        return comes_s + pace.times_s(running, NOTHING, new, hits.get(instance.name, 0.0), NOTHING)[1]

    return min(instances, key=lambda i: (seconds(i), i.name))


@dataclass(slots=True)
class Router:
    """Which of the instances that pull requests of a model takes one, where their prefix caches differ.

    rooms: of the instances that pull in this tick.
    """

    rooms: Sequence[Room] = ()
    prefixes: SentPrefixes = field(default_factory=SentPrefixes)
    _held: dict[str, Held] = field(default_factory=dict)

    def arrived(self, request: Held, instances: Sequence[InstanceView]) -> dict[str, float]:
        """A request is held. Returns tokens of its prompt that should be cached, by instance."""
        if request.prefix_ids:
            self._held[request.request_id] = request
        return self.prefixes.hits(request, instances)

    def elsewhere(self, member: Member, instance: InstanceView) -> InstanceView | None:
        """Another than ``instance`` that should complete it first, with room for it, which is then taken."""
        request = self._held.get(str(member.request))
        if request is None:
            return None
        able = {room.instance.name: room for room in self.rooms if room.instance.active == member.model}
        instances = [room.instance for room in able.values()]
        hits = self.prefixes.hits(request, instances) if len(able) > 1 else {}
        if not hits:
            return None
        load = {name: room.num_requests for name, room in able.items()}
        best = first_to_complete(request, member.output_tokens, instances, load, hits)
        return best if best is not instance and able[best.name].takes(request.prompt_tokens) else None

    def given(self, member: Member, instance: InstanceView) -> None:
        """The instance serves it."""
        request = self._held.pop(str(member.request), None)
        if request is not None:
            self.prefixes.sent(request, instance)


def serving_of(instance: InstanceView, model: str) -> Serving:
    """How the model is served there, for estimates of how long its work takes."""
    limits = instance.limits(model)
    size = EngineSize(limits.max_num_seqs, limits.max_num_batched_tokens, limits.kv_blocks * limits.block_size)
    return Serving(instance.profile(model), size)


def _beginnings(request: Held) -> tuple[Beginning, ...]:
    ends = (min(PREFIX_BLOCK_TOKENS * (i + 1), request.prompt_tokens) for i in range(len(request.prefix_ids)))
    return chained(
        request.model, ((id_.to_bytes(8, "little"), end) for id_, end in zip(request.prefix_ids, ends, strict=True))
    )
