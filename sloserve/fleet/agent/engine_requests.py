"""The requests that one engine has, as far as its agent sees them: how many, and how long they will take.

An agent can end them, and wait for their end.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sloserve.core.errors import InvalidRequest
from sloserve.fleet.agent.engine_client import EngineClient, EngineStream
from sloserve.fleet.client_routes import AUDIO, CHAT, GENERATING
from sloserve.fleet.contract.endpoint import InstanceResponse, LineSize, Refusal, Refused
from sloserve.fleet.sizes import MEDIA_TOKENS, USUAL_OUTPUT_TOKENS, limit_on, prompt_bytes, whole
from sloserve.fleet.streamed import Streamed, TokensAnEvent
from sloserve.scheduler.virtual_queues.contract import RunningSums
from sloserve.wire.body import BYTES_PER_TOKEN, Body, parse
from sloserve.wire.lenient import flag

_LEARNING: Final = 0.05


class _StatedLimits(Body):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    stream: Any = None
    n: Any = None


class BegunResponse(Protocol):
    """A response that has begun."""

    @property
    def parts(self) -> int:
        """Number of parts of its body that have come until now."""
        ...

    @property
    def streamed(self) -> Streamed:
        """Counts of what has come of it."""
        ...

    def close(self, refusal: Refusal | None = None) -> None:
        """End it in the engine."""
        ...


@dataclass(eq=False, slots=True)
class InFlightRequest:
    """One request.

    Args:
        model: Model that serves it.
        durable: Whether it is a line of a batch.
        prompt_tokens: Estimated tokens of its prompt.
        max_tokens: Limit of its output tokens; ``None`` for no limit, or if it asks for several outputs.
        streams: Whether the engine streams its output.
        begun_s: Monotonic time at which its instance took it, in seconds.
        answer: Response, once it has begun.
        cancel: Called to end the request before its response has begun.
        aborted: Reason to refuse the request with, if it was aborted and nothing of its response has come.
    """

    model: str
    durable: bool
    prompt_tokens: float
    max_tokens: int | None
    streams: bool
    begun_s: float = 0.0
    answer: BegunResponse | None = None
    cancel: Callable[[], object] = field(default=lambda: None)
    """Ends the request before its response has begun."""
    aborted: Refusal | None = None
    """Reason of the refusal, if nothing of the response has come."""

    @property
    def parts(self) -> int:
        """Number of parts of its response that have come until now."""
        return 0 if self.answer is None else self.answer.parts

    @property
    def streamed(self) -> Streamed:
        """Counts of what has come of its response."""
        return Streamed() if self.answer is None else self.answer.streamed

    def abort(self, refusal: Refusal = Refusal.DIED) -> None:
        """End the request in the engine."""
        self.aborted = self.aborted or refusal
        if self.answer is None:
            self.cancel()
        else:
            self.answer.close(refusal)


def stream_of(model: str, body: bytes, route: str = CHAT) -> InFlightRequest:
    """Return a client's request with this body; a body that cannot be read is for the engine to refuse."""
    if route in AUDIO:
        return InFlightRequest(model, False, MEDIA_TOKENS, None, False)
    if route not in GENERATING:
        return InFlightRequest(model, False, len(body) / BYTES_PER_TOKEN, 1, False)
    try:
        stated = parse(body, _StatedLimits)
    except InvalidRequest:
        stated = _StatedLimits()
    limit = limit_on(route, stated.max_tokens, stated.max_completion_tokens, stated.max_output_tokens)
    limit = limit if whole(stated.n) in (None, 1) else None
    size = prompt_bytes(body) / BYTES_PER_TOKEN
    return InFlightRequest(model, False, size, limit, flag(stated.stream) is True)


def line_of(model: str, size: LineSize) -> InFlightRequest:
    """Return a line of a batch."""
    return InFlightRequest(model, True, size.prompt_tokens, size.max_tokens, size.streams)


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """A request that an instance has taken.

    Args:
        client: HTTP client of the engine that serves it.
        ended: Function to call once when it has ended, with whether the engine broke it off.
        pause_s: Seconds between reads of a response for which no client waits.
    """

    client: EngineClient
    ended: Callable[[bool], None]
    pause_s: Callable[[], float] = lambda: 0.0


