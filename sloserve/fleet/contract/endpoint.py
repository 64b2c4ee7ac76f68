"""The endpoint of an agent: the only way to its engines, and what both sides of it guarantee.

The endpoint speaks HTTP on a unix socket, which only the agent's user may open, or on TCP between machines. On TCP each
request needs the fleet's key as ``Authorization: Bearer KEY``; without it the response is 401 with
``x-sloserve-refused: failed``. If the fleet has certificates, TCP means TLS, and the endpoint's address ends with
``#HOST``, the host name that its certificate must have.

- ``GET /state``: the agent's report, :class:`~sloserve.fleet.contract.reports.AgentReport` as JSON, without the swaps
  that it has measured: gateways ask many times a second, and planners find them in the store. It names the prompts and
  the tasks of the last seconds, which the store does not get. With ``?known=VERSION&wait_s=SECONDS`` the response comes
  once the report differs from the version that is named, or after these seconds: with status 204 and no body if it is
  the same. ``x-sloserve-version`` is the version of the report, and ``x-sloserve-waited-s`` the seconds for which the
  request waited. An agent that does not send these headers is an older one, which answers at once.
- ``POST /instances/NAME/...`` (``NAME`` percent-encoded, one segment): the rest of the path is a route of vLLM's
  server, and the engine's response is passed on as it arrives. ``x-sloserve-model`` names the model that is meant,
  ``x-request-id`` goes through all hops. ``x-sloserve-prefix`` names beginnings of the prompt for reports, see
  :func:`stated_prefixes`, and ``x-sloserve-task`` a task, see :mod:`~sloserve.fleet.contract.reported_tasks`; no
  engine sees either.
- A refusal has status 503 and ``x-sloserve-refused`` with one of the values of :class:`Refusal`: nothing of a response
  has been passed on, so the request may be sent elsewhere, or here later. A response begins with its first byte.
- If an engine breaks off before its first byte, the response is 502 with ``x-sloserve-refused: died``; after the first
  byte the connection ends without the end of its body.
"""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sloserve.fleet.contract.reports import InstanceReport

MODEL_HEADER: Final = "x-sloserve-model"
REFUSED_HEADER: Final = "x-sloserve-refused"
PREFIX_HEADER: Final = "x-sloserve-prefix"
VERSION_HEADER: Final = "x-sloserve-version"
WAITED_HEADER: Final = "x-sloserve-waited-s"
KNOWN: Final = "known"
WAIT_S: Final = "wait_s"
"""Parameters of ``GET /state``: the version that a gateway has, and the seconds for which it waits for another."""
_MOST_PREFIXES: Final = 4
"""Most beginnings that are read of one request."""
_PREFIX: Final = re.compile(r"([0-9a-f]{2,64})=([0-9]{1,9})")


def keys_in(text: str | None) -> tuple[str, ...]:
    """Return the keys in ``KEY[,KEY...]``: gateways show the first, and agents accept each, so that a key can change.

    Args:
        text: The keys; ``None`` for none.
    """
    return tuple(key for part in (text or "").split(",") if (key := part.strip()))


def stated_prefixes(prompt: Mapping[str, int]) -> str:
    """Return the value of ``x-sloserve-prefix``: each digest in hexadecimal digits and its tokens, ``9f3c=1200,...``.

    Args:
        prompt: Tokens of beginnings of the prompt, by digest.
    """
    return ",".join(f"{digest}={tokens}" for digest, tokens in prompt.items())


def read_prefixes(text: str) -> dict[str, int]:
    """Return what :func:`stated_prefixes` was given; what has another form is left out."""
    found = (_PREFIX.fullmatch(part) for part in text.split(",", _MOST_PREFIXES)[:_MOST_PREFIXES])
    return {match[1]: int(match[2]) for match in found if match is not None}


class Refusal(StrEnum):
    """Reasons for which an instance does not take a request. In each case another instance may take it."""

    SWITCHING = "switching"
    """A transition is under way, or the engine had the request and its model leaves before the first byte."""
    OTHER_MODEL = "other-model"
    FULL = "full"
    FAILED = "failed"
    """The engine is being replaced."""
    DIED = "died"
    """The engine died with the request, which may have killed it."""


class Refused(Exception):
    """An instance does not take a request."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class InstanceResponse:
    """Response of an engine.

    Args:
        status: HTTP status of the response.
        headers: Headers of the response.
        body: Parts of the body as they arrive; closing it aborts the request in the engine. It raises ConnectionError
            if the engine breaks off, and Refused if the model leaves before the first byte.
    """

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]

    async def aclose(self) -> None:
        """Close the body, whether or not it was read."""
        close = getattr(self.body, "aclose", None)
        if close is not None:
            await close()


@dataclass(frozen=True, slots=True)
class LineSize:
    """What is known of a line of a batch as it is sent, so that its body need not be parsed for it.

    Args:
        prompt_tokens: Estimated tokens of its prompt.
        max_tokens: Limit of its output tokens; ``None`` for no limit, or if it asks for several outputs.
        streams: Whether the engine streams its output, and another engine can continue it.
    """

    prompt_tokens: float
    max_tokens: int | None
    streams: bool


class RequestEndpoint(Protocol):
    """One instance, as servers use it to send requests to its engine."""

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        model: str,
        line: LineSize | None = None,
    ) -> InstanceResponse:
        """Pass a request to the engine.

        Args:
            method: HTTP method of the request.
            path: Route of vLLM's server.
            headers: Headers that the engine gets.
            body: Body that the engine gets.
            model: Model that must be active.
            line: Size of a line of a batch from the store, which may be aborted when the model leaves; ``None`` for a
                client's request.

        Raises: Refused if the engine has not seen the request; with ``DIED`` it may have seen it.
        """
        ...


class InstanceEndpoint(RequestEndpoint, Protocol):
    """One instance, as code in the agent's process uses it to send requests to its engine and to choose its model."""

    @property
    def name(self) -> str: ...

    def report(self) -> InstanceReport: ...

    async def switch(self, model: str) -> bool:
        """Switch from the active model to ``model`` (drain, leave, come, check), and return when it serves.

        Returns: ``False`` if the model did not come, or another transition is under way.
        """
        ...

    async def keep_warm(self, models: tuple[str, ...]) -> None:
        """Keep these models in host memory besides the active one; others leave it."""
        ...


class DurableWork(Protocol):
    """Pulls durable requests for an agent's instances. The agent calls it, in its event loop."""

    async def leave(self, instance: str, limit_s: float) -> None:
        """Stop pulling, since the model leaves; within ``limit_s`` seconds finish what runs or give it back."""
        ...

    def serves(self, instance: str) -> None:
        """Note that the instance now serves its active model."""
        ...

    def ended(self, instance: str) -> None:
        """Note that a client's request has left the engine: there may be room for lines."""
        ...

    def died(self, instance: str) -> None:
        """Note that the engine died with everything it had."""
        ...
