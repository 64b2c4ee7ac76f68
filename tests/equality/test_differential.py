"""Random requests, engines and changes of policy: every reply is stock's. ``make whole`` does this for half an hour.

``SLOSERVE_DIFFERENTIAL_S`` says how long it goes on, in seconds; ``SLOSERVE_DIFFERENTIAL_SEED`` where it begins.
"""

import math
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.clock import SystemClock
from tests.equality.differential import Tally, World, draw_world, run_case
from tests.equality.engine import ENGINE_WARNINGS, started
from tests.forked import run_forked
from tests.whole import sampled

pytestmark = [pytest.mark.vllm, pytest.mark.slow, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

SECONDS = float(os.environ.get("SLOSERVE_DIFFERENTIAL_S", "1800"))
SEED = int(os.environ.get("SLOSERVE_DIFFERENTIAL_SEED", "1"))
CASES_OF_A_WORLD = 40
CLOCK = SystemClock()


def serve_world(world: World, seeds: range, tally: Tally, ends_s: float = math.inf) -> None:
    """Serve the cases of these seeds on one engine, and begin none after ``ends_s`` of the clock."""
    with tempfile.TemporaryDirectory() as folder, started(world.config, **world.arguments) as engine:
        for seed in seeds:
            if CLOCK.monotonic_s() >= ends_s:
                return
            run_case(engine, world, seed, Path(folder), tally)


@pytest.mark.parametrize("number", sampled(range(2), [0]))
def test_some_cases(number: int) -> None:
    tally = Tally()
    world = draw_world(np.random.default_rng(number), drafts=False)
    serve_world(world, range(1000 * number, 1000 * number + 3), tally)
    assert tally.replies > 15 and tally.counters["plans"] > 100


def serve_a_drafting_world() -> None:
    """In a process of its own: n-gram drafts load numba, after which vLLM starts no second engine in the same one."""
    seed = int(os.environ["SLOSERVE_DIFFERENTIAL_SEED"])
    tally = Tally()
    serve_world(draw_world(np.random.default_rng(seed), drafts=True), range(seed, seed + CASES_OF_A_WORLD), tally)
    print(f"drafts: {tally}", flush=True)


@pytest.mark.whole
@pytest.mark.timeout(SECONDS + 600.0)
def test_half_an_hour_of_cases(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ends_s, seed, tally = CLOCK.monotonic_s() + SECONDS, 1000 * SEED, Tally()
    while CLOCK.monotonic_s() < ends_s:
        seed += 1000
        rng = np.random.default_rng(seed)
        with capsys.disabled():
            if rng.random() < 0.2:
                monkeypatch.setenv("SLOSERVE_DIFFERENTIAL_SEED", str(seed))
                run_forked(serve_a_drafting_world)
                continue
            world = draw_world(rng, drafts=False)
            serve_world(world, range(seed, seed + CASES_OF_A_WORLD), tally, ends_s)
            print(f"{world}: {tally}", flush=True)
    assert tally.ties <= tally.replies / 100
    if SECONDS >= 1200.0:  # a few engines alone may have no swap space
        assert all(tally.counters[name] for name in ("evictions", "paused_steps", "swap_loads", "policy_changes"))
