"""Who is sent away and comes when told to finds a place, whatever the load and however slow the engine has become."""

from collections.abc import Callable, Hashable

import pytest

from sloserve.core.errors import QueueFull, SLOUnattainable
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.kept_places import GRACE_S, MOST_OF_KEY, KeptPlaces
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket
from tests.scheduler.admission.overload import CAP, SLOTS, T0, Overload


def bursts(at_s: float) -> float:
    return 3.0 if at_s % 30.0 < 8.0 else 0.3


@pytest.mark.slow
@pytest.mark.parametrize("polite", [1.0, 0.3, 0.02])
@pytest.mark.parametrize(
    ("load", "slower", "least"),
    [
        (lambda s: 2.2, lambda s: 1.0, 0.97),
        (lambda s: 10.0, lambda s: 1.0, 0.9),
        (bursts, lambda s: 1.0, 0.97),
        (lambda s: 0.8, lambda s: 3.0 if s > 30.0 else 1.0, 0.9),  # the machine has other work all of a sudden
        (bursts, lambda s: 1.0 + 2.0 * (s // 7.0 % 2.0), 0.8),  # and now and then
    ],
    ids=["2.2 times", "10 times", "bursts", "three times slower", "slower by turns"],
)
def test_who_comes_when_told_finds_a_place(
    load: Callable[[float], float], slower: Callable[[float], float], least: float, polite: float
) -> None:
    """Without places that are kept: 27, 8, 60, 23 and 50 % of them where all clients are polite."""
    for_s = 120.0
    seen = Overload(load, slower, for_s=for_s, polite=polite).run()
    assert seen.promised_in >= least * seen.promised - 2
    if polite == 1.0:
        assert seen.promised > 50
    assert seen.waited_most <= CAP
    if load(0.0) > 1.0 and load is not bursts:
        assert seen.completed > 0.95 * SLOTS * (for_s - 1.0), "the engine has work all the time"


class Full:
    """A class of ``cap`` places, all taken, of which one has been freed every ``1 / per_s`` seconds."""

    def __init__(self, cap: int = 4, per_s: float = 1.0, starts: int = 40, min_chance: float | None = None) -> None:
        self.now_s = T0
        self._interval_s = 1.0 / per_s
        self._admission = Admission(("batch",), lambda place: True, caps={"batch": cap}, min_chance=min_chance)
        self._waiting = [self.comes("first") for _ in range(cap)]
        for _ in range(starts):
            self.pass_s(self._interval_s)
            self.starts()
            self.enters("next")

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds

    def starts(self) -> None:
        self._waiting.pop(0).started(self.now_s)

    def enters(self, key: Hashable) -> None:
        self._waiting.append(self.comes(key))

    def comes(self, key: Hashable, targets: Targets | None = None) -> Ticket:
        slo = DEFAULT_CLASSES.slo("batch", targets or Targets())
        new = ArrivingRequest(slo, self.now_s, prompt_tokens=100, key=lambda: key)
        return self._admission.admit(new, self._admission.forecast(new, self.now_s), None, self.now_s)

    def told(self, key: Hashable) -> int:
        with pytest.raises(QueueFull) as refused:
            self.comes(key)
        return refused.value.retry_after_s


def test_a_place_is_kept_for_who_was_promised_it() -> None:
    full = Full()
    assert full.told("a") == 1
    full.pass_s(1.0)
    full.starts()
    with pytest.raises(QueueFull, match="3 of 4 requests.* wait, and 1 places are kept for requests that were refused"):
        full.comes("newcomer")
    full.comes("a")
    full.starts()
    full.pass_s(10.0 + GRACE_S)
    full.comes("another")  # the newcomer has not come again in time


def test_who_comes_and_is_refused_for_its_targets_blocks_no_place() -> None:
    full = Full(min_chance=0.5)
    assert full.told("a") == 1
    full.pass_s(1.0)
    full.starts()
    with pytest.raises(SLOUnattainable):
        full.comes("a", Targets(ttft_s=0.01))
    full.comes("newcomer")


def test_who_comes_too_early_has_no_claim() -> None:
    full = Full()
    assert [full.told(f"r{i}") for i in range(6)] == [1, 2, 3, 4, 5, 6]
    full.pass_s(1.0)
    full.starts()
    assert full.told("r1") > 1
    full.comes("r0")


def test_an_engine_that_has_become_slower_keeps_the_next_place_for_who_came_in_vain() -> None:
    full = Full()
    assert full.told("a") == 1
    full.pass_s(1.0)  # and nothing has started
    assert 1 <= full.told("a") <= 2
    full.pass_s(2.0)
    full.starts()
    full.told("newcomer")
    full.comes("a")


def test_retry_after_follows_the_rate_of_now() -> None:
    """Ten starts a second for half a minute, then one: the longer past is forgotten within a few starts."""
    full = Full(cap=8, per_s=10.0, starts=300)
    for _ in range(20):
        full.pass_s(1.0)
        full.starts()
        full.enters("x")
    assert [full.told(f"r{i}") for i in range(10)][-1] >= 7


@pytest.mark.slow
def test_one_request_that_is_sent_again_and_again_gains_few_promises() -> None:
    full = Full(cap=64)
    last = [full.told("hammer") for _ in range(500)][-1]
    assert last <= MOST_OF_KEY + 1 and full.told("other") <= last + 1


def test_clients_that_never_come_again_take_few_places() -> None:
    places = KeptPlaces()
    for i in range(1_000):
        places.pass_time(T0 + i)
        places.make(i, T0 + i + 1.0, T0 + i + 1.0)
    assert places.share < 0.1 and places.kept == 1 and len(places) < 10
