"""Ways in which a tenant could try to get more than its share: each leaves it with half of the service of two."""

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.model.step import StepBatch
from tests.sim.stepping import stepped
from tests.whole import first_of_each

pytestmark = pytest.mark.slow

SLO = DEFAULT_CLASSES.slo("interactive", Targets(ttft_s=3.0, tpot_s=0.2))
SETTINGS = EngineSettings(max_num_seqs=32, max_num_batched_tokens=2048, kv_blocks=1500, max_model_len=8192)
SPAN_S = 20.0
HONEST = (900, 120, 8.0)
"""Tokens of prompt and output, and requests a second: twice the share of one of two tenants."""

Sent = tuple[int, int, float]


def workload(*others: Sent, at_once: int = 1) -> list[WorkloadRequest]:
    """Return the requests of a, which plays no game, and of b, which sends ``at_once`` at a time."""
    rng = np.random.default_rng(5)
    found = []
    for tenant, (prompt, output, rate), many in (("a", HONEST, 1), *(("b", sent, at_once) for sent in others)):
        for at_s in SPAN_S * rng.random(int(rate * SPAN_S / many)):
            found += [(float(at_s), prompt, output, tenant)] * many
    return [
        WorkloadRequest(f"r{i}", at_s, prompt, output, SLO, tenant=tenant)
        for i, (at_s, prompt, output, tenant) in enumerate(sorted(found))
    ]


def part_of_b(policy: str, requests: list[WorkloadRequest], aborts: Mapping[str, float] | None = None) -> float:
    """Return b's part of all service within the time in which both always have requests that wait."""
    config = {"sloserve": {"policy": policy, "tenant_shares": {}}}
    engine = ModelEngine(SETTINGS, load_profile("a100-llama3-70b-tp4"), config)
    shares = engine.tenant_shares
    assert shares is not None
    had: dict[str, float] = {}

    def note(batch: StepBatch) -> None:
        if engine.at < SPAN_S:
            had.update(zip(shares.tenants.names, shares.total_s, strict=True))

    engine.on_step = note
    stepped(engine, requests, aborts)
    return had["b"] / (had["a"] + had["b"])


GAMES: Mapping[str, tuple[Sent, int]] = {
    "four times as much": ((900, 120, 24.0), 1),
    "the same as a": (HONEST, 1),
    "tiny requests": ((8, 2, 200.0), 1),
    "short prompts": ((8, 120, 60.0), 1),
    "long prompts": ((6000, 2, 4.0), 1),
    "eight outputs a prompt": (HONEST, 8),
}
"""What b sends, and how many requests at a time."""


@pytest.mark.parametrize(
    "case",
    first_of_each(itertools.product(["fcfs", "auto"], GAMES), lambda case: case[0], lambda case: case[1]),
    ids="-".join,
)
def test_no_way_of_sending_gains_a_tenant_more_than_one_percent(case: tuple[str, str]) -> None:
    policy, game = case
    sent, at_once = GAMES[game]
    assert part_of_b(policy, workload(sent, at_once=at_once)) < 0.511


def test_who_cancels_requests_at_their_last_token_has_paid_for_them() -> None:
    """Clients of b go away 20 ms before their last token comes, by a run in which they stay."""
    requests = workload(HONEST)
    config = {"sloserve": {"policy": "edf", "tenant_shares": {}}}
    log = ModelEngine(SETTINGS, load_profile("a100-llama3-70b-tp4"), config).run(requests)
    gone = {
        one.request.request_id: float(one.token_times_s[-1]) - 0.02
        for one in log.requests
        if one.request.tenant == "b" and one.token_times_s.size and one.token_times_s[-1] < SPAN_S
    }
    assert len(gone) > 15
    assert part_of_b("edf", requests, gone) < 0.511


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_the_prompts_of_one_tenant_leave_another_the_tokens_of_half_an_engine(policy: str) -> None:
    """a's requests hold KV for longer while b's prompts take the steps, and do not pay for that."""

    def tokens_of_a(sent: Sent) -> int:
        config = {"sloserve": {"policy": policy, "tenant_shares": {}}}
        log = ModelEngine(SETTINGS, load_profile("a100-llama3-70b-tp4"), config).run(workload(sent))
        return sum(int((one.token_times_s < SPAN_S).sum()) for one in log.requests if one.request.tenant == "a")

    assert tokens_of_a((6000, 2, 4.0)) > 0.75 * tokens_of_a(HONEST)
