"""Files that ``vllm bench serve --dataset-path`` reads: ShareGPT's JSON, ``custom`` JSON lines, BurstGPT's CSV.

ShareGPT and ``custom`` hold texts and no arrivals. Of a ShareGPT conversation the first message is the prompt and the
second the reply, as vLLM takes them. Unlike vLLM, which leaves out what is shorter than 4 or longer than 1,024 or 2,048
tokens, every request counts; and of BurstGPT all models do, not GPT-4 alone.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.workloads.readers import table
from sloserve.workloads.readers.source import MAX_TOKENS, TOKENS_ALLOWED, RawRows, bad_cell, open_trace
from sloserve.workloads.readers.token_counter import TokenCounter

logger = logging.getLogger(__name__)

PROMPT, OUTPUT_TOKENS = "prompt", "output_tokens"
REQUEST_TOKENS = "Request tokens"
_RESPONSE_TOKENS = "Response tokens"
_LOG_TYPE = "Log Type"


def read_sharegpt(path: Path, count: TokenCounter) -> RawRows:
    """The conversations of the file that have a reply. Raises: ConfigError for a malformed file."""
    with open_trace(path) as source:
        try:
            entries = json.load(source)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: is not a JSON list of conversations")
    pairs = [pair for i, entry in enumerate(entries) if (pair := _first_turns(path, i, entry)) is not None]
    if len(pairs) < len(entries):
        logger.warning("%s: %d of %d conversations have no reply", path, len(entries) - len(pairs), len(entries))
    prompts, replies = (count([pair[side] for pair in pairs]) for side in (0, 1))
    return _lengths("sharegpt", prompts, replies)


def read_custom(path: Path, count: TokenCounter) -> RawRows:
    """One object a line with ``prompt`` and ``output_tokens``. Raises: ConfigError for a malformed file."""
    prompts: list[str] = []
    outputs: list[int] = []
    with open_trace(path) as source:
        for line, text in enumerate(source, start=1):
            if not text.strip():
                continue
            row = _row(path, line, text)
            if not isinstance(row[PROMPT], str):
                raise bad_cell(path, line, PROMPT, row[PROMPT], "text")
            tokens = row[OUTPUT_TOKENS]
            if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MAX_TOKENS:
                raise bad_cell(path, line, OUTPUT_TOKENS, tokens, TOKENS_ALLOWED)
            prompts.append(row[PROMPT])
            outputs.append(tokens)
    return _lengths("custom", count(prompts), outputs)


def read_burstgpt(path: Path) -> RawRows:
    """The requests of the trace that got a reply; the task is the log they are of, ``conversation`` or ``api``.

    Raises: ConfigError for a malformed file.
    """
    columns = (
        table.seconds("Timestamp"),
        table.tokens(REQUEST_TOKENS, least=0),
        table.tokens(_RESPONSE_TOKENS, least=0),
        table.text(_LOG_TYPE),
    )
    arrivals, prompts, outputs = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    tasks: list[str] = []
    for lines, chunk in table.read_chunks(path, columns):
        if "Timestamp" not in chunk:
            raise ConfigError(f"{path}:1: column 'Timestamp' is missing")
        arrivals.append(np.asarray(chunk["Timestamp"], np.float64))
        prompts.append(np.asarray(chunk[REQUEST_TOKENS], np.int64))
        outputs.append(np.asarray(chunk[_RESPONSE_TOKENS], np.int64))
        tasks += [name.partition(" ")[0].lower() for name in chunk.get(_LOG_TYPE, ["burstgpt"] * len(lines))]
    prompt, output = np.concatenate(prompts), np.concatenate(outputs)
    served = np.flatnonzero((prompt > 0) & (output > 0))
    if served.size < prompt.size:
        logger.warning("%s: %d of %d requests got no reply", path, prompt.size - served.size, prompt.size)
    return RawRows(
        arrival_s=np.concatenate(arrivals)[served],
        prompt_tokens=prompt[served],
        output_tokens=output[served],
        task=[tasks[i] for i in served],
    )


def _first_turns(path: Path, index: int, entry: Any) -> tuple[str, str] | None:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise ConfigError(f"{path}: entry {index} has no list of conversations, as ShareGPT's have")
    values: list[str] = []
    for turn in turns[:2]:
        value = turn.get("value") if isinstance(turn, dict) else None
        if not isinstance(value, str):
            raise ConfigError(f"{path}: entry {index}: a turn has no text under 'value'")
        values.append(value)
    return (values[0], values[1]) if len(values) == 2 else None


def _row(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}:{line}: is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{path}:{line}: is not a JSON object with {PROMPT}, {OUTPUT_TOKENS}")
    for key in (PROMPT, OUTPUT_TOKENS):
        if key not in row:
            raise ConfigError(f"{path}:{line}: column {key!r} is missing; the row has: {', '.join(row) or 'nothing'}")
    return row


def _lengths(task: str, prompts: list[int], outputs: list[int]) -> RawRows:
    return RawRows(None, np.array(prompts, np.int64), np.array(outputs, np.int64), [task] * len(prompts))
