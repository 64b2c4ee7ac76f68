"""The reader of traces as JSON lines with one object a request, in the formats of Mooncake and Qwen-Bailian.

The format of Mooncake is the format of Dynamo and AIPerf too.

    key             alias           meaning
    timestamp       created_time    arrival: milliseconds in Mooncake's format, seconds in Bailian's
    delay           delay_ms        milliseconds after the previous request of the same session_id, without a timestamp
    input_length    input_tokens    tokens of the prompt; or a text to count, under a key of TEXT_KEYS
    output_length   output_tokens   tokens of the output
    hash_ids                        ids of the prompt's blocks: equal ids are equal blocks, so prompts share a prefix

Keys beyond these are ignored. The task is Bailian's ``type``; in the other format it is the file's name without
``_trace``, as ``conversation`` for ``conversation_trace.jsonl``.
"""

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.readers.source import (
    MAX_ARRIVAL_S,
    MAX_TOKENS,
    TOKENS_ALLOWED,
    RawRows,
    bad_cell,
    open_trace,
    stem,
)
from sloserve.sim.workloads.readers.token_counter import TokenCounter

logger = logging.getLogger(__name__)

TIMESTAMP, DELAY = ("timestamp", "created_time"), ("delay", "delay_ms")
INPUT, OUTPUT = ("input_length", "input_tokens"), ("output_length", "output_tokens")
TEXT_KEYS = ("text_input", "text_inputs", "input_text", "text", "texts", "messages")
"""The keys under which AIPerf's files have a prompt as text: a string, a list of strings, or chat messages."""

BAILIAN_KEYS = frozenset({"chat_id", "parent_chat_id"})
_MILLISECOND_KEYS = frozenset({*DELAY, *TEXT_KEYS, "session_id"})
"""The keys that only formats with milliseconds have."""

ROWS_OF_A_RATE: Final = 100
"""The number of rows from which on their rate says something of their unit."""
MAX_RATE_PER_S: Final = 1000.0
"""The rate in requests per second above which timestamps that are taken for milliseconds are more likely to be seconds.

Public traces have 1 to 30 requests per second.
"""

_MAX_TEXT_DEPTH: Final = 5
"""The levels of lists and objects in which the text of a prompt is looked for; chat messages need four."""


@dataclass(frozen=True, slots=True)
class TimedFormat:
    """A dialect of these files; ``per_second`` is the number of units of its timestamps in one second."""

    name: str
    unit: str
    per_second: float
    block_tokens: int


MOONCAKE = TimedFormat("mooncake", "milliseconds", 1000.0, 512)
BAILIAN = TimedFormat("bailian", "seconds", 1.0, 16)


def read(dialect: TimedFormat, path: Path, count: TokenCounter, is_given: bool) -> RawRows:
    """Return the rows of the file.

    Args:
        dialect: The format of the file.
        path: Path of the file.
        count: Function that counts the tokens of texts.
        is_given: Whether the user named the format; if not, timestamps in an ambiguous unit are refused.

    Raises: ConfigError for a malformed file or an ambiguous one.
    """
    found = _Rows(path, dialect)
    for line, row in json_rows(path, (TIMESTAMP[0], INPUT[0], OUTPUT[0])):
        found.add(line, row)
    if dialect is MOONCAKE and not is_given:
        found.require_milliseconds()
    return found.raw_rows(count)


