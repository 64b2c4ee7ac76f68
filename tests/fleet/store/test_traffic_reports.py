"""Reports of recent requests in the store: one row a gateway, with its age, and none of a gateway that has gone."""

import pytest

from sloserve.fleet.store.store import Store as OpenStore
from sloserve.fleet.store.traffic_reports import KEPT_S
from tests.fleet.store.databases import Store


@pytest.fixture
def opened(store: Store) -> OpenStore:
    return OpenStore(store.open())


def test_a_gateway_has_one_report_that_ages_and_goes(opened: OpenStore, store: Store) -> None:
    assert opened.traffic.read() == []
    opened.traffic.write("b", "first")
    opened.traffic.write("b", "second")
    store.pass_s(15.0)
    opened.traffic.write("a", "other")
    (other, young_s), (second, old_s) = opened.traffic.read()
    assert (other, second) == ("other", "second") and young_s < 5.0 and 15.0 <= old_s < 20.0
    store.pass_s(KEPT_S - 10.0)
    assert [text for text, _ in opened.traffic.read()] == ["other"]
    opened.traffic.write("a", "again")
    with opened.database.reading() as session:
        assert session.rows("SELECT gateway FROM traffic") == [("a",)]
