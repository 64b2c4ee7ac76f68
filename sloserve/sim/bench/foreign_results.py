"""Result files of other load generators, as requests that ended, so that they are judged like our own.

The known files are ``vllm bench serve --save-result --save-detailed`` (JSON), guidellm's ``benchmarks.json``, and
aiperf's ``profile_export.jsonl``. A request without a complete output meets no target. Times are as the tool measured
them: from when it sent the request, not from when the request was due, so the wait within the client does not count.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sloserve.core import json_text
from sloserve.core.errors import ConfigError, shown
from sloserve.core.files.kinds import reading
from sloserve.core.finished import Latency
from sloserve.core.json_lines import lines_of
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO, SLOClass, Targets

_CLASS: Final = SLOClass(name="all", rank=0)
_DETAILS: Final = "vllm bench serve writes it with --save-result --save-detailed, of streamed requests"


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request of a file; a figure is ``None`` where the file does not have it.

    Args:
        completed: Whether the request was completed.
        ttft_s: Time to the first token, in seconds.
        tpot_s: Time per output token, in seconds; 0 for a single token.
        e2e_s: End-to-end latency, in seconds.
    """

    completed: bool
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        _check_figures(self.ttft_s, self.tpot_s, self.e2e_s)


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One run of a load generator; ``duration_s`` is ``None`` where the file does not say it."""

    tool: str
    requests: list[MeasuredRequest]
    duration_s: float | None

    def __post_init__(self) -> None:
        _check_figures(self.duration_s)

    def judged(self, targets: Targets) -> list[ServedRequest]:
        """Return the requests with ``targets``.

        Raises: ConfigError for a target when a completed request lacks the figure to judge it.
        """
        return [self._judged(number, one, targets) for number, one in enumerate(self.requests, start=1)]

    def _judged(self, number: int, one: MeasuredRequest, targets: Targets) -> ServedRequest:
        slo = SLO(_CLASS, targets)
        if not one.completed:
            return ServedRequest(slo, Outcome.FAILED)
        for name in targets.stated:
            if getattr(one, name) is None:
                raise ConfigError(
                    f"request {number} of {self.tool} has no {name[:-2]}: judge it without this target, or have the "
                    "tool stream its requests and count their tokens"
                )
        found = [math.inf if value is None else value for value in (one.ttft_s, one.tpot_s, one.e2e_s)]
        return ServedRequest(slo, Outcome.COMPLETED, latency=Latency(*found))


def read_runs(path: Path) -> list[LoadRun]:
    """Return the runs of a file; a file of guidellm may have several. Raises: ConfigError for a file without runs."""
    with reading("requests", path):
        return _runs(path)


def _runs(path: Path) -> list[LoadRun]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        content = _parsed(text)
        for recognised, read in _READERS:
            if recognised(content):
                runs = list(read(content))
                if not any(run.requests for run in runs):
                    raise ConfigError(f"{path}: has no requests")
                return runs
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: is not in the format of its tool: {type(error).__name__}: {error}") from None
    raise ConfigError(
        f"{path}: has no figures per request. Known files are from vllm bench serve ({_DETAILS}), guidellm "
        "(benchmarks.json) and aiperf (profile_export.jsonl)"
    )


def _parsed(text: str) -> Any:
    """Return a JSON value, or the list of the values on the lines of ``text``. Raises: ValueError."""
    try:
        return json_text.loads_figures(text)
    except json.JSONDecodeError:
        return [json_text.loads_figures(line) for line in lines_of(text) if line.strip()]


def _vllm(content: Mapping[str, Any]) -> Iterator[LoadRun]:
    columns = [content[name] for name in ("ttfts", "itls", "output_lens", "errors")]
    ends = content.get("latencies")
    found = []
    for ttft_s, itl_s, tokens, error, end_s in zip(*columns, ends or [None] * len(columns[0]), strict=True):
        if error or not tokens:
            found.append(MeasuredRequest(False))
            continue
        e2e_s = end_s if ends else _sum([ttft_s, *itl_s])
        tpot_s = 0.0 if tokens == 1 else None
        if tokens > 1 and e2e_s is not None and ttft_s is not None:
            tpot_s = (e2e_s - ttft_s) / (tokens - 1)
        found.append(MeasuredRequest(True, ttft_s, tpot_s, e2e_s))
    yield LoadRun("vllm bench serve", found, content.get("duration"))


def _sum(parts_s: list[float | None]) -> float | None:
    """Return the sum, in seconds, or None where a part is not known."""
    known_s = [part_s for part_s in parts_s if part_s is not None]
    return sum(known_s) if len(known_s) == len(parts_s) else None


def _guidellm(content: Mapping[str, Any]) -> Iterator[LoadRun]:
    for benchmark in content["benchmarks"]:
        requests = benchmark["requests"]
        found = []
        for one in requests["successful"] or ():
            tokens, tpot_ms = one.get("output_tokens"), one.get("inter_token_latency_ms")
            tpot_s = 0.0 if tokens == 1 else _seconds(tpot_ms)
            ttft_s = _seconds(one.get("time_to_first_token_ms"))
            found.append(MeasuredRequest(True, ttft_s, tpot_s, one.get("request_latency")))
        failed = len(requests.get("errored") or ()) + len(requests.get("incomplete") or ())
        yield LoadRun("guidellm", found + [MeasuredRequest(False)] * failed, benchmark.get("duration"))


def _aiperf(content: list[Mapping[str, Any]]) -> Iterator[LoadRun]:
    found = []
    for record in content:
        metrics = record["metrics"]
        if record.get("error") or "request_latency" not in metrics:
            found.append(MeasuredRequest(False))
            continue
        tokens = metrics.get("output_sequence_length", {}).get("value")
        tpot_s = 0.0 if tokens == 1 else _of_unit(metrics.get("inter_token_latency"))
        ttft_s, e2e_s = _of_unit(metrics.get("time_to_first_token")), _of_unit(metrics["request_latency"])
        found.append(MeasuredRequest(True, ttft_s, tpot_s, e2e_s))
    yield LoadRun("aiperf", found, None)


def _check_figures(*values: object) -> None:
    """Raise TypeError for a value that is neither a number nor None."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise TypeError(f"{shown(value)} is not a number")


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3


_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def _of_unit(metric: Mapping[str, Any] | None) -> float | None:
    """Return the value in seconds, or None where it is not known. Raises: KeyError for an unknown unit."""
    if metric is None:
        return None
    value, seconds = metric["value"], _UNITS[metric["unit"]]
    return None if value is None else value * seconds


_READERS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], Iterator[LoadRun]]], ...]] = (
    (lambda content: isinstance(content, dict) and "ttfts" in content, _vllm),
    (lambda content: isinstance(content, dict) and "benchmarks" in content, _guidellm),
    (lambda content: isinstance(content, list) and bool(content) and "metrics" in content[0], _aiperf),
)
"""The rules for how a file is recognised, and the function that reads it."""
