"""Windows: what is drawn within one half of a workload is never drawn within the other."""

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.trace import Trace, make_trace
from sloserve.sim.workloads.window import WHOLE, Window, parse_window
from sloserve.sim.workloads.workload_registry import trace_workload, workload


def numbered(n: int = 41) -> Trace:
    """A trace whose prompts tell which request is which."""
    return make_trace("t", "t.csv", np.arange(n) * 0.5, np.arange(1, n + 1), np.ones(n), [""] * n)


def test_halves_of_a_trace_share_no_request() -> None:
    source = trace_workload(numbered())
    early, late = (
        {r.prompt_tokens for seed in range(50) for r in source.within(half).requests(5, seed)}
        for half in WHOLE.halves()
    )
    assert early == set(range(1, 21)) and late == set(range(21, 42))


def test_halves_of_a_generator_share_no_draw() -> None:
    source = workload("sharegpt-poisson")
    early, late = (
        {tuple(r.prompt_tokens for r in source.within(half).requests(20, seed)) for seed in range(20)}
        for half in WHOLE.halves()
    )
    assert len(early) == len(late) == 20 and not early & late
    assert source.within(WHOLE).requests(9, 3) == source.requests(9, 3)
    assert source.within(parse_window("0:0.5")).requests(9, 3) == source.requests(9, 3)


def test_halves_of_a_window_lie_within_it() -> None:
    assert Window(0.2, 0.6).halves() == (Window(0.2, 0.4), Window(0.4, 0.6))
    assert str(Window(0.0, 0.5)) == "0:0.5"


@pytest.mark.parametrize("text", ["0.5", "0:1:2", "a:b", "0.5:0.5", "0.5:0.2", "-1:1", "0:1.5", "nan:1"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--window: .*0:0\.5"):
        parse_window(text)


def test_a_window_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"none of its 41 requests lies within 0\.51:0\.52"):
        trace_workload(numbered()).within(Window(0.51, 0.52))
