"""Sums over the queue that one member reads for all."""

import pytest

from sloserve.core.errors import StoreAway
from sloserve.fleet.store.records import DurableRequest
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.store.shared_sums import OLDEST_S
from sloserve.fleet.store.store import Store as OpenStore
from tests.fleet.store.databases import Store


class Counted:
    """Counts how often the queue is read while it is installed, by whichever store."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.times, self.during, read = 0, list[object](), Requests.sums

        def sums(requests: Requests) -> object:
            self.times += 1
            for act in self.during:
                act()  # type: ignore[operator]
            return read(requests)

        patch.setattr(Requests, "sums", sums)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def accept(opened: OpenStore, id: str, deadline_s: float | None = None) -> None:
    opened.requests.accept([DurableRequest(id, "t", "m", "batch", 7, b"{}", 20, 5.0, deadline_s, batch="b")])


def test_many_members_read_the_queue_once_and_know_the_same(store: Store, counted: Counted) -> None:
    members = [OpenStore(store.open()) for _ in range(4)]
    accept(members[0], "a", 60.0)
    accept(members[0], "b")
    expected = members[0].requests.sums()
    counted.times = 0
    assert expected[0].requests == 2 and expected[0].first_due_s is not None
    for _ in range(3):
        assert [list(member.shared_sums.sums()) for member in members] == [expected] * 4
    assert counted.times == 1


def test_the_sums_are_read_again_when_they_are_due(store: Store, counted: Counted) -> None:
    one, two = OpenStore(store.open()), OpenStore(store.open())
    accept(one, "a")
    assert one.shared_sums.sums()[0].requests == 1 == two.shared_sums.sums()[0].requests
    accept(one, "b")
    store.pass_s(1.5)
    assert two.shared_sums.sums()[0].requests == 2 == one.shared_sums.sums()[0].requests
    assert counted.times == 2


def test_while_one_member_reads_the_others_return_the_last_sums(store: Store, counted: Counted) -> None:
    one, two = OpenStore(store.open()), OpenStore(store.open())
    accept(one, "a")
    one.shared_sums.sums()
    accept(one, "b")
    store.pass_s(2.0)
    seen: list[int] = []
    counted.during.append(lambda: seen.append(two.shared_sums.sums()[0].requests))
    assert one.shared_sums.sums()[0].requests == 2 and seen == [1] and counted.times == 2


def test_a_member_that_dies_while_it_reads_is_followed(
    store: Store, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = OpenStore(store.open()), OpenStore(store.open())
    accept(one, "a")

    def dies() -> None:
        counted.during.clear()
        raise StoreAway("it was killed")

    counted.during.append(dies)
    with pytest.raises(StoreAway):
        one.shared_sums.sums()
    assert list(two.shared_sums.sums()) == []
    store.pass_s(16.0)
    assert two.shared_sums.sums()[0].requests == 1 == one.shared_sums.sums()[0].requests
    assert counted.times == 2


def test_sums_that_nobody_has_asked_for_in_a_while_count_as_none(store: Store, counted: Counted) -> None:
    one, two = OpenStore(store.open()), OpenStore(store.open())
    accept(one, "a")
    one.shared_sums.sums()
    store.pass_s(OLDEST_S + 1.0)
    seen: list[object] = []
    counted.during.append(lambda: seen.append(list(two.shared_sums.sums())))
    assert one.shared_sums.sums()[0].requests == 1 and seen == [[]]
    assert two.shared_sums.sums()[0].requests == 1


def test_sums_are_read_where_the_clock_of_the_store_was_set_back(store: Store, counted: Counted) -> None:
    one = OpenStore(store.open())
    accept(one, "a")
    one.shared_sums.sums()
    accept(one, "b")
    store.pass_s(-86_400.0)
    assert one.shared_sums.sums()[0].requests == 2
