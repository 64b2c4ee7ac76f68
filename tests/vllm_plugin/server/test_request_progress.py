"""How far a request has come, by the front end around a fake engine: its place, the rest of its wait, and its end."""

from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.promises import Promised
from tests.vllm_plugin.server.fake_engine import Metrics, Refused, Server


def prompt(tokens: int = 100) -> Any:
    return {"prompt_token_ids": [0] * tokens}


@pytest.mark.slow
def test_a_waiting_request_has_a_place_and_once_enough_was_seen_a_rest_of_its_wait(metrics: Metrics) -> None:
    server = Server()
    for _ in range(20):
        server.serve(server.http())
    https = [server.http() for _ in range(3)]
    calls = [server.accept(http, prompt()) for http in https]
    assert [http.places for http in https] == [[0], [2], [3]]
    server.clock.advance_to(server.clock.now_s() + 0.05)
    found = [http.progress() for http in https]
    assert [one.position for one in found if one is not None] == [1, 2, 3]
    last = found[2]
    assert last is not None and last.is_waiting and last.remaining is not None and last.predicted is not None
    assert last.waited_s == pytest.approx(0.05) and last.slo_class == "interactive" and last.promised is None
    assert last.remaining.median_s == pytest.approx(0.3, rel=0.3), "two others start first, each in 0.1 s"
    calls[2].request.promised = Promised(0.9)
    calls[0].request.sees_token()
    server.clock.advance_to(server.clock.now_s() + 0.05)  # places are counted now and then
    began, next_one, last = (http.progress() for http in https)
    assert began is not None and not began.is_waiting and began.position is None and began.remaining is None
    assert began.waited_s == pytest.approx(0.05)
    assert next_one is not None and next_one.position == 1
    assert last is not None and last.position == 2 and last.promised == Promised(0.9)
    for call in calls:
        call.abandoned()


def test_a_list_of_prompts_has_the_place_of_its_last_one(metrics: Metrics) -> None:
    server = Server()
    http = server.http()
    for _ in range(3):
        server.accept(http, prompt())
    found = http.progress()
    assert http.places == [0, 2, 3] and found is not None and found.position == 3


def test_a_request_that_is_refused_has_no_place(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    server.accept(server.http(), prompt())
    http = server.http()
    with pytest.raises(Refused):
        server.accept(http, prompt())
    assert http.places == [] and http.progress() is None


def test_an_output_in_one_piece_runs_once_the_engine_has_computed_its_prompt(metrics: Metrics) -> None:
    server = Server()
    http = server.http()
    call = server.accept(http, prompt(), "FINAL_ONLY")
    call.engine_request_id = "a"
    server.states["a"] = SimpleNamespace(is_prefilling=True)
    assert (now := http.progress()) is not None and now.is_waiting
    server.states["a"].is_prefilling = False
    server.clock.advance_to(server.clock.now_s() + 1.0)
    now = http.progress()
    assert now is not None and not now.is_waiting and now.waited_s is None
    call.abandoned()
