"""Steps of an engine as they come: batches that drift, prompts now and then, and times that nobody can predict."""

from collections.abc import Iterator

import numpy as np

from sloserve.estimator.step_time.latency import StepLatency, StepLoad

NOISE, STALLS, STALL = 0.1, 0.01, 5.0
"""Standard deviation of a step's time, share of steps that stall, and how many times as long these take."""


def noisy_steps(truth: StepLatency, steps: int, seed: int, max_tokens: int = 2048) -> Iterator[tuple[StepLoad, float]]:
    """``steps`` loads of at most ``max_tokens``, and what each takes an engine whose mean times are ``truth``'s."""
    rng = np.random.default_rng(seed)
    seqs, context = int(rng.integers(1, 100)), 800.0
    for _ in range(steps):
        seqs = int(np.clip(seqs + rng.integers(-3, 4), 1, 200))
        context = float(np.clip(context + rng.normal(0.0, 10.0), 100.0, 3000.0))
        chunks: list[tuple[int, int]] = []
        for _ in range(int(rng.integers(1, 4)) if rng.random() < 0.3 else 0):
            room = max_tokens - seqs - sum(chunk for chunk, _ in chunks)
            if room > 0:
                chunks.append((min(room, int(rng.lognormal(6.0, 1.0)) + 1), int(rng.choice([0, 0, 0, 1000, 8000]))))
        load = StepLoad.of(chunks, [int(context)] * seqs)
        stall = STALL if rng.random() < STALLS else 1.0
        yield load, truth.step_s(load) * max(0.5, 1.0 + NOISE * rng.standard_normal()) * stall