async def passed_on(
    request: InFlightRequest, send: Coroutine[Any, Any, EngineStream], ended: Callable[[bool], None]
) -> InstanceResponse:
    """Send a request to its engine, and return the response, which the request can end from then on.

    Args:
        request: The request; it may be aborted at any time.
        send: The call that sends it, which reports the end of a request that it has begun.
        ended: Function that ``send`` calls at the end; it is called here if the call did not begin.

    Raises: Refused if the request is aborted, or the engine breaks off, before its response begins.
    """
    sending = asyncio.ensure_future(send)
    request.cancel = sending.cancel
    if request.aborted is not None:
        sending.cancel()
    try:
        response = request.answer = await sending
    except asyncio.CancelledError:
        if sending.done() and not sending.cancelled() and sending.exception() is None:
            sending.result().close()  # it came just as this task was cancelled
        if sending.cancelled():
            ended(False)  # the request may not have begun, and then it does not report its end
        if request.aborted is not None:
            raise Refused(request.aborted) from None
        raise
    if request.aborted is not None:  # the abort came together with the response
        response.close()
        raise Refused(request.aborted)
    return InstanceResponse(response.status, response.headers, response)


class EngineRequests:
    """All requests that one engine has. It learns how long outputs are, and how fast they come.

    The class is synchronous.

    Args:
        an_event: Tokens that an event of its streams brings, by its flags.
    """

    def __init__(self, an_event: int = 1) -> None:
        self._requests: dict[InFlightRequest, None] = {}
        self._an_event = TokensAnEvent(an_event)
        self._broken = 0
        self._tokens, self._s_per_token = float(USUAL_OUTPUT_TOKENS), 0.02

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def streams(self) -> int:
        """Number of clients' requests. Requests that broke off count until it is known whether their engine lives."""
        return sum(not request.durable for request in self._requests) + self._broken

    def begin(self, request: InFlightRequest) -> None:
        self._requests[request] = None

    def ended(self, request: InFlightRequest, now_s: float, *, broken: bool) -> None:
        self._requests.pop(request, None)
        self._broken += broken and not request.durable
        if request.streams and request.parts > 1:
            tokens = max(self._an_event.ended(request.streamed, request.max_tokens), 1)
            self._tokens += _LEARNING * (tokens - self._tokens)
            self._s_per_token += _LEARNING * ((now_s - request.begun_s) / tokens - self._s_per_token)

    def settle(self) -> None:
        """Forget requests that broke off: it is now known whether their engine lives."""
        self._broken = 0

    def sums(self) -> RunningSums:
        """Return the load of the requests, with the tokens that they may still take."""
        return self.outlook()[0]

    @property
    def drain_s(self) -> float:
        """Seconds until all requests are expected to have ended that are given time to end.

        Durable requests that another engine can continue are aborted sooner, and do not count.
        """
        return self.outlook()[1]

    def outlook(self) -> tuple[RunningSums, float]:
        """Return :meth:`sums` and :attr:`drain_s`, computed in one pass."""
        prefill = context = output = output2 = longest = waited_for = 0.0
        for request in self._requests:
            come = self._an_event.tokens(request.streamed.events)
            left = self._left(request, come)
            output, output2 = output + left, output2 + 2.0 * left * left  # as of an exponential distribution
            longest = max(longest, left)
            if not (request.durable and request.streams):
                waited_for = max(waited_for, left)
            if come or request.parts:
                context += request.prompt_tokens + come
            else:
                prefill += request.prompt_tokens
        sums = RunningSums(len(self._requests), prefill, context, output, output2, longest)
        return sums, waited_for * self._s_per_token

    def _left(self, request: InFlightRequest, come: int) -> float:
        """Return the expected tokens that it has left: an output longer than usual is expected to double."""
        expected = max(self._tokens - come, come if come > self._tokens else 1.0)
        return expected if request.max_tokens is None else min(expected, max(request.max_tokens - come, 1))


class AwaitedRequests(EngineRequests):
    """All requests of one engine."""

    def __init__(self, an_event: int = 1) -> None:
        super().__init__(an_event)
        self._fewer = asyncio.Event()

    def ended(self, request: InFlightRequest, now_s: float, *, broken: bool) -> None:
        super().ended(request, now_s, broken=broken)
        self._fewer.set()

    def abort(self, *, durable_only: bool = False) -> None:
        """End all requests in the engine, or only the durable ones."""
        for request in list(self._requests):
            if request.durable or not durable_only:
                request.abort()

    async def send_back(self, limit_s: float) -> None:
        """Refuse the requests of which no client has had a byte, so that they are served elsewhere, or later."""
        back = [request for request in self._requests if not request.durable and not request.parts]
        for request in back:
            request.abort(Refusal.SWITCHING)
        await self._ended(limit_s, back)

    async def empty(self, limit_s: float) -> bool:
        """Return whether all have ended within ``limit_s`` seconds."""
        return await self._ended(limit_s, None)

    async def _ended(self, limit_s: float, some: Collection[InFlightRequest] | None) -> bool:
        """Return whether requests have ended within ``limit_s`` seconds.

        Args:
            limit_s: Most seconds to wait.
            some: Requests to wait for; ``None`` for all that there are at any time.
        """
        try:
            async with asyncio.timeout(limit_s):
                while self._requests if some is None else any(request in self._requests for request in some):
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            return False
        return True
