"""What a request states of its task: its name, its deadline, the number of its calls, and whether this is the last.

Our own names state it in headers, in the body's ``slo`` and in ``vllm_xargs``, where a header beats the body and
``slo`` beats ``vllm_xargs``. An *alias* is a header or a field of the body in which clients name a session already, and
counts only if the request states no ``task_id``. A value of an alias that cannot be used is ignored: its client does
not know of us.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sloserve.core import numbers
from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import MAX_TARGET_S
from sloserve.core.tasks import MOST_CALLS
from sloserve.wire.headers import FALSE, FIELDS, TRUE, Field, HeaderFields, is_label
from sloserve.wire.xargs import TASK_CALLS, TASK_DEADLINE, TASK_E2E_MS, TASK_ID, TASK_KEYS, TASK_LAST

OWN: Final = "id"
"""Kind of a task that the request names by our own names."""
BODY: Final = "body."
"""Beginning of an alias that is a field of the body; any other alias is the name of a header."""
SESSION: Final = f"{BODY}session_id"
"""Alias of vLLM's own name for a session."""
CHAIN: Final = f"{BODY}previous_response_id"
"""Alias of a chain of responses, each of which has a new id."""
BODY_ALIASES: Final = (
    SESSION,
    f"{BODY}conversation",
    CHAIN,
    f"{BODY}metadata.task_id",
    f"{BODY}prompt_cache_key",
)
"""The fields of a body that may be aliases."""
DEFAULT_ALIASES: Final = (
    "x-dynamo-session-id",
    "x-claude-code-agent-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-opencode-session",
    "x-session-id",
    *BODY_ALIASES[:-1],
)
"""The aliases of a deployment that names no others, the first that a request has counts.

``prompt_cache_key`` is left out: OpenAI's clients give one to all requests that begin alike, of whatever user, so that
requests with the same key are no task. Sources: Dynamo 1.4, lib/llm/src/protocols/agents.rs (its own headers, and the
headers of Claude Code, Codex and OpenCode); vLLM, entrypoints/generate/base/serving.py (``x-session-id`` and
``session_id``); OpenAI's API reference for responses and conversations.
"""
MOST_ALIAS_CHARS: Final = 1024
"""Longest value of an alias that is used; a longer one is no name."""

_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d([.,]\d{1,6})?)?([Zz]|[+-]\d\d:?\d\d)", re.ASCII)
_HEADER_OF: Final = {key: name for name, key in FIELDS.items() if key in TASK_KEYS}
_ENDS: Final = (TASK_E2E_MS, TASK_DEADLINE)
"""The two ways to state a deadline, of which a request uses one."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_S: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""The latest time that is written: zones and rounding bring later ones to a year of five digits, which has no form."""


@dataclass(frozen=True, slots=True)
class StatedTask:
    """The task of a request, as its client states it.

    Args:
        kind: The alias that names it, or :data:`OWN`; tasks of different kinds are different tasks.
        id: The client's name for it.
        e2e_s: Seconds from the task's first call to its deadline; ``None`` if the request does not say.
        deadline_s: The deadline in epoch seconds; ``None`` if the request does not say.
        calls: Number of calls that the client expects the task to make; ``None`` if it does not say.
        last: Whether no further call follows.
    """

    kind: str
    id: str
    e2e_s: float | None = None
    deadline_s: float | None = None
    calls: int | None = None
    last: bool = False

    @property
    def is_alias(self) -> bool:
        """Whether an alias names it: its client may mean something other than a task."""
        return self.kind != OWN

    def keys(self) -> dict[str, Any]:
        """Return the keys of ``vllm_xargs`` that state it; an alias states its own name."""
        found: dict[str, Any] = {} if self.is_alias else {TASK_ID: self.id}
        if self.e2e_s is not None:
            found[TASK_E2E_MS] = self.e2e_s * 1e3
        if self.deadline_s is not None:
            found[TASK_DEADLINE] = iso_text(self.deadline_s)
        if self.calls is not None:
            found[TASK_CALLS] = self.calls
        if self.last:
            found[TASK_LAST] = 1
        return found


