"""Replies as lists of pieces with arrival times, and what a token buffer must make of them by the arithmetic of core.

The cases that all clients must agree on lie in ``clients/timelines.json``; ``python -m tests.client.timelines`` writes
them anew.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.qoe import digest_start_s, qoe

CASES = Path(__file__).parents[2] / "clients" / "timelines.json"
PRECISION = 9
"""Decimals in the file: other languages add in another order."""


@dataclass(frozen=True)
class Timeline:
    """pieces: (arrival in seconds since the request was sent, tokens of text; 0 for a chunk without)."""

    tds: float
    ttft_s: float
    pieces: tuple[tuple[float, int], ...]

    def chunks(self) -> list[dict[str, Any]]:
        """The pieces as chunks that say how many tokens there are so far, each unlike the others."""
        so_far, chunks = 0, []
        for place, (_, tokens) in enumerate(self.pieces):
            so_far += tokens
            delta = {"content": f"{place} "} if tokens else {"role": "assistant", "content": ""}
            usage = {"completion_tokens": so_far}
            chunks.append({"choices": [{"index": 0, "delta": delta}], "usage": usage, "place": place})
        return chunks

    def expected(self) -> dict[str, Any]:
        """What the reader gets; stalls as (from, seconds)."""
        texts = [(at_s, tokens) for at_s, tokens in self.pieces if tokens]
        tokens = np.array([n for _, n in texts], np.int64)
        arrivals_s = np.array([at_s for at_s, _ in texts])
        token_times_s = np.repeat(arrivals_s, tokens)
        starts_s = digest_start_s(token_times_s, self.tds) if texts else token_times_s
        text_releases_s = starts_s[np.cumsum(tokens) - tokens]
        releases_s, next_text = [], iter(text_releases_s)
        for at_s, n in self.pieces:
            releases_s.append(float(next(next_text)) if n else max(at_s, releases_s[-1] if releases_s else 0.0))
        digested_s = text_releases_s + tokens / self.tds
        stalls = [
            (float(since_s), float(at_s - since_s))
            for since_s, at_s in zip(digested_s[:-1], arrivals_s[1:], strict=True)
            if at_s - since_s > 1e-9
        ]
        return {
            "releases_s": releases_s,
            "qoe": qoe(token_times_s, ttft_s=self.ttft_s, tds=self.tds) if texts else None,
            "ttft_s": float(arrivals_s[0]) if texts else None,
            "tokens": int(tokens.sum()),
            "stalls": stalls,
            "held_s": float(np.sum(text_releases_s - arrivals_s)),
        }


def _paced(first_s: float, gap_s: float, n: int, tokens: int = 1) -> list[tuple[float, int]]:
    return [(first_s + i * gap_s, tokens) for i in range(n)]


def _drawn(seed: int) -> Timeline:
    draw = np.random.default_rng(seed)
    times_s = np.cumsum(draw.choice([0.0, 0.03, 0.2, 1.5], 60, p=[0.3, 0.4, 0.2, 0.1]) * draw.random(60))
    tokens = draw.choice([0, 1, 2, 5], 60, p=[0.1, 0.6, 0.2, 0.1])
    return Timeline(4.8, 1.0, tuple((float(at_s), int(n)) for at_s, n in zip(times_s, tokens, strict=True)))


CASE_BY_NAME = {
    "a burst, preempted, resumed in time (Andes, Fig. 8)": Timeline(
        4.0, 1.0, (*_paced(0.5, 0.05, 20), *_paced(4.5, 0.05, 20))
    ),
    "a burst, preempted, resumed too late": Timeline(4.0, 1.0, (*_paced(0.5, 0.05, 20), *_paced(8.0, 0.05, 20))),
    "slower than it is read": Timeline(4.8, 1.0, tuple(_paced(0.4, 0.3, 15))),
    "late first token, then at once": Timeline(4.8, 1.0, tuple(_paced(5.0, 0.0, 8))),
    "over before the first token is expected": Timeline(4.8, 1.0, tuple(_paced(0.1, 0.01, 12))),
    "several tokens a chunk": Timeline(10.0, 0.2, (*_paced(0.3, 0.1, 5, tokens=4), (9.0, 3))),
    "chunks without text wait their turn only": Timeline(
        5.0, 1.0, ((0.1, 0), (0.2, 1), (0.21, 0), (0.25, 1), (0.26, 1), (0.27, 0), (0.9, 0))
    ),
    "one token": Timeline(4.8, 1.0, ((1.5, 1),)),
    "nothing to read": Timeline(4.8, 1.0, ((0.1, 0), (0.2, 0))),
    **{f"drawn with seed {seed}": _drawn(seed) for seed in (1, 2, 3)},
}


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(inner) for inner in value]
    return round(value, PRECISION) if isinstance(value, float) else value


def cases() -> list[dict[str, Any]]:
    """The content of the file: one case a line, chunks left out."""
    return [
        rounded(
            {
                "name": name,
                "tds": timeline.tds,
                "expected_ttft_s": timeline.ttft_s,
                "pieces": timeline.pieces,
                **timeline.expected(),
            }
        )
        for name, timeline in CASE_BY_NAME.items()
    ]


def as_text() -> str:
    return "[\n" + ",\n".join(json.dumps(case) for case in cases()) + "\n]\n"


if __name__ == "__main__":
    CASES.write_text(as_text())
