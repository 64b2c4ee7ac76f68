"""The requests that one engine has, as far as a door sees them: how many, and how long they will take."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sloserve.core.errors import InvalidRequest
from sloserve.fleet.contract.door import LineSize, Refusal
from sloserve.fleet.sizes import BYTES_PER_TOKEN, USUAL_OUTPUT_TOKENS, output_limit, whole
from sloserve.fleet.streamed import Streamed, TokensAnEvent
from sloserve.scheduler.virtual_queues.contract import RunningSums
from sloserve.wire.body import Body, parse
from sloserve.wire.lenient import flag

_LEARNING: Final = 0.05


class _StatedLimits(Body):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    stream: Any = None
    n: Any = None


class BegunAnswer(Protocol):
    """An answer that has begun."""

    @property
    def parts(self) -> int:
        """How many parts of its body have come so far."""
        ...

    @property
    def streamed(self) -> Streamed:
        """What has come of it."""
        ...

    def close(self, refusal: Refusal | None = None) -> None:
        """Ends it in the engine."""
        ...


@dataclass(eq=False, slots=True)
class InFlightRequest:
    """One request. max_tokens: of its reply; ``None`` for no limit, or where it asks for several. begun_s: monotonic.
    answer: once it has begun.
    """

    model: str
    durable: bool
    prompt_tokens: float
    max_tokens: int | None
    streams: bool
    begun_s: float
    answer: BegunAnswer | None = None
    cancel: Callable[[], object] = field(default=lambda: None)
    """Before its answer has begun."""
    aborted: Refusal | None = None
    """What it is answered with, if nothing of its answer has come."""

    @property
    def parts(self) -> int:
        """How many parts of its answer have come so far."""
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


def stream_of(model: str, body: bytes, now_s: float) -> InFlightRequest:
    """Returns a client's request with this body; a body that cannot be read is the engine's to refuse."""
    try:
        stated = parse(body, _StatedLimits)
    except InvalidRequest:
        stated = _StatedLimits()
    limit = output_limit(stated.max_tokens, stated.max_completion_tokens) if whole(stated.n) in (None, 1) else None
    return InFlightRequest(model, False, len(body) / BYTES_PER_TOKEN, limit, flag(stated.stream) is True, now_s)


def line_of(model: str, size: LineSize, now_s: float) -> InFlightRequest:
    """Returns a line of a batch."""
    return InFlightRequest(model, True, size.prompt_tokens, size.max_tokens, size.streams, now_s)


class EngineRequests:
    """All that one engine has. Synchronous. Learns how long replies are, and how fast they come. an_event: tokens that
    an event of its streams brings, by its flags.
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
        """Those of clients; those that broke off count until it is known what became of their engine."""
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
        """What became of the engine of those that broke off is known."""
        self._broken = 0

    def sums(self) -> RunningSums:
        """What they are and may still take."""
        return self.outlook()[0]

    @property
    def drain_s(self) -> float:
        """Until all are expected to have ended that are given time to: not durable ones with which another engine can
        go on, which are aborted sooner.
        """
        return self.outlook()[1]

    def outlook(self) -> tuple[RunningSums, float]:
        """:meth:`sums` and :attr:`drain_s`, in one pass."""
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
        """Tokens that it is expected to have left: a reply longer than usual is expected to double."""
        expected = max(self._tokens - come, come if come > self._tokens else 1.0)
        return expected if request.max_tokens is None else min(expected, max(request.max_tokens - come, 1))
