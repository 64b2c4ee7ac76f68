"""Request groups: requests of one model with like deadlines and lengths, first come first served inside.

A request joins the nearest centroid of its model at once; what has no centroid near it founds one. Centroids move only
in :meth:`Groups.tidy`, which does one iteration of k-means on a bounded sample a call, so that no call takes long. Each
cluster fills one group after another, each of at most delta mean batches. Sums are kept on line.

Groups hold no more than what planning reads; requests stay where they are stored. From the stored requests and the
group that each was given, :meth:`Groups.restore` makes the same groups again.

Source: QLM, Sec. 4, Algorithm 1. Differs: a group that is full is closed, and the next request opens another, where the
paper halves a group that has grown too large; sizes keep to the same bound, and no request ever changes its group.
"""

import math
import warnings
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.cluster.vq import kmeans2

from sloserve.core.arrays import FloatArray
from sloserve.scheduler.virtual_queues.contract import GroupSums

_SAMPLE: Final = 256
"""Latest requests of a model that k-means looks at: one iteration takes about 0.1 ms."""
_ITERATIONS: Final = 8
_NEAR: Final = 1.0
"""Distance from every centroid at which a request founds one.

It stands for deadlines apart by a factor of 2, or lengths by a factor of 4.
"""
_NO_DEADLINE_S: Final = 2.0**20


@dataclass(frozen=True, slots=True)
class Member:
    """What planning needs of a request.

    Args:
        slo_s: Seconds from arrival to due_s; inf for no deadline.
        output_tokens: Output tokens expected to come.
        output_sd: Standard deviation of the output tokens to come.
        cached_tokens: Prompt tokens of which an instance is expected to have the KV, by the instance's name.
    """

    request: Hashable
    model: str
    prompt_tokens: float
    output_tokens: float
    output_sd: float
    arrival_s: float
    slo_s: float
    until_first_token: bool = False
    cached_tokens: Mapping[str, float] = field(default_factory=dict)

    @property
    def due_s(self) -> float:
        return self.arrival_s + self.slo_s


_Point = tuple[float, float, float]


def _point(member: Member) -> _Point:
    slo = math.log2(min(max(member.slo_s, 2.0**-10), _NO_DEADLINE_S))
    return slo, math.log2(member.prompt_tokens + 1.0) / 2.0, math.log2(max(member.output_tokens, 1.0)) / 2.0


@dataclass(slots=True)
class _Group:
    """One group; ``members`` in the order of service."""

    ref: int
    members: "OrderedDict[Hashable, Member]" = field(default_factory=OrderedDict)
    prompt: float = 0.0
    output: float = 0.0
    output2: float = 0.0
    taken: int = 0
    cached: dict[str, float] = field(default_factory=dict)

    def count(self, member: Member, sign: float) -> None:
        self.prompt += sign * member.prompt_tokens
        self.output += sign * member.output_tokens
        self.output2 += sign * (member.output_tokens**2 + member.output_sd**2)
        for name, tokens in member.cached_tokens.items():
            self.cached[name] = max(self.cached.get(name, 0.0) + sign * tokens, 0.0)

    def sums(self) -> GroupSums:
        members = self.members
        first, last = members[next(iter(members))], members[next(reversed(members))]
        return GroupSums(
            ref=self.ref,
            model=first.model,
            requests=len(members),
            prompt_tokens=max(self.prompt, 0.0),
            output_tokens=max(self.output, 1.0),
            output_tokens2=max(self.output2, 1.0),
            first_due_s=first.due_s,
            last_due_s=last.due_s,
            first_arrival_s=first.arrival_s,
            until_first_token=first.until_first_token,
            cached_tokens={name: tokens for name, tokens in self.cached.items() if tokens},
        )


@dataclass(slots=True)
class _Cluster:
    centroid: _Point
    open: _Group | None = None


@dataclass(slots=True)
class _Kind:
    """All requests of one model with deadlines of one kind."""

    clusters: list[_Cluster] = field(default_factory=list)
    sample: "deque[_Point]" = field(default_factory=lambda: deque(maxlen=_SAMPLE))
    seen: int = 0
    tidy_at: int = _SAMPLE // 2
    moving: FloatArray | None = None
    iterations: int = 0


