"""Which hosts get an agent, and when again."""

import pytest

from sloserve.core.clock import ManualClock
from sloserve.fleet.pool.keeper import AgentKeeper
from sloserve.fleet.pool.pool import Offer
from tests import bounded
from tests.fleet.pool.fake_pool import FakePool

A, B = Offer("a", "cpu", 1), Offer("b", "cpu", 1)


class Kept:
    """A keeper of a fake pool, by hand."""

    def __init__(self, *hosts: Offer) -> None:
        self.pool, self.clock, self.said = FakePool(*hosts), ManualClock(), list[str]()
        self.keeper = AgentKeeper(self.pool, self.said.append, clock=self.clock)

    def look(self, after_s: float = 0.0) -> dict[str, int]:
        self.clock.advance_to(self.clock.now_s() + after_s)
        bounded.run(self.keeper.look())
        return self.pool.agents


def test_each_host_has_one_agent_and_a_new_one_gets_one() -> None:
    kept = Kept(A)
    assert kept.look() == kept.look() == {"a": 1}
    kept.pool.hosts["b"] = B
    assert kept.look() == {"a": 1, "b": 2}


@pytest.mark.slow
def test_agents_that_end_are_started_again_later_each_time() -> None:
    kept, waits = Kept(A), list[float]()
    for _ in range(9):
        kept.look()
        kept.keeper.heard(kept.pool.lose("a"))
        begun_s = kept.clock.now_s()
        with bounded.within("the agent to be started again"):
            while not kept.look(0.5):
                pass
        waits.append(kept.clock.now_s() - begun_s)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    kept.clock.advance_to(kept.clock.now_s() + 61.0)
    kept.keeper.heard(kept.pool.lose("a"))
    assert kept.look(0.5) and kept.said[-1] == "the agent of host a has ended; it is started again"


def test_an_agent_that_is_only_unreachable_is_left_alone() -> None:
    kept = Kept(A)
    kept.look()
    kept.keeper.heard(kept.pool.lose("a", certain=False))
    assert kept.look(100.0) == {"a": 1} and kept.said == ["the agent of host a is not reached"]


def test_a_host_that_has_gone_gets_an_agent_when_it_is_back() -> None:
    kept = Kept(A, B)
    kept.look()
    del kept.pool.hosts["b"]
    gone = kept.pool.lose("b")
    kept.look()
    kept.keeper.heard(gone)
    assert kept.said == ["the agent of host b has ended"] and kept.look(1.0) == {"a": 1}
    kept.pool.hosts["b"] = B
    assert kept.look() == {"a": 1, "b": 3}


def test_a_start_that_fails_is_tried_again() -> None:
    kept = Kept(A)
    kept.pool.failing.add("a")
    assert kept.look() == {} and "cannot be started: no memory" in kept.said[0]
    kept.pool.failing.clear()
    assert kept.look() == {} and kept.look(0.5) == {"a": 1}


def test_a_drained_host_stays_without_an_agent_until_it_comes_anew() -> None:
    kept = Kept(A)
    kept.look()
    bounded.run(kept.keeper.drain("a"))
    assert kept.look(100.0) == {}
    del kept.pool.hosts["a"]
    kept.look()
    kept.pool.hosts["a"] = A
    assert kept.look() == {"a": 2}
    bounded.run(kept.keeper.drain("a"))
    assert kept.look() == {} and kept.keeper.drained == {"a"}
    kept.keeper.resume("a")
    assert kept.look() == {"a": 3} and not kept.keeper.drained


def test_a_pool_that_cannot_be_asked_is_asked_again() -> None:
    kept = Kept(A)

    async def away() -> dict[str, Offer]:
        raise OSError("no cluster")

    kept.pool.offers, real = away, kept.pool.offers  # type: ignore[method-assign]
    assert kept.look() == {}
    kept.pool.offers = real  # type: ignore[method-assign]
    assert kept.look() == {"a": 1}
