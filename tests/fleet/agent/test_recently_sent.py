"""Prompts that an agent reports to gateways: for how long, how many, and how a gateway states them."""

import pytest

from sloserve.fleet.agent.recently_sent import MOST_REPORTED, REPORTED_S, RecentlySent
from sloserve.fleet.contract.endpoint import read_prefixes, stated_prefixes


def test_a_prompt_is_reported_for_some_seconds_after_it_was_last_sent() -> None:
    recent = RecentlySent[int]()
    recent.sent({"aa": 100, "bb": 200}, 10.0)
    recent.sent({"aa": 150}, 12.0)
    assert dict(recent.reported(12.0)) == {"bb": 200, "aa": 150}
    assert dict(recent.reported(10.0 + REPORTED_S)) == {"aa": 150}
    assert recent.reported(12.0 + REPORTED_S) == {}
    recent.sent({"cc": 1}, 20.0)
    recent.clear()
    assert recent.reported(20.0) == {}


def test_the_oldest_of_many_are_left_out() -> None:
    recent = RecentlySent[int]()
    for i in range(MOST_REPORTED + 1):
        recent.sent({f"{i:04x}": i}, 0.0)
    assert list(recent.reported(0.0).values()) == list(range(1, MOST_REPORTED + 1))


@pytest.mark.parametrize("prompt", [{}, {"9f3c": 1200}, {"9f3c": 1200, "00ff": 3}])
def test_what_a_gateway_states_is_read(prompt: dict[str, int]) -> None:
    assert read_prefixes(stated_prefixes(prompt)) == prompt


@pytest.mark.parametrize("text", ["", "x", "9f3c", "9f3c=-1", "9F=1", "=1", "zz=1", f"9f3c={10**9}", "9f=1;ab=2"])
def test_what_has_another_form_is_left_out(text: str) -> None:
    assert read_prefixes(text) == {} and read_prefixes(f"{text},ab=7") == {"ab": 7}
    assert len(read_prefixes(",".join(f"{i:02x}=1" for i in range(200)))) == 4
