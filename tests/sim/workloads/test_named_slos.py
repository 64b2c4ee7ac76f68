import pytest

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.named_slos import NAMED_SLOS, find_slos
from sloserve.sim.workloads.workload_registry import workload


def test_names_come_before_files() -> None:
    assert find_slos("reading") is NAMED_SLOS["reading"]
    with pytest.raises(ConfigError, match="no-such-file"):
        find_slos("no-such-file.yaml")


def test_deadlines_in_proportion_to_the_reply() -> None:
    requests = workload("sharegpt-poisson").requests(20, 0, 1.0, slos=find_slos("scaled:prompt_ms=50:token_ms=24"))
    for one in requests:
        assert one.slo.targets.e2e_s == pytest.approx(2.0 * (0.050 + 0.024 * one.output_tokens))
        assert one.slo.targets.ttft_s is None
    tight = find_slos("scaled:scale=0.5:prompt_ms=50:token_ms=24")
    again = workload("sharegpt-poisson").requests(20, 0, 1.0, slos=tight)
    assert [a.slo.targets.e2e_s for a in again] == pytest.approx(
        [float(o.slo.targets.e2e_s or 0) / 4 for o in requests]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scaled:prompt_ms=50", "give token_ms too"),
        ("scaled:", "'' is not scale, prompt_ms or token_ms"),
        ("scaled:prompt_ms=50:token_ms=fast", "'token_ms=fast' is not"),
        ("scaled:prompt_ms=50:token_ms=-1", "'token_ms=-1' is not"),
        ("scaled:prompt_ms=50:token_ms=24:scale=nan", "'scale=nan' is not"),
        ("scaled:ttft_ms=50:token_ms=24", "'ttft_ms=50' is not"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_slos(text)
