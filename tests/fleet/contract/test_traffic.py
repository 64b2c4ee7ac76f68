"""Reports of recent requests: what goes in comes out, other versions and damage are ignored, gateways add up."""

import base64
import zlib

import pytest

from sloserve.core.slo import Targets
from sloserve.fleet.contract.traffic import MOST_REQUESTS, RecentTraffic, SeenRequest, to_text, together, traffic_of


def seen(age_s: float, model: str = "a", **more: object) -> SeenRequest:
    return SeenRequest(age_s, model, "interactive", 100, targets=Targets(ttft_s=5.0, tds=4.0), **more)  # type: ignore[arg-type]


def test_a_report_comes_back_as_it_was_written() -> None:
    traffic = RecentTraffic(600.0, (seen(500.0, max_tokens=7, output_tokens=3, ended=True), seen(1.5)))
    assert traffic_of(to_text(traffic)) == traffic
    assert traffic_of(to_text(RecentTraffic())) == RecentTraffic()


@pytest.mark.slow
def test_a_report_is_small_and_bounded() -> None:
    many = RecentTraffic(
        600.0, tuple(seen(600.0 - 0.1 * k, output_tokens=k % 500) for k in range(MOST_REQUESTS + 1000))
    )
    text = to_text(many)
    back = traffic_of(text)
    assert back is not None and back.requests == tuple(
        SeenRequest(round(one.age_s, 3), "a", "interactive", 100, None, one.output_tokens, False, one.targets)
        for one in many.requests[1000:]
    )
    assert len(text) < 25 * MOST_REQUESTS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        base64.b64encode(b"not zlib").decode(),
        base64.b64encode(zlib.compress(b'{"requests": []}')).decode(),
        base64.b64encode(zlib.compress(b"[" * 10_000_000)).decode(),
        base64.b64encode(zlib.compress(b'[1.0, [[0.0, "a", "b", 1, null, 0, true, -1.0, null, null, null]]]')).decode(),
    ],
)
def test_what_cannot_be_read_is_ignored(text: str) -> None:
    assert traffic_of(text) is None


def test_gateways_add_up_to_what_all_of_them_cover() -> None:
    old, young = RecentTraffic(600.0, (seen(550.0), seen(20.0))), RecentTraffic(100.0, (seen(90.0, "b"),))
    both = together([(old, 0.0), (young, 10.0)])
    assert both.covers_s == 110.0
    assert [(one.age_s, one.model) for one in both.requests] == [(100.0, "b"), (20.0, "a")]
    assert together([]) == RecentTraffic()
