"""On the real engine, short requests with a deadline do not wait behind long ones without one: EDF against stock.

All slots are taken by long requests and as many wait when the short ones arrive. Stock serves in order of arrival; EDF
preempts for whoever has a deadline, also when slots and not KV blocks are missing. Latencies are measured; only their
ratio within the test is held against a bound.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from sloserve.core.clock import SystemClock
from tests.equality.engine import ENGINE_WARNINGS, MAX_NUM_SEQS, Engine, EngineConfig, started

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

LONG_REQUESTS, LONG_TOKENS = 2 * MAX_NUM_SEQS, 400
SHORT_REQUESTS, SHORT_TOKENS = 8, 16
SHORT_E2E_MS = 2000
STEPS_BEFORE_SHORT = 20
MIN_RATIO = 5.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    roomy = {"max_model_len": 1024, "num_gpu_blocks_override": 513, "max_num_batched_tokens": 256}
    with started(EngineConfig(async_scheduling=True, prefix_caching=False), **roomy) as running:
        yield running


def serve(engine: Engine) -> tuple[dict[str, float], dict[str, list[int]]]:
    """End-to-end latency in seconds, and output tokens, of each request."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    clock = SystemClock()
    arrival_s: dict[str, float] = {}
    latency_s: dict[str, float] = {}
    tokens: dict[str, list[int]] = {}

    def send(name: str, max_tokens: int, **slo: object) -> None:
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            extra_args=slo,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        arrival_s[name] = clock.now_s()
        engine.llm.add_request(name, f"Request {name}: tell me about the sea.", params, arrival_time=arrival_s[name])

    for i in range(LONG_REQUESTS):
        send(f"long-{i}", LONG_TOKENS, slo_class="batch")
    steps = 0
    while engine.llm.has_unfinished_requests() or not engine.idle():
        if steps == STEPS_BEFORE_SHORT:
            for i in range(SHORT_REQUESTS):
                send(f"short-{i}", SHORT_TOKENS, slo_class="interactive", slo_e2e_ms=SHORT_E2E_MS)
        for output in engine.llm.step():
            latency_s[output.request_id] = clock.now_s() - arrival_s[output.request_id]
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        steps += 1
    return latency_s, tokens


def p95_s(latency_s: dict[str, float], kind: str) -> float:
    return float(np.percentile([v for name, v in latency_s.items() if name.startswith(kind)], 95))


def test_edf_serves_short_requests_before_their_deadline(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.use_stock()
    stock, stock_tokens = serve(engine)
    engine.use_sloserve({"policy": "edf"})
    edf, edf_tokens = serve(engine)
    preempted = engine.scheduler.slo_counters["evictions"]
    ratio = p95_s(stock, "short") / p95_s(edf, "short")
    with capsys.disabled():
        print(
            f"\np95 e2e, {SHORT_REQUESTS} short requests behind {LONG_REQUESTS} long ones, max_num_seqs {MAX_NUM_SEQS}:"
            f" stock {p95_s(stock, 'short'):.2f} s, edf {p95_s(edf, 'short'):.2f} s, {ratio:.1f} times less"
            f" ({preempted} preemptions; long ones: stock {p95_s(stock, 'long'):.2f} s, edf {p95_s(edf, 'long'):.2f} s)"
        )
    assert len(edf) == LONG_REQUESTS + SHORT_REQUESTS
    assert edf_tokens == stock_tokens
    assert ratio >= MIN_RATIO
