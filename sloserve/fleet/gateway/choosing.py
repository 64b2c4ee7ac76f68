"""The choice of a model for a request that names a set of them, and the interface of the chooser."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.router.decision import Decision


class PredictedTimes(NamedTuple):
    """Times that were predicted for a request, in seconds.

    Args:
        first_s: Time from its arrival to its first token.
        token_s: Time for each token after the first.
        slower: Known factor by which its model takes longer than its profile says; both times contain it.
    """

    first_s: float
    token_s: float
    slower: float = 1.0

    def completion_s(self, output_tokens: int) -> float:
        """Return the seconds from arrival to the last of ``output_tokens`` tokens."""
        return self.first_s + (output_tokens - 1) * self.token_s


class Chosen(NamedTuple):
    """A chosen model.

    Args:
        model: Name of the model.
        why: Reason for the choice, in a word.
        shadow: Model that another policy would have chosen, if that policy is asked.
        foreseen: Times that were predicted for the request.
        decision: How the model was chosen; ``None`` for a second choice for the same request.
    """

    model: str
    why: str
    shadow: str | None = None
    foreseen: PredictedTimes | None = None
    decision: Decision | None = None


class ResponseTimes(NamedTuple):
    """Measured times of a complete response, in seconds from the arrival of its request.

    Args:
        e2e_s: Time of the last token.
        tokens: Number of output tokens.
        first_s: Time of the first token; ``None`` if the response was not streamed.
    """

    e2e_s: float
    tokens: int
    first_s: float | None = None


class Chooser(Protocol):
    """Chooses a model for requests that name a set of them."""

    def sets(self, models: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return the models of each set that are in ``models``, by the name that requests ask for.

        Args:
            models: Models that a tenant may use.
        """
        ...

    def choose(self, request: GatewayRequest, among: Collection[str], *, again: bool = False) -> Chosen:
        """Choose one model of a set.

        Args:
            request: Request to serve.
            among: Models of the set.
            again: Whether this is a second choice for the same request, after its engine was lost.

        Raises: InvalidRequest if no model of the set can serve it.
        """
        ...

    def ended(self, model: str, foreseen: PredictedTimes, ratio: float) -> None:
        """Note that a request for which the model was chosen is complete.

        Args:
            model: Chosen model.
            foreseen: Times that were predicted for the request.
            ratio: Measured time divided by the predicted time.
        """
        ...

    def settled(self, chosen: Chosen, times: ResponseTimes | None, took_s: float, *, has_left: bool) -> None:
        """Note the outcome of a request that was served by its first choice.

        Args:
            chosen: Choice of its model.
            times: Measured times; ``None`` unless its response is complete.
            took_s: Seconds from its arrival to its end.
            has_left: Whether its client left before the end.
        """
        ...
