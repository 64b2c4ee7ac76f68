"""``--goodput`` and ``--goodput-class``: vLLM's form in, targets by which requests are judged out."""

import pytest

from sloserve.client.goodput_targets import parse_goodput
from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO, SLOClass, Targets

CHAT = SLOClass("chat", 0, Targets(ttft_s=1.0, tds=5.0))
JOBS = SLOClass("jobs", 1, Targets(e2e_s=60.0))
REQUESTS = [WorkloadRequest(c.name, 0.0, 10, 10, SLO(c, c.targets)) for c in (CHAT, JOBS)]


@pytest.mark.parametrize(
    "texts", [["ttft:500", "tpot:50", "e2el:2000"], ["ttft:500 tpot:50 e2el:2000"], ["ttft:500,tpot:50", "e2el:2000"]]
)
def test_targets_of_all_replace_the_workloads(texts: list[str]) -> None:
    judged = parse_goodput(texts).judged(REQUESTS)
    assert [r.slo.targets for r in judged] == [Targets(ttft_s=0.5, tpot_s=0.05, e2e_s=2.0)] * 2
    assert [r.slo.slo_class for r in judged] == [CHAT, JOBS]


def test_a_class_has_targets_of_its_own_and_the_rest_those_of_all() -> None:
    judged = parse_goodput(["e2el:1000"], ["chat=ttft:200,tpot:20"]).judged(REQUESTS)
    assert [r.slo.targets for r in judged] == [Targets(ttft_s=0.2, tpot_s=0.02), Targets(e2e_s=1.0)]


def test_what_no_flag_names_is_judged_by_the_workload() -> None:
    assert parse_goodput([]).judged(REQUESTS) == REQUESTS
    assert parse_goodput([], ["chat=ttft:200"]).judged(REQUESTS)[1] is REQUESTS[1]


@pytest.mark.parametrize(
    ("overall", "by_class", "message"),
    [
        (["e2e:500"], [], "--goodput: 'e2e' is not a known key; known: ttft, tpot, e2el"),
        (["ttft=500"], [], "--goodput: 'ttft=500' is not of the form key:milliseconds"),
        (["ttft:fast"], [], "--goodput: ttft: 'fast' is not a number of milliseconds"),
        (["ttft:0"], [], "--goodput: ttft: '0' is not a number of milliseconds above 0, at most 604800000"),
        (["ttft:1", "ttft:2"], [], "--goodput: ttft is given twice"),
        ([], ["ttft:500"], "--goodput-class: 'ttft:500' is not of the form class="),
        ([], ["chat="], "--goodput-class: 'chat=' names no target"),
        ([], ["chat=ttft:1", "chat=tpot:1"], "--goodput-class: class 'chat' is given twice"),
    ],
)
def test_mistakes_are_named(overall: list[str], by_class: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_goodput(overall, by_class)
    assert message in str(caught.value)


def test_a_class_that_no_request_has_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no request is of class 'voice'; they are of chat, jobs"):
        parse_goodput([], ["voice=ttft:1"]).judged(REQUESTS)