def json_rows(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the object of each line that is not blank; ``keys`` are what it should have.

    Raises: ConfigError for a line that is not a JSON object.
    """
    with open_trace(path) as source:
        for line, text in enumerate(source, start=1):
            if not text.strip():
                continue
            try:
                row = json.loads(text.rstrip())
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path}:{line}:{error.colno}: is not JSON: {error.msg}") from None
            except (RecursionError, ValueError) as error:
                raise ConfigError(f"{path}:{line}: is not a JSON object that can be read: {error}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}:{line}: is not a JSON object with {', '.join(keys)}")
            yield line, row


def missing(path: Path, line: int, key: str, row: dict[str, Any]) -> ConfigError:
    """Return the error for a row without ``key``."""
    shown = ", ".join(list(row)[:20]) or "nothing"
    return ConfigError(f"{path}:{line}: column {key!r} is missing; the row has: {shown}")


def whole_tokens(path: Path, line: int, key: str, value: Any) -> int:
    """Return the token count ``value``. Raises: ConfigError for a value that is no token count."""
    if not (_is_number(value) and 0 <= value <= MAX_TOKENS and value == math.floor(value)):
        raise bad_cell(path, line, key, value, TOKENS_ALLOWED)
    return int(value)


@dataclass
class _Rows:
    """The columns of a file, collected row by row."""

    path: Path
    dialect: TimedFormat
    arrivals_s: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    prefix_ids: list[tuple[int, ...]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    """The prompts that are given as text, by row."""
    last_of_session: dict[Any, float] = field(default_factory=dict)
    delayed: int = 0
    has_fractions: bool = False
    has_millisecond_keys: bool = False

    def add(self, line: int, row: dict[str, Any]) -> None:
        self.arrivals_s.append(self._arrival_s(line, row))
        self.prompts.append(self._prompt(line, row))
        key, value = _first_of(row, OUTPUT)
        if key not in row:
            raise missing(self.path, line, key, row)
        self.outputs.append(whole_tokens(self.path, line, key, value))
        self.prefix_ids.append(_ids(self.path, line, row.get("hash_ids")))
        kind = row.get("type") if self.dialect is BAILIAN else None
        self.tasks.append(kind if isinstance(kind, str) else stem(self.path).removesuffix("_trace"))
        self.lines.append(line)
        self.has_millisecond_keys |= not _MILLISECOND_KEYS.isdisjoint(row)

    def _arrival_s(self, line: int, row: dict[str, Any]) -> float:
        session = row.get("session_id")
        if not isinstance(session, str | int | None):
            raise bad_cell(self.path, line, "session_id", session, "text or a whole number")
        key, value = _first_of(row, TIMESTAMP)
        if value is not None:
            arrival_s = self._seconds(line, key, value)
            self.has_fractions |= value != math.floor(value)
        else:
            key, value = _first_of(row, DELAY)
            if value is None or session not in self.last_of_session:
                raise missing(self.path, line, TIMESTAMP[0], row)
            arrival_s = self.last_of_session[session] + self._seconds(line, key, value)
            self.delayed += 1
        if session is not None:
            self.last_of_session[session] = arrival_s
        return arrival_s

    def _seconds(self, line: int, key: str, value: Any) -> float:
        most = MAX_ARRIVAL_S * self.dialect.per_second
        if not (_is_number(value) and 0 <= value <= most):
            raise bad_cell(self.path, line, key, value, f"a number of {self.dialect.unit} from 0 to {most:.0f}")
        return float(value) / self.dialect.per_second

    def _prompt(self, line: int, row: dict[str, Any]) -> int:
        key, value = _first_of(row, INPUT)
        if value is not None:
            return whole_tokens(self.path, line, key, value)
        key, value = _first_of(row, TEXT_KEYS)
        if value is None:
            raise missing(self.path, line, INPUT[0], row)
        texts = _texts(value)
        if texts is None:
            raise bad_cell(self.path, line, key, value, "text, a list of texts, or chat messages with text")
        self.texts[len(self.prompts)] = "\n".join(texts)
        return 0

    def require_milliseconds(self) -> None:
        """Raise ConfigError where timestamps do not look like milliseconds and the file does not say that they are.

        They do not look like milliseconds if they have fractions, or give a rate that no server has.
        """
        if self.has_millisecond_keys or not self.arrivals_s:
            return
        remedy = (
            "give --trace-format mooncake if the timestamps are milliseconds, --trace-format bailian if they are "
            "seconds"
        )
        if self.has_fractions:
            raise ConfigError(
                f"{self.path}: the unit of 'timestamp' is ambiguous: the values have fractions and the rows have no "
                f"key that shows the format; {remedy}"
            )
        if len(self.arrivals_s) < ROWS_OF_A_RATE:
            return  # the start of a burst can have any rate
        span_s = max(self.arrivals_s) - min(self.arrivals_s)
        if span_s > 0.0 and (len(self.arrivals_s) - 1) / span_s > MAX_RATE_PER_S:
            rate = (len(self.arrivals_s) - 1) / span_s
            raise ConfigError(
                f"{self.path}: the unit of 'timestamp' is ambiguous: in milliseconds, {len(self.arrivals_s)} requests "
                f"would arrive at {rate:.0f} per second (more than {MAX_RATE_PER_S:.0f}); {remedy}"
            )

    def raw_rows(self, count: TokenCounter) -> RawRows:
        for row, tokens in zip(self.texts, count(list(self.texts.values())) if self.texts else [], strict=True):
            self.prompts[row] = tokens
        if self.delayed:
            logger.warning(
                "%s: %d requests state a delay after the previous response of their session; they arrive this long "
                "after the previous request, since a trace does not say how long its response takes",
                self.path,
                self.delayed,
            )
        return RawRows(
            arrival_s=np.array(self.arrivals_s, np.float64),
            prompt_tokens=np.array(self.prompts, np.int64),
            output_tokens=np.array(self.outputs, np.int64),
            task=self.tasks,
            prefix_ids=self.prefix_ids if any(self.prefix_ids) else None,
            lines=self.lines,
            unit=self.dialect.unit,
            block_tokens=self.dialect.block_tokens,
        )


def _first_of(row: dict[str, Any], keys: tuple[str, ...]) -> tuple[str, Any]:
    """Return the first of ``keys`` that has a value in the row, and that value; null counts as no value."""
    return next(((key, row[key]) for key in keys if row.get(key) is not None), (keys[0], None))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ids(path: Path, line: int, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not (isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)):
        raise bad_cell(path, line, "hash_ids", value, "a list of whole numbers, each at least 0")
    return tuple(value)


def _texts(value: Any, depth: int = 0) -> list[str] | None:
    """Return the texts in a prompt of AIPerf's schemas, or None where a part is no text."""
    if isinstance(value, str):
        return [value]
    if depth == _MAX_TEXT_DEPTH:
        return None
    if isinstance(value, dict):
        return _texts(_first_of(value, ("content", "contents", "text"))[1], depth + 1)
    if not isinstance(value, list):
        return None
    parts = [_texts(part, depth + 1) for part in value]
    return None if None in parts else [text for part in parts for text in part or ()]
