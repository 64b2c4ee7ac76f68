"""Readers of trace files: a file in, a :class:`~sloserve.workloads.trace.Trace` out, or one clear message.

    format     told by                                   columns
    csv        a header with prompt_tokens               arrival_s, prompt_tokens, output_tokens[, task][, hash_ids]
    azure      a header with TIMESTAMP                   TIMESTAMP, ContextTokens, GeneratedTokens
    mooncake   a first line that is a JSON object        timestamp (ms), input_length, output_length[, hash_ids]
    burstgpt   a header with Request tokens              Timestamp, Request tokens, Response tokens[, Log Type]
    sharegpt   a JSON list                               conversations: value of the first turn, of the second
    custom     a first line, an object with a prompt     prompt, output_tokens

The last two hold texts, whose tokens are counted, and no arrivals: these are then drawn, Poisson, one a second.
Files may be gzipped, whatever their name. Rows need not be sorted by arrival. Every fault is a ConfigError that names
file, line, column, value and what is allowed; nothing is skipped silently.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.workloads.readers import azure, mooncake, project_csv, vllm_datasets
from sloserve.workloads.readers.found import find_trace
from sloserve.workloads.readers.source import RawRows, open_trace
from sloserve.workloads.readers.token_counter import TokenCounter, estimated
from sloserve.workloads.trace import Trace, make_trace

_PROMPT = re.compile(r'"prompt"\s*:')


class TraceFormat(StrEnum):
    """The formats that can be read."""

    CSV = "csv"
    AZURE = "azure"
    MOONCAKE = "mooncake"
    BURSTGPT = "burstgpt"
    SHAREGPT = "sharegpt"
    CUSTOM = "custom"


_READERS: dict[TraceFormat, Callable[[Path, TokenCounter], RawRows]] = {
    TraceFormat.CSV: lambda path, _: project_csv.read(path),
    TraceFormat.AZURE: lambda path, _: azure.read(path),
    TraceFormat.MOONCAKE: lambda path, _: mooncake.read(path),
    TraceFormat.BURSTGPT: lambda path, _: vllm_datasets.read_burstgpt(path),
    TraceFormat.SHAREGPT: vllm_datasets.read_sharegpt,
    TraceFormat.CUSTOM: vllm_datasets.read_custom,
}
_ARRIVALS_SEED = 0


def read_trace(
    path: str | Path,
    trace_format: str | None = None,
    *,
    count: TokenCounter = estimated,
    draw_arrivals: bool = False,
) -> Trace:
    """The trace in the file at ``path``, in ``trace_format`` or, by default, in the format its first line shows.

    Where there is no such file, one of that name in the folder of traces is read, see :func:`find_trace`. count: of
    the tokens of texts. draw_arrivals: at one request a second, the same in each run, for a file without arrivals.

    Raises: ConfigError for a file that cannot be read, an unknown format, a malformed row, a trace without rows or
    arrivals.
    """
    path = find_trace(path)
    rows = _READERS[_format_of(path, trace_format)](path, count)
    arrival_s = rows.arrival_s
    if arrival_s is None and draw_arrivals:
        arrival_s = np.cumsum(np.random.default_rng(_ARRIVALS_SEED).exponential(size=len(rows.task)))
    if arrival_s is None:
        raise ConfigError(f"{path}: states no arrivals (column 'arrival_s'); give --rps, at which they are then drawn")
    return make_trace(
        _stem(path), str(path), arrival_s, rows.prompt_tokens, rows.output_tokens, rows.task, rows.prefix_ids
    )


def _format_of(path: Path, trace_format: str | None) -> TraceFormat:
    if trace_format is not None:
        if trace_format not in list(TraceFormat):
            raise ConfigError(f"unknown trace format {trace_format!r}; known: {', '.join(TraceFormat)}")
        return TraceFormat(trace_format)
    with open_trace(path) as lines:
        first = next((line for line in lines if line.strip()), "")
    header = {cell.strip().strip('"') for cell in first.split(",")}
    if not first:
        raise ConfigError(f"{path}: is empty; a trace has at least a header and one row")
    if first.lstrip().startswith("["):
        return TraceFormat.SHAREGPT
    if first.lstrip().startswith("{"):
        return TraceFormat.CUSTOM if _PROMPT.search(first) else TraceFormat.MOONCAKE
    if vllm_datasets.REQUEST_TOKENS in header:
        return TraceFormat.BURSTGPT
    if azure.TIMESTAMP in header:
        return TraceFormat.AZURE
    if header & {"prompt_tokens", "output_tokens", "arrival_s"}:
        return TraceFormat.CSV
    raise ConfigError(
        f"{path}:1: {first.strip()[:80]!r} is no known trace header; known: a CSV header with "
        f"{', '.join(project_csv.REQUIRED)}; one with {', '.join(azure.REQUIRED)}; JSON lines with "
        f"{', '.join(mooncake.REQUIRED)}; those that docs/simulate.md lists"
    )


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".jsonl").removesuffix(".json")
