"""Files that ``vllm bench serve --dataset-path`` reads: ShareGPT's JSON, ``custom`` JSON lines, BurstGPT's CSV.

ShareGPT and ``custom`` hold texts and no arrivals. The first message of a ShareGPT conversation is the prompt and the
second the output, as vLLM takes them. vLLM leaves out what is shorter than 4 or longer than 1,024 or 2,048 tokens; here
every request counts. The requests of all models in BurstGPT count, not only the requests to GPT-4.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.readers import table
from sloserve.sim.workloads.readers.source import RawRows, bad_cell, open_trace
from sloserve.sim.workloads.readers.timed_json import json_rows, missing, whole_tokens
from sloserve.sim.workloads.readers.token_counter import TokenCounter

PROMPT, OUTPUT_TOKENS = "prompt", "output_tokens"
REQUEST_TOKENS = "Request tokens"
_RESPONSE_TOKENS = "Response tokens"
_LOG_TYPE = "Log Type"


def read_sharegpt(path: Path, count: TokenCounter) -> RawRows:
    """Return the conversations of the file, a JSON list or one object a line; an absent output has 0 tokens.

    Raises: ConfigError for a malformed file.
    """
    pairs = [_first_turns(where, entry) for where, entry in _conversations(path)]
    sides = ([pair[side] for pair in pairs] for side in (0, 1))
    prompts, replies = (_counted(texts, count) for texts in sides)
    return _lengths("sharegpt", prompts, replies)


def read_custom(path: Path, count: TokenCounter) -> RawRows:
    """Return one row for each line's object with ``prompt`` and ``output_tokens``.

    Raises: ConfigError for a malformed file.
    """
    prompts: list[str] = []
    outputs: list[int] = []
    for line, row in json_rows(path, (PROMPT, OUTPUT_TOKENS)):
        for key in (PROMPT, OUTPUT_TOKENS):
            if key not in row:
                raise missing(path, line, key, row)
        if not isinstance(row[PROMPT], str):
            raise bad_cell(path, line, PROMPT, row[PROMPT], "text")
        prompts.append(row[PROMPT])
        outputs.append(whole_tokens(path, line, OUTPUT_TOKENS, row[OUTPUT_TOKENS]))
    return _lengths("custom", count(prompts), outputs)


def read_burstgpt(path: Path) -> RawRows:
    """Return the requests of the trace; the task is the log that has them, ``conversation`` or ``api``.

    Raises: ConfigError for a malformed file.
    """
    columns = (
        table.seconds("Timestamp"),
        table.tokens(REQUEST_TOKENS),
        table.tokens(_RESPONSE_TOKENS),
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
    return RawRows(
        arrival_s=np.concatenate(arrivals),
        prompt_tokens=np.concatenate(prompts),
        output_tokens=np.concatenate(outputs),
        task=tasks,
    )


def _conversations(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each conversation of the file and where it is."""
    with open_trace(path) as source:
        if next((line for line in source if line.strip()), "").lstrip().startswith("{"):
            yield from ((f"{path}:{line}", row) for line, row in json_rows(path, ("conversations",)))
            return
    with open_trace(path) as source:
        try:
            entries = json.load(source)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: is not a JSON list of conversations")
    yield from ((f"{path}: entry {i}", entry) for i, entry in enumerate(entries))


def _first_turns(where: str, entry: Any) -> tuple[str | None, str | None]:
    """Return the prompt and the output text of a conversation; None for a text that it does not have."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise ConfigError(f"{where} has no list of conversations, as ShareGPT's have")
    values: list[str | None] = []
    for turn in turns[:2]:
        value = turn.get("value") if isinstance(turn, dict) else None
        if not isinstance(value, str):
            raise ConfigError(f"{where}: a turn has no text under 'value'")
        values.append(value)
    prompt, reply, *_ = [*values, None, None]
    return prompt, reply


def _counted(texts: Sequence[str | None], count: TokenCounter) -> list[int]:
    """Return the tokens of each text, 0 where there is none."""
    counts = iter(count([text for text in texts if text is not None]))
    return [0 if text is None else next(counts) for text in texts]


def _lengths(task: str, prompts: list[int], outputs: list[int]) -> RawRows:
    return RawRows(None, np.array(prompts, np.int64), np.array(outputs, np.int64), [task] * len(prompts))