class Groups:
    """Groups of waiting requests, and the groups' sums.

    Args:
        delta: Largest size of a group, in mean batches.
        most_clusters: Most clusters of one model.
        batch: Requests in a mean batch, of a model without a figure of its own (:meth:`set_batch`).
    """

    def __init__(self, delta: float = 4.0, most_clusters: int = 8, batch: float = 64.0) -> None:
        if delta <= 0 or most_clusters < 1 or batch < 1:
            raise ValueError(f"delta {delta}, most_clusters {most_clusters}, batch {batch}: each must be positive")
        self._delta, self._most_clusters, self._batch = delta, most_clusters, batch
        self._batches: dict[str, float] = {}
        self._kinds: dict[tuple[str, bool], _Kind] = {}
        self._groups: dict[int, _Group] = {}
        self._group_of: dict[Hashable, _Group] = {}
        self._next_ref = 0

    def __len__(self) -> int:
        """Return the number of groups that have a waiting request."""
        return len(self._groups)

    @property
    def requests(self) -> int:
        """Waiting requests in all groups."""
        return len(self._group_of)

    def set_batch(self, model: str, requests: float) -> None:
        """Cut further groups of the model at delta times ``requests`` requests."""
        self._batches[model] = max(requests, 1.0)

    def add(self, member: Member) -> int:
        """Add a request to a group, behind all others of it; return the group's reference.

        Raises: ValueError for a request that is in a group already.
        """
        self._check_new(member)
        cluster = self._cluster_of(member)
        group = cluster.open
        most = self._delta * self._batches.get(member.model, self._batch)
        # By how many it ever took, not by how many it has: else one that is served from its head never closes.
        # One that was empty in between may be there again under its reference, as another object.
        if group is None or group.taken >= most or self._groups.get(group.ref) is not group:
            group = cluster.open = self._new_group(self._next_ref)
        self._put(group, member)
        return group.ref

    def put_back(self, member: Member, ref: int) -> None:
        """Put a request that was taken from group ``ref`` back before all others of it (request eviction).

        Raises: ValueError for a request that is in a group already.
        """
        self._check_new(member)
        group = self._groups.get(ref) or self._new_group(ref)
        self._put(group, member)
        group.members.move_to_end(member.request, last=False)

    def restore(self, rows: Iterable[tuple[int, Member]]) -> None:
        """Restore groups from each waiting request and the reference of its group, in the order of arrival.

        Groups that still fill are closed: what arrives next opens new ones.
        """
        for ref, member in rows:
            self._check_new(member)
            self._cluster_of(member)
            group = self._groups.get(ref) or self._new_group(ref)
            self._put(group, member)

    def remove(self, request: Hashable) -> None:
        """Remove a request that no longer waits: taken by an instance, cancelled, expired. Unknown ones are ignored."""
        group = self._group_of.pop(request, None)
        if group is None:
            return
        group.count(group.members.pop(request), -1.0)
        if not group.members:
            del self._groups[group.ref]

    def head(self, ref: int, most: int) -> list[Member]:
        """Return the first ``most`` requests of the group, in order of service; none if it is empty or gone."""
        group = self._groups.get(ref)
        return [] if group is None else [m for m, _ in zip(group.members.values(), range(most), strict=False)]

    def sums(self) -> tuple[GroupSums, ...]:
        """Return the sums of all groups, in the order of their references; takes a microsecond or two a group."""
        return tuple(self._groups[ref].sums() for ref in sorted(self._groups))

    def tidy(self) -> bool:
        """Run one piece of k-means for one model with requests that may have changed; return whether more is to do."""
        for kind in self._kinds.values():
            if kind.moving is not None or kind.seen >= kind.tidy_at:
                self._iterate(kind)
                return True
        return False

    def _iterate(self, kind: _Kind) -> None:
        if kind.moving is None:
            kind.moving, kind.iterations = np.array([cluster.centroid for cluster in kind.clusters]), 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a centroid that has lost all its requests stays where it is
            moved, _ = kmeans2(np.array(kind.sample), kind.moving, iter=1, minit="matrix")
        kind.iterations += 1
        if kind.iterations < _ITERATIONS and not np.allclose(moved, kind.moving, atol=0.01):
            kind.moving = moved
            return
        for cluster, centroid in zip(kind.clusters, moved.tolist(), strict=False):
            cluster.centroid = (centroid[0], centroid[1], centroid[2])
        kind.moving = None
        kind.tidy_at = 2 * kind.seen

    def _cluster_of(self, member: Member) -> _Cluster:
        kind = self._kinds.setdefault((member.model, member.until_first_token), _Kind())
        slo, prompt, output = point = _point(member)
        kind.sample.append(point)
        kind.seen += 1
        nearest, least = None, math.inf
        for cluster in kind.clusters:
            a, b, c = cluster.centroid
            apart = (a - slo) ** 2 + (b - prompt) ** 2 + (c - output) ** 2
            if apart < least:
                nearest, least = cluster, apart
        if nearest is None or (least > _NEAR**2 and len(kind.clusters) < self._most_clusters):
            nearest = _Cluster(point)
            kind.clusters.append(nearest)
        return nearest

    def _new_group(self, ref: int) -> _Group:
        group = self._groups[ref] = _Group(ref)
        self._next_ref = max(self._next_ref, ref + 1)
        return group

    def _put(self, group: _Group, member: Member) -> None:
        group.members[member.request] = member
        group.taken += 1
        group.count(member, 1.0)
        self._group_of[member.request] = group

    def _check_new(self, member: Member) -> None:
        if member.request in self._group_of:
            raise ValueError(f"request {member.request!r} is in group {self._group_of[member.request].ref} already")
