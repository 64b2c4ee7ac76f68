"""The door of an agent: the only way to its engines, and what its parts promise each other.

It is HTTP on a unix socket, which only the agent's user may open, or on TCP between machines. On TCP each request
needs the fleet's key as ``Authorization: Bearer KEY``; without it the answer is 401 with ``x-sloserve-refused:
failed``. Where the fleet has certificates, TCP means TLS, and the door's address ends with ``#HOST``, the host name
that its certificate must have.

- ``GET /state``: the agent's report, :class:`~sloserve.fleet.contract.reports.AgentReport` as JSON, without the swaps
  that it has measured: gateways ask many times a second, and planners find them in the store.
- ``POST /instances/NAME/...`` (``NAME`` percent-encoded, one segment): the rest of the path is a route of vLLM's
  server, and the engine's answer is passed on as it comes. ``x-sloserve-model`` names the model that is meant,
  ``x-request-id`` goes through all hops.
- A refusal has status 503 and ``x-sloserve-refused`` with one of :class:`Refusal`'s words: nothing of an answer has
  been passed on, so the request may be sent elsewhere, or here later. An answer begins with its first byte.
- An engine that breaks off before its first byte is answered with 502 and ``x-sloserve-refused: died``; after it the
  connection ends without the end of its body.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sloserve.fleet.contract.reports import InstanceReport

MODEL_HEADER: Final = "x-sloserve-model"
REFUSED_HEADER: Final = "x-sloserve-refused"


class Refusal(StrEnum):
    """Why an instance does not take a request. All may be tried elsewhere."""

    SWITCHING = "switching"
    """From the begin of a transition to its end; also what an engine had, whose model leaves before the first byte."""
    OTHER_MODEL = "other-model"
    FULL = "full"
    FAILED = "failed"
    """The engine is being replaced."""
    DIED = "died"
    """The engine died with the request; it may be what killed it."""


class Refused(Exception):
    """An instance does not take a request."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine answers. body: as it comes; closing it aborts the request in the engine. It raises ConnectionError
    where the engine breaks off, and Refused where the model leaves before the first byte.
    """

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]

    async def aclose(self) -> None:
        """Closes the body, whether or not it was read."""
        close = getattr(self.body, "aclose", None)
        if close is not None:
            await close()


@dataclass(frozen=True, slots=True)
class LineSize:
    """What is known of a line of a batch as it is sent, so that its body need not be parsed for it.

    prompt_tokens: estimated. max_tokens: of its reply; ``None`` for no limit, or where it asks for several. streams:
    whether it is streamed from the engine, and another engine can go on with it.
    """

    prompt_tokens: float
    max_tokens: int | None
    streams: bool


class Door(Protocol):
    """One instance, for those who send requests to its engine and choose its model. In the agent's process."""

    @property
    def name(self) -> str: ...

    def report(self) -> InstanceReport: ...

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        model: str,
        line: LineSize | None = None,
    ) -> Answer:
        """Passes a request to the engine.

        Args:
            model: that must be active.
            line: of one that comes from the store, so that it may be aborted when the model leaves.

        Raises: Refused, and the engine has not seen the request; but with ``DIED`` it may have.
        """
        ...

    async def switch(self, model: str) -> bool:
        """Has ``model`` take the active one's place: drain, leave, come, check. Ends when it serves.

        Returns: ``False`` where it did not come, or another transition is under way.
        """
        ...

    async def keep_warm(self, models: tuple[str, ...]) -> None:
        """Models to have in host memory besides the active one; others leave it."""
        ...


class DurableWork(Protocol):
    """Pulls durable requests for an agent's instances. An agent calls it, in its event loop."""

    async def leave(self, instance: str, limit_s: float) -> None:
        """The model leaves: stop pulling now, and within ``limit_s`` seconds finish what runs or give it back."""
        ...

    def serves(self, instance: str) -> None:
        """The instance serves its active model from now on."""
        ...

    def ended(self, instance: str) -> None:
        """A client's request has left the engine: there may be room for lines."""
        ...

    def died(self, instance: str) -> None:
        """The engine died with whatever it had."""
        ...