def overlaid(lower: Mapping[str, Field], upper: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields of both levels; where both state one, or a deadline in any form, ``upper`` wins."""
    if TASK_E2E_MS in upper or TASK_DEADLINE in upper:
        lower = {key: item for key, item in lower.items() if key not in _ENDS}
    return {**lower, **upper}


def without_task(stated: dict[str, Field]) -> dict[str, Field]:
    """Take the fields of a task out of what a request states, and return them."""
    return {} if stated.keys().isdisjoint(TASK_KEYS) else {key: stated.pop(key) for key in TASK_KEYS if key in stated}


def stated_task(
    fields: Mapping[str, Field], aliases: Sequence[str], headers: HeaderFields, in_body: Mapping[str, str]
) -> StatedTask | None:
    """Return the task that a request states; ``None`` for a request that is no part of a task.

    Args:
        fields: Fields of a task by key of ``vllm_xargs``.
        aliases: The deployment's aliases, the first of which counts that the request has.
        headers: Headers of the request.
        in_body: Values of aliases in its body.

    Raises: InvalidRequest for a value that cannot be read, two deadlines, or a deadline, a number of calls or an end of
    a task that is not named.
    """
    if not fields and not headers.sessions and not in_body:
        return None
    ends = [fields[key] for key in _ENDS if key in fields]
    if len(ends) > 1:
        raise InvalidRequest(ends[1].name, ends[1].value, f"left out where {ends[0].name} is stated; give one of them")
    own = fields.get(TASK_ID)
    if own is not None:
        kind, name = OWN, _label(own)
    else:
        named = next(_named(aliases, headers.sessions | dict(in_body)), None)
        if named is None:
            for item in fields.values():
                raise InvalidRequest(item.name, item.value, f"stated together with {_HEADER_OF[TASK_ID]}")
            return None
        kind, name = named
    e2e, deadline, calls, last = (fields.get(key) for key in (TASK_E2E_MS, TASK_DEADLINE, TASK_CALLS, TASK_LAST))
    return StatedTask(
        kind,
        name,
        None if e2e is None else _e2e_s(e2e),
        None if deadline is None else _deadline_s(deadline),
        None if calls is None else _calls(calls),
        headers.final if last is None else _last(last),
    )


def iso_text(epoch_s: float) -> str:
    """Return a time as a deadline is stated: ISO 8601 in UTC, to the microsecond; at least 1970 and at most 9999."""
    return datetime.fromtimestamp(min(max(epoch_s, 0.0), _LAST_S), UTC).isoformat(timespec="microseconds")


def body_aliases(session_id: Any, conversation: Any, metadata: Any, previous: Any, cache_key: Any) -> dict[str, str]:
    """Return the values of :data:`BODY_ALIASES` in the fields of a body; others than names are left out."""
    if session_id is conversation is metadata is previous is cache_key is None:
        return {}
    of_conversation = conversation.get("id") if isinstance(conversation, dict) else conversation
    of_metadata = metadata.get("task_id") if isinstance(metadata, dict) else None
    values = (session_id, of_conversation, previous, of_metadata, cache_key)
    return {name: value for name, value in zip(BODY_ALIASES, values, strict=True) if isinstance(value, str)}


def header_names(aliases: Iterable[str]) -> frozenset[bytes]:
    """Return the headers among the aliases, as ASGI has their names."""
    return frozenset(name.encode("latin-1", "replace") for name in aliases if not name.startswith(BODY))


def _named(aliases: Sequence[str], found: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for alias in aliases:
        value = found.get(alias, "").strip()
        if 0 < len(value) <= MOST_ALIAS_CHARS:
            yield alias, value


def _label(item: Field) -> str:
    text = item.value.strip() if isinstance(item.value, str) else ""
    if not is_label(text):
        raise _wrong(item, "1 to 128 visible ASCII characters")
    return text


def _e2e_s(item: Field) -> float:
    return _number(item, numbers.LEAST, MAX_TARGET_S * 1e3, "a number of milliseconds above 0 and up to") / 1e3


def _calls(item: Field) -> int:
    number = _number(item, 1.0, MOST_CALLS, "a whole number from 1 to")
    if number != int(number):
        raise _wrong(item, f"a whole number from 1 to {MOST_CALLS}")
    return int(number)


def _number(item: Field, least: float, most: float, allowed: str) -> float:
    value = item.value
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        number = numbers.number(value.strip()) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        raise _wrong(item, f"{allowed} {most:.0f}") from None
    if not least <= number <= most:
        raise _wrong(item, f"{allowed} {most:.0f}")
    return number


def _deadline_s(item: Field) -> float:
    text = item.value.strip() if isinstance(item.value, str) else ""
    try:
        if _ISO.fullmatch(text) is None:
            raise ValueError
        return (datetime.fromisoformat(text.upper().replace(",", ".")) - _EPOCH).total_seconds()
    except (ValueError, OverflowError):
        raise _wrong(item, "a time of ISO 8601 with a zone, for example 2026-01-31T12:00:00Z") from None


def _last(item: Field) -> bool:
    value = item.value
    text = value.strip().lower() if isinstance(value, str) else str(int(value)) if value in (0, 1) else ""
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise _wrong(item, "1 or 0")


def _wrong(item: Field, allowed: str) -> InvalidRequest:
    return InvalidRequest(item.name, item.value, allowed)
