"""The time per output token that is expected: of the latest arrivals, at the load of the moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.scheduler.admission.decode_pace import LATEST, LOAD_EXPONENT, OF, DecodePace


def test_nothing_is_expected_before_a_request_has_ended() -> None:
    assert DecodePace().tpot_s(3) is None


def test_requests_that_arrived_last_say_how_it_is_now() -> None:
    """Half of the latest to end are long ones that began when the engine was fast."""
    pace = DecodePace()
    for i in range(OF // 2):
        pace.add(0.01, float(i), 9)
        pace.add(0.02, 1000.0 + i, 9)
    assert pace.tpot_s(9) == pytest.approx(0.02)


def test_more_requests_in_flight_take_longer() -> None:
    pace = DecodePace()
    pace.add(0.01, 0.0, 15)
    assert pace.tpot_s(15) == pytest.approx(0.01)
    assert pace.tpot_s(255) == pytest.approx(0.01 * 16.0**LOAD_EXPONENT)


@given(
    ordinary=st.lists(st.floats(0.01, 0.02), min_size=LATEST, max_size=2 * OF),
    outlier=st.floats(0.0, 1e6),
    after=st.lists(st.floats(0.01, 0.02), max_size=OF),
)
def test_one_outlier_moves_it_within_the_ordinary_ones(
    ordinary: list[float], outlier: float, after: list[float]
) -> None:
    pace = DecodePace()
    for i, tpot_s in enumerate([*ordinary, outlier, *after]):
        pace.add(tpot_s, float(i), 4)
    found = pace.tpot_s(4)
    assert found is not None and 0.0099 <= found <= 0.0201
