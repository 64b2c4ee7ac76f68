"""Groups: every waiting request is in one, sums are right at any time, and nothing in them takes long."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.scheduler.virtual_queues.groups import Groups, Member


def member(request: int, model: str = "chat", slo_s: float = 10.0, prompt: float = 100.0, at: float = 0.0) -> Member:
    return Member(request, model, prompt, output_tokens=50.0, output_sd=20.0, arrival_s=at, slo_s=slo_s)


def test_like_requests_share_a_group_and_unlike_ones_do_not() -> None:
    groups = Groups(batch=4, delta=2)
    chat = [groups.add(member(i, slo_s=slo)) for i, slo in enumerate([10.0, 11.0, 9.0])]
    assert len(set(chat)) == 1
    others = [
        groups.add(member(10, model="code")),
        groups.add(member(11, slo_s=600.0)),
        groups.add(member(12, slo_s=math.inf)),
        groups.add(member(13, prompt=4000.0)),
        groups.add(Member(14, "chat", 100.0, 50.0, 20.0, 0.0, 10.0, until_first_token=True)),
    ]
    assert len({chat[0], *others}) == 6


def test_a_group_is_cut_at_delta_batches_and_serves_first_come_first() -> None:
    groups = Groups(delta=2)
    groups.set_batch("chat", 3)
    refs = [groups.add(member(i, at=float(i))) for i in range(14)]
    assert [len(list(some)) for _, some in itertools.groupby(refs)] == [6, 6, 2]
    assert [m.request for m in groups.head(refs[6], 3)] == [6, 7, 8]
    first, _, last = groups.sums()
    assert (first.first_due_s, first.last_due_s, last.first_arrival_s) == (10.0, 15.0, 12.0)


def test_sums_know_what_instances_have_of_the_prompts() -> None:
    groups = Groups()
    for i in range(3):
        groups.add(Member(i, "chat", 100.0, 50.0, 20.0, 0.0, 10.0, cached_tokens={"n/0": 64.0} if i else {"n/1": 16.0}))
    assert groups.sums()[0].cached_tokens == {"n/0": 128.0, "n/1": 16.0}
    groups.remove(0)
    assert groups.sums()[0].cached_tokens == {"n/0": 128.0}


def test_one_that_is_served_from_its_head_closes_all_the_same() -> None:
    """Else a steady stream would stay one group, and its references would never age."""
    groups = Groups(delta=1, batch=5)
    refs = []
    for i in range(20):
        refs.append(groups.add(member(i)))
        if i >= 2:
            groups.remove(i - 2)
    assert [len(list(some)) for _, some in itertools.groupby(refs)] == [5, 5, 5, 5]


def test_a_preempted_request_is_first_of_its_group_again() -> None:
    groups = Groups()
    ref = groups.add(member(0))
    groups.add(member(1))
    groups.remove(0)
    groups.put_back(member(0), ref)
    assert [m.request for m in groups.head(ref, 9)] == [0, 1]
    groups.remove(0)
    groups.remove(1)
    groups.put_back(member(1), ref)
    assert groups._group_of[1].ref == ref and len(groups) == 1
    with pytest.raises(ValueError, match="request 1 is in group 0 already"):
        groups.add(member(1))


def test_a_group_that_was_empty_in_between_takes_no_newcomers_unseen() -> None:
    """All of it taken, one of them preempted, then another arrives: both must be known and can leave."""
    groups = Groups()
    ref = groups.add(member(0))
    groups.remove(0)
    groups.put_back(member(0), ref)
    groups.add(member(1))
    assert groups.requests == sum(sums.requests for sums in groups.sums()) == 2
    groups.remove(0)
    groups.remove(1)
    assert not len(groups) and not groups.requests


REQUESTS = st.tuples(
    st.sampled_from(["chat", "code"]), st.floats(0.01, 1e5), st.integers(0, 5000), st.booleans(), st.booleans()
)


@given(events=st.lists(REQUESTS, min_size=1, max_size=60), delta=st.sampled_from([0.1, 1.0]))
def test_sums_are_those_of_the_members_and_a_restart_finds_the_same_groups(
    events: list[tuple[str, float, int, bool, bool]], delta: float
) -> None:
    groups, waiting = Groups(delta=delta, batch=4), {}
    for i, (model, slo, prompt, ends, tidies) in enumerate(events):
        waiting[i] = member(i, model, slo, prompt, at=float(i))
        groups.add(waiting[i])
        if ends:
            del waiting[gone := next(iter(waiting))]
            groups.remove(gone)
        if tidies:
            groups.tidy()
    restored = Groups(delta=delta, batch=4)
    restored.restore([(groups._group_of[m.request].ref, m) for m in waiting.values()])
    for found in (groups, restored):
        assert found.requests == len(waiting) == sum(sums.requests for sums in found.sums())
        for sums in found.sums():
            members = found.head(sums.ref, 100)
            assert {m.model for m in members} == {sums.model}
            assert sums.prompt_tokens == pytest.approx(sum(m.prompt_tokens for m in members), abs=1e-6)
            assert sums.output_tokens2 == pytest.approx(sum(m.output_tokens**2 + 400 for m in members))
            assert (sums.first_due_s, sums.last_due_s) == (members[0].due_s, members[-1].due_s)
    assert [s.ref for s in groups.sums()] == [s.ref for s in restored.sums()]
    assert restored.add(member(1000)) > max((s.ref for s in groups.sums()), default=-1)


def drifting(n: int) -> Iterator[Member]:
    """Two kinds that no founder stands for well: the first requests lie at their edges."""
    rng = np.random.default_rng(1)
    for i in range(n):
        slo = 12.0 if i == 0 else float(rng.choice([20.0, 30.0])) * float(rng.lognormal(0, 0.05))
        yield member(i, slo_s=slo)


def test_centroids_move_by_pieces_to_where_the_requests_are() -> None:
    groups, pieces = Groups(most_clusters=2), 0
    for one in drifting(500):
        groups.add(one)
        pieces += groups.tidy()
    found = sorted(2 ** cluster.centroid[0] for kind in groups._kinds.values() for cluster in kind.clusters)
    assert found == pytest.approx([20.0, 30.0], rel=0.05)
    assert 2 <= pieces <= 16 and not groups.tidy()
