"""What vLLM's ``/metrics`` say of a server's load, as far as a choice between servers needs it.

A page of vLLM has some thousand lines, of which a dozen are read: the others are left out before they are parsed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from sloserve.core.json_lines import lines_of

MOST_LINES: Final = 512
"""Most lines that are parsed of one page: a dozen for each engine of a server with data parallelism."""

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_USED: Final = "vllm:kv_cache_usage_perc"
_CACHE: Final = "vllm:cache_config_info"
_QUERIES: Final = "vllm:prefix_cache_queries_total"
_HITS: Final = "vllm:prefix_cache_hits_total"
_PROMPTS: Final = "vllm:request_prompt_tokens_sum"
_PROMPT_COUNT: Final = "vllm:request_prompt_tokens_count"
_OUTPUTS: Final = "vllm:request_generation_tokens_sum"
_OUTPUT_COUNT: Final = "vllm:request_generation_tokens_count"
_READ: Final = tuple(
    f"{name}{end}"
    for name in (
        _RUNNING, _WAITING, _USED, _CACHE, _QUERIES, _HITS, _PROMPTS, _PROMPT_COUNT, _OUTPUTS, _OUTPUT_COUNT,
    )
    for end in "{ "
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all that a server has served since it started.

    Args:
        prompts, prompt_tokens: Number of ended requests, and the tokens of their prompts.
        outputs, output_tokens: The same for their outputs.
        queried_tokens, hit_tokens: Tokens that were looked for in the prefix cache, and tokens that were found.
    """

    prompts: float = 0.0
    prompt_tokens: float = 0.0
    outputs: float = 0.0
    output_tokens: float = 0.0
    queried_tokens: float = 0.0
    hit_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Figures of one server; a server with several engines has their sums.

    Args:
        model: Name under which it serves its model.
        running, waiting: Number of requests in its engines' steps, and in their queues.
        context_tokens: Tokens in its KV cache; ``None`` if the page does not say how large the cache is.
        totals: Sums since it started.
    """

    model: str
    running: int = 0
    waiting: int = 0
    context_tokens: float | None = None
    totals: Totals = Totals()

    @property
    def requests(self) -> int:
        """Number of requests that it has."""
        return self.running + self.waiting


def read_figures(page: str) -> ServerFigures | None:
    """Return the figures in a page of vLLM's metrics; ``None`` if it says nothing of a server's requests."""
    sums: dict[str, float] = {}
    used: dict[str, float] = {}
    size: dict[str, float] = {}
    model = None
    for name, labels, value in _samples(page):
        engine = labels.get("engine", "")
        if name == _USED:
            used[engine] = value
        elif name == _CACHE:
            size[engine] = _whole(labels.get("num_gpu_blocks")) * _whole(labels.get("block_size"))
        else:
            sums[name] = sums.get(name, 0.0) + value
            model = model or labels.get("model_name")
    if model is None or _RUNNING not in sums:
        return None
    whole = [used[engine] * tokens for engine, tokens in size.items() if engine in used and tokens]
    return ServerFigures(
        model,
        int(sums[_RUNNING]),
        int(sums.get(_WAITING, 0.0)),
        sum(whole) if whole else None,
        Totals(*(sums.get(name, 0.0) for name in (_PROMPT_COUNT, _PROMPTS, _OUTPUT_COUNT, _OUTPUTS, _QUERIES, _HITS))),
    )


def _samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of each line that is read. A page that cannot be parsed ends where it cannot."""
    lines = [line for line in lines_of(page) if line.startswith(_READ)][:MOST_LINES]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if 0.0 <= sample.value < float("inf"):
                    yield sample.name, sample.labels, sample.value
    except ValueError:
        return


def _whole(text: str | None) -> float:
    """Return a number of blocks or tokens in a label; 0 for none, as vLLM writes before it knows."""
    return float(text) if text is not None and text.isdecimal() else 0.0
