"""How soon are an engine's step times known that nobody has profiled, or whose profile is wrong?

Writes benchmarks/results/step_learning.json.gz. Each shipped profile stands for an engine; its steps come with noise of
10 % and a stall of five times the time in a hundred. After so many steps: the error of predicted times, on steps like
those seen and in the mean without noise; and what a promise is worth: the chunk that is said to fit into twice the time
of the decodes alone, as a share of the chunk that does, and how often it takes longer by more than 5 %.
"""

import json
from collections.abc import Iterator

import numpy as np

from benchmarks.arguments import is_quick
from benchmarks.publish import RESULTS, write_result
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.estimator.step_time.online import OnlineLatency
from sloserve.estimator.step_time.profile import Profile, load_profile, profile_names

NOISE, STALLS, STALL = 0.1, 0.01, 5.0
"""Standard deviation of a step's time, share of steps that stall, and how many times as long these take."""
SEEN = (0, 8, 16, 32, 64, 128, 256, 1024)
SEEDS = (0, 1, 2)
PROBES = 100
WRONG = 1.3


class Slower:
    """An engine whose prompts take 30 % longer than its profile says, and whose decodes 30 % less."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def step_s(self, load: StepLoad) -> float:
        decodes = StepLoad(decode_seqs=load.decode_seqs, decode_context_tokens=load.decode_context_tokens)
        decodes_s = self._profile.step_s(decodes)
        return decodes_s / WRONG + WRONG * max(self._profile.step_s(load) - decodes_s, 0.0)


def noisy_steps(
    truth: StepLatency | Slower, steps: int, seed: int, max_tokens: int = 2048
) -> Iterator[tuple[StepLoad, float]]:
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


def with_chunk(base: StepLoad, chunk: int) -> StepLoad:
    return StepLoad(chunk, 1, base.decode_seqs, base.decode_context_tokens, chunk * chunk)


def largest_chunk(truth: StepLatency | Slower, base: StepLoad, seconds: float) -> int:
    low, high = 0, 2**20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if truth.step_s(with_chunk(base, middle)) <= seconds else (low, middle - 1)
    return low


def assessed(latency: OnlineLatency, truth: StepLatency | Slower, probes: list[StepLoad]) -> dict[str, float]:
    errors = [abs(latency.step_s(load) / truth.step_s(load) - 1.0) for load in probes]
    shares, late = [], 0
    for load in probes:
        base = StepLoad(decode_seqs=load.decode_seqs, decode_context_tokens=load.decode_context_tokens)
        seconds = 2.0 * truth.step_s(base)
        chunk = latency.prefill_within(seconds, base, 0)
        shares.append(chunk / max(largest_chunk(truth, base, seconds), 1))
        late += chunk > 0 and truth.step_s(with_chunk(base, chunk)) > 1.05 * seconds
    return {
        "mean_error_percent": 100.0 * float(np.mean(errors)),
        "p95_error_percent": 100.0 * float(np.percentile(errors, 95)),
        "own_error_percent": 100.0 * latency.relative_error,
        "promised_share_median": float(np.median(shares)),
        "late_promises_percent": 100.0 * late / len(probes),
    }


def learnt(
    profile: Profile, truth: StepLatency | Slower, named: bool, seed: int, seen: tuple[int, ...]
) -> list[dict[str, float]]:
    probes = [load for load, _ in noisy_steps(truth, PROBES, seed=99)]
    latency, found = OnlineLatency(profile if named else None), []
    stream = noisy_steps(truth, max(seen), seed)
    for steps in range(max(seen) + 1):
        if steps in seen:
            found.append(assessed(latency, truth, probes))
        if steps < max(seen):
            latency.observe(*next(stream))
    return found


def main() -> None:
    quick = is_quick(__doc__)
    names, seeds, seen = (profile_names()[:1], SEEDS[:1], SEEN[:4]) if quick else (profile_names(), SEEDS, SEEN)
    cases: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for name in names:
        profile = load_profile(name)
        cases[name] = {}
        for case, truth, named in (
            ("no profile", profile, False),
            ("right profile", profile, True),
            ("wrong profile", Slower(profile), True),
        ):
            by_seed = [learnt(profile, truth, named, seed, seen) for seed in seeds]
            cases[name][case] = {
                steps: {key: round(float(np.mean([found[i][key] for found in by_seed])), 3) for key in by_seed[0][i]}
                for i, steps in enumerate(seen)
            }
    print(json.dumps(cases, indent=1))
    if not quick:
        write_result(RESULTS / "step_learning.json.gz", {"engines": cases})


if __name__ == "__main__":
    main()
