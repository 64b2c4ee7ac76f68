"""Readers of trace files: a file in, a :class:`~sloserve.sim.workloads.trace.Trace` out, or one clear message.

    format     shown by                                   columns
    csv        a header with prompt_tokens                arrival_s, prompt_tokens, output_tokens[, task][, hash_ids]
                                                          [, tenant]
    azure      a header with TIMESTAMP                    TIMESTAMP, ContextTokens, GeneratedTokens
    mooncake   JSON lines                                 timestamp (ms), input_length, output_length[, hash_ids]
    bailian    JSON lines with chat_id                    timestamp (s), input_length, output_length[, hash_ids]
    burstgpt   a header with Request tokens               Timestamp, Request tokens, Response tokens[, Log Type]
    sharegpt   a JSON list, or lines with conversations   conversations: value of the first turn, of the second
    custom     JSON lines with a prompt                   prompt, output_tokens

``mooncake`` is Dynamo's and AIPerf's format too, with more keys (:mod:`~sloserve.sim.workloads.readers.timed_json`).
The last two formats hold texts, of which the tokens are counted, and no arrivals: arrivals are then drawn, Poisson, one
a second. Files may be gzipped, whatever their name. Rows need not be sorted by arrival. A row with a prompt or an
output of 0 tokens is left out, in every format, with one warning that counts such rows. Every other fault is a
ConfigError that names file, line, column, value and what is allowed.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import reading
from sloserve.core.nearest import did_you_mean
from sloserve.sim.workloads.readers import azure, project_csv, timed_json, vllm_datasets
from sloserve.sim.workloads.readers.found import find_trace
from sloserve.sim.workloads.readers.prefix_blocks import block_tokens, small_ids
from sloserve.sim.workloads.readers.source import RawRows, open_trace, stem
from sloserve.sim.workloads.readers.token_counter import TokenCounter, estimated
from sloserve.sim.workloads.trace import Trace, make_trace


class TraceFormat(StrEnum):
    """The formats that can be read."""

    CSV = "csv"
    AZURE = "azure"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    BURSTGPT = "burstgpt"
    SHAREGPT = "sharegpt"
    CUSTOM = "custom"


_READERS: dict[TraceFormat, Callable[[Path, TokenCounter, bool], RawRows]] = {
    TraceFormat.CSV: lambda path, _, __: project_csv.read(path),
    TraceFormat.AZURE: lambda path, _, __: azure.read(path),
    TraceFormat.MOONCAKE: partial(timed_json.read, timed_json.MOONCAKE),
    TraceFormat.BAILIAN: partial(timed_json.read, timed_json.BAILIAN),
    TraceFormat.BURSTGPT: lambda path, _, __: vllm_datasets.read_burstgpt(path),
    TraceFormat.SHAREGPT: lambda path, count, _: vllm_datasets.read_sharegpt(path, count),
    TraceFormat.CUSTOM: lambda path, count, _: vllm_datasets.read_custom(path, count),
}
_ARRIVALS_SEED = 0


def read_trace(
    path: str | Path,
    trace_format: str | None = None,
    *,
    count: TokenCounter = estimated,
    draw_arrivals: bool = False,
    prefix_block_tokens: int | None = None,
) -> Trace:
    """Return the trace in the file at ``path``.

    Where there is no such file, one of that name in the folder of traces is read, see :func:`find_trace`.

    Args:
        path: Path of the file, or its name in the folder of traces.
        trace_format: One of :class:`TraceFormat`; ``None`` for the format that the first line shows.
        count: Function that counts the tokens of texts.
        draw_arrivals: Whether to draw arrivals for a file without them, at one request a second, the same in each run.
        prefix_block_tokens: Tokens that one of ``hash_ids`` stands for; ``None`` to infer them from the format and the
            lengths.

    Raises: ConfigError for a file that cannot be read, an unknown or ambiguous format, a malformed row, a trace without
    rows or arrivals.
    """
    path = find_trace(path)
    if prefix_block_tokens is not None and prefix_block_tokens < 1:
        raise ConfigError(f"--trace-block-tokens: {prefix_block_tokens} is not a whole number of tokens from 1")
    with reading("trace", path):
        found = _format_of(path, trace_format)
        rows = _READERS[found](path, count, trace_format is not None).served(path)
    block = block_tokens(path, rows, prefix_block_tokens)
    arrival_s, unit = rows.arrival_s, f"times in {rows.unit}"
    if arrival_s is None and draw_arrivals:
        arrival_s = np.cumsum(np.random.default_rng(_ARRIVALS_SEED).exponential(size=len(rows.task)))
        unit = "arrivals drawn"
    if arrival_s is None:
        raise ConfigError(f"{path}: states no arrivals (column 'arrival_s'); give --rps, at which they are then drawn")
    ids = None if rows.prefix_ids is None else small_ids(rows.prefix_ids)
    blocks = "" if ids is None else f", prefix blocks of {block} tokens"
    lengths = rows.prompt_tokens, rows.output_tokens
    trace = make_trace(stem(path), str(path), arrival_s, *lengths, rows.task, ids, rows.tenant)
    return replace(trace, block_tokens=block, reading=f"format {found}, {unit}{blocks}")


def _format_of(path: Path, trace_format: str | None) -> TraceFormat:
    if trace_format is not None:
        if trace_format not in list(TraceFormat):
            hint = did_you_mean(trace_format, TraceFormat)
            raise ConfigError(f"unknown trace format {trace_format!r}; known: {', '.join(TraceFormat)}{hint}")
        return TraceFormat(trace_format)
    with open_trace(path) as lines:
        first = next((line for line in lines if line.strip()), "").strip()
    if not first:
        raise ConfigError(f"{path}: is empty; a trace has at least a header and one row")
    if first.startswith("["):
        return TraceFormat.SHAREGPT
    if first.startswith("{"):
        return _format_of_row(first)
    header = {cell.strip().strip('"') for cell in first.split(",")}
    if vllm_datasets.REQUEST_TOKENS in header:
        return TraceFormat.BURSTGPT
    if azure.TIMESTAMP in header:
        return TraceFormat.AZURE
    if header & {"prompt_tokens", "output_tokens", "arrival_s"}:
        return TraceFormat.CSV
    raise ConfigError(
        f"{path}:1: {first[:80]!r} is no known trace header; known: a CSV header with "
        f"{', '.join(project_csv.REQUIRED)}; one with {', '.join(azure.REQUIRED)}; JSON lines with "
        f"{', '.join((timed_json.TIMESTAMP[0], timed_json.INPUT[0], timed_json.OUTPUT[0]))}; the formats "
        "that docs/simulate.md lists"
    )


def _format_of_row(first: str) -> TraceFormat:
    """Return the format of a file of JSON lines by the keys of its first row."""
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        row = {}  # the reader says what is wrong with it
    keys = set(row)
    if "conversations" in keys:
        return TraceFormat.SHAREGPT
    if vllm_datasets.PROMPT in keys:
        return TraceFormat.CUSTOM
    return TraceFormat.BAILIAN if keys & timed_json.BAILIAN_KEYS else TraceFormat.MOONCAKE
