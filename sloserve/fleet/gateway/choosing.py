"""Which model serves a request that names a set of them: what is chosen, and what the gateway asks of the chooser."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from sloserve.fleet.gateway.gateway_request import GatewayRequest


class PredictedTimes(NamedTuple):
    """What was predicted of a request, in seconds: from its arrival to its first token, and for each after that.
    slower: factor of what its model was known to take more than its profile says, which is in both.
    """

    first_s: float
    token_s: float
    slower: float = 1.0

    def completion_s(self, output_tokens: int) -> float:
        """From arrival to the last of so many tokens."""
        return self.first_s + (output_tokens - 1) * self.token_s


class Chosen(NamedTuple):
    """A model, and why, in a word. shadow: what another policy would have chosen, if that is asked."""

    model: str
    why: str
    shadow: str | None = None
    foreseen: PredictedTimes | None = None


class Chooser(Protocol):
    """Chooses a model for requests that name a set of them."""

    def sets(self, models: Collection[str]) -> Mapping[str, Collection[str]]:
        """Returns those of ``models``, which a tenant may use, in each set, by the name that requests ask for."""
        ...

    def choose(self, request: GatewayRequest, among: Collection[str], *, again: bool = False) -> Chosen:
        """One of a set. again: for the same request, whose engine was lost. Raises: InvalidRequest."""
        ...

    def ended(self, model: str, foreseen: PredictedTimes, ratio: float) -> None:
        """A request for which the model was chosen is complete. ratio: its time in parts of what was predicted."""
        ...
