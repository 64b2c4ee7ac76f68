"""The requests that one instance has, as far as a door sees them: how many, how long they will take, and their end."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from sloserve.fleet.agent.engine_client import EngineAnswer
from sloserve.fleet.contract.door import Refusal
from sloserve.fleet.sizes import BYTES_PER_TOKEN, output_limit, whole
from sloserve.fleet.streamed import Streamed, TokensAnEvent
from sloserve.scheduler.qlm.contract import RunningSums

_USUAL_TOKENS: Final = 200.0
"""Of a reply, before any has ended."""
_LEARNING: Final = 0.05


class _Stated(msgspec.Struct):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    stream: Any = False
    n: Any = 1


_DECODER: Final = msgspec.json.Decoder(_Stated)


@dataclass(eq=False, slots=True)
class Flight:
    """One request. max_tokens: of its reply; ``None`` for no limit, or where it asks for several. begun_s: monotonic.
    answer: once it has begun.
    """

    model: str
    durable: bool
    prompt_tokens: float
    max_tokens: int | None
    streams: bool
    begun_s: float
    answer: EngineAnswer | None = None
    cancel: Callable[[], object] = field(default=lambda: None)
    """Before its answer has begun."""
    aborted: Refusal | None = None
    """What it is answered with, if nothing of its answer has come."""

    @property
    def parts(self) -> int:
        """Of its answer so far."""
        return 0 if self.answer is None else self.answer.parts

    @property
    def streamed(self) -> Streamed:
        """What has come of its answer."""
        return Streamed() if self.answer is None else self.answer.streamed

    def abort(self, refusal: Refusal = Refusal.DIED) -> None:
        """Ends it in the engine."""
        self.aborted = self.aborted or refusal
        if self.answer is None:
            self.cancel()
        else:
            self.answer.close(refusal)


def flight_of(model: str, durable: bool, body: bytes, now_s: float) -> Flight:
    """Of a request with this body; one that cannot be read is the engine's to refuse."""
    try:
        stated = _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError):
        stated = _Stated()
    limit = output_limit(stated.max_tokens, stated.max_completion_tokens) if whole(stated.n) in (None, 1) else None
    return Flight(model, durable, len(body) / BYTES_PER_TOKEN, limit, stated.stream is True, now_s)


class Flights:
    """All of one engine. Learns how long replies are, and how fast they come. an_event: tokens that an event of its
    streams brings, by its flags.
    """

    def __init__(self, an_event: int = 1) -> None:
        self._flights: set[Flight] = set()
        self._an_event = TokensAnEvent(an_event)
        self._broken = 0
        self._tokens, self._s_per_token = _USUAL_TOKENS, 0.02
        self._fewer = asyncio.Event()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def streams(self) -> int:
        """Those of clients; those that broke off count until it is known what became of their engine."""
        return sum(not flight.durable for flight in self._flights) + self._broken

    def begin(self, flight: Flight) -> None:
        self._flights.add(flight)

    def ended(self, flight: Flight, now_s: float, *, broken: bool) -> None:
        self._flights.discard(flight)
        self._broken += broken and not flight.durable
        if flight.streams and flight.parts > 1:
            tokens = max(self._an_event.ended(flight.streamed, flight.max_tokens), 1)
            self._tokens += _LEARNING * (tokens - self._tokens)
            self._s_per_token += _LEARNING * ((now_s - flight.begun_s) / tokens - self._s_per_token)
        self._fewer.set()

    def settle(self) -> None:
        """What became of the engine of those that broke off is known."""
        self._broken = 0

    def abort(self, *, durable_only: bool = False) -> None:
        """Ends all in the engine."""
        for flight in list(self._flights):
            if flight.durable or not durable_only:
                flight.abort()

    async def send_back(self, limit_s: float) -> None:
        """Those of which no client has had a byte are to be served elsewhere, or later."""
        back = {flight for flight in self._flights if not flight.durable and not flight.parts}
        for flight in back:
            flight.abort(Refusal.SWITCHING)
        await self._ended(limit_s, back)

    async def empty(self, limit_s: float) -> bool:
        """Whether all have ended within ``limit_s`` seconds."""
        return await self._ended(limit_s, self._flights)

    async def _ended(self, limit_s: float, some: Collection[Flight]) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while not self._flights.isdisjoint(some):
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            return False
        return True

    def sums(self) -> RunningSums:
        """What they are and may still take."""
        left = [self._left(flight) for flight in self._flights]
        begun = [flight for flight in self._flights if flight.parts]
        return RunningSums(
            requests=len(self._flights),
            prefill_tokens=sum(f.prompt_tokens for f in self._flights if not f.parts),
            context_tokens=sum(f.prompt_tokens + self._come(f) for f in begun),
            output_tokens=sum(left),
            output_tokens2=sum(2.0 * tokens * tokens for tokens in left),  # as of an exponential distribution
            longest_output_tokens=max(left, default=0.0),
        )

    @property
    def drain_s(self) -> float:
        """Until all are expected to have ended that are given time to: not durable ones with which another engine can
        go on, which are aborted sooner.
        """
        waited_for = (f for f in self._flights if not (f.durable and f.streams))
        return max(map(self._left, waited_for), default=0.0) * self._s_per_token

    def _left(self, flight: Flight) -> float:
        """Tokens that it is expected to have left: a reply longer than usual is expected to double."""
        come = self._come(flight)
        expected = max(self._tokens - come, come if come > self._tokens else 1.0)
        most = float("inf") if flight.max_tokens is None else max(flight.max_tokens - come, 1)
        return min(expected, most)

    def _come(self, flight: Flight) -> int:
        """Tokens of its reply, about."""
        return self._an_event.tokens(flight.streamed.events)
