"""Published times per output token, with which derived profiles are compared.

Times are of whole servers: so many streams at a time, each with the next request as soon as one ends. The first figures
of a profile are those of InferenceX (``silicon_sample.csv`` of ai-dynamo/aiconfigurator at commit 095f58a51c4c, which
holds a copy of its results), those of DeepSeek-V4 of Lambda's pages of models.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

INFERENCEX = "InferenceX, copied in ai-dynamo/aiconfigurator @ 095f58a51c4c, silicon_sample.csv"


class Point(NamedTuple):
    """One published figure: prompt and output tokens of a request, streams at a time, ms per output token."""

    prompt: int
    output: int
    streams: int
    tpot_ms: float


@dataclass(frozen=True)
class Timings:
    """What was published of one set-up.

    Args:
        source: who published it, and with what.
        sweeps: by tokens of prompt and output, ms per output token by number of streams.
    """

    source: str
    sweeps: dict[tuple[int, int], dict[int, float]]

    def points(self) -> Iterator[Point]:
        for (prompt, output), sweep in self.sweeps.items():
            for streams, tpot_ms in sweep.items():
                yield Point(prompt, output, streams, tpot_ms)


def _sweep(*tpot_ms: float) -> dict[int, float]:
    return dict(zip((4, 8, 16, 32, 64), tpot_ms, strict=True))


_CHAT, _REASONING, _LONG = (1024, 1024), (1024, 8192), (8192, 1024)

TIMINGS = {
    "h100x4-llama3-70b-fp8": Timings(
        f"{INFERENCEX}: Llama-3.1-70B in fp8, tensor parallel 4, October 2025",
        {
            _CHAT: _sweep(11.78, 12.11, 13.19, 16.49, 19.51),
            _REASONING: _sweep(12.0, 12.66, 14.09, 18.39, 23.41),
            _LONG: _sweep(13.27, 15.77, 21.06, 32.82, 53.49),
        },
    ),
    "h200x2-llama3-70b-fp8": Timings(
        f"{INFERENCEX}: Llama-3.1-70B in fp8, tensor parallel 2, October 2025",
        {
            _CHAT: _sweep(13.91, 14.36, 15.65, 20.35, 22.71),
            _REASONING: _sweep(14.2, 14.83, 17.18, 23.16, 26.84),
            _LONG: _sweep(16.32, 19.67, 27.47, 46.07, 71.8),
        },
    ),
    "b200-llama3-70b-fp8": Timings(
        f"{INFERENCEX}: Llama-3.1-70B in fp8, one GPU, October 2025",
        {
            _CHAT: _sweep(16.34, 16.63, 17.67, 19.56, 23.1),
            _REASONING: _sweep(16.67, 16.93, 17.89, 20.47, 24.67),
            _LONG: _sweep(18.34, 21.08, 27.71, 40.88, 70.69),
        },
    ),
    "h100x2-gpt-oss-120b": Timings(
        f"{INFERENCEX}: vLLM 0.18.0, tensor parallel 2, March 2026",
        {
            _CHAT: _sweep(5.03, 6.25, 8.18, 10.94, 14.83),
            _REASONING: _sweep(4.96, 6.1, 7.79, 10.36, 14.38),
            _LONG: _sweep(5.6, 7.44, 10.78, 16.51, 26.32),
        },
    ),
    "h200-gpt-oss-120b": Timings(
        f"{INFERENCEX}: vLLM 0.18.0 and earlier, one GPU, November 2025 to March 2026",
        {
            _CHAT: _sweep(6.33, 9.06, 12.65, 17.64, 24.76),
            _REASONING: _sweep(6.15, 8.67, 11.74, 16.15, 23.44),
            _LONG: _sweep(7.08, 10.46, 15.75, 24.8, 41.83),
        },
    ),
    "b200-gpt-oss-120b": Timings(
        f"{INFERENCEX}: vLLM 0.15.1, one GPU, February 2026",
        {
            _CHAT: _sweep(3.49, 4.41, 5.84, 7.93, 10.5),
            _REASONING: _sweep(3.48, 4.27, 5.4, 7.33, 9.82),
            _LONG: _sweep(3.73, 4.91, 6.61, 9.7, 14.24),
        },
    ),
    "h200x4-qwen3-235b": Timings(
        "ai-dynamo/aiconfigurator @ 095f58a51c4c, silicon_sample.csv: vLLM 0.12.0, tensor parallel 4",
        {
            (1000, 100): {28: 35.27},
            (1000, 500): {40: 34.79},
            (1000, 1000): {48: 36.25},
            (1000, 2000): {48: 36.85},
            (2000, 100): {20: 38.3},
            (4000, 500): {20: 35.16},
            (4000, 1000): {24: 34.35},
            (8000, 100): {8: 45.99},
            (8000, 500): {14: 36.59},
            (8000, 1000): {16: 34.41},
            (8000, 2000): {16: 33.73},
        },
    ),
    "b200x4-deepseek-v4-flash": Timings(
        "lambda.ai/inference-models/deepseek-ai/deepseek-v4-flash: HGX B200, of which the page does not say how many "
        "GPUs, no drafts, mean inter-token latency",
        {(8192, 1024): {32: 20.0}},
    ),
    "b200x8-deepseek-v4-pro": Timings(
        "lambda.ai/inference-models/deepseek-ai/deepseek-v4-pro: HGX B200, vLLM, mean inter-token latency",
        {(8192, 2048): {32: 36.0}},
    ),
}
"""By name of profile; of the others nothing was found."""
