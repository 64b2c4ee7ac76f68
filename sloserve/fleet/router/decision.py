"""What decided about one request: the facts, features and probability from which a log of choices can be learned."""

from dataclasses import dataclass, replace
from enum import StrEnum

from sloserve.core.arrays import BoolArray, FloatArray
from sloserve.fleet.router.candidates import RequestFacts


class Arm(StrEnum):
    """The policy that decides at a time: greedy, or the trained policy that is compared with it."""

    GREEDY = "greedy"
    TRAINED = "trained"


@dataclass(frozen=True, slots=True)
class Trial:
    """The part of one request in the comparison of a trained policy with greedy.

    Args:
        cycle: Number of the cycle of two phases in which the request arrived.
        arm: Policy of the phase.
        counts: Whether the phase had lasted long enough that earlier requests were not the other policy's.
    """

    cycle: int
    arm: Arm
    counts: bool


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """How the model of one request was chosen.

    Args:
        facts: Facts about the request.
        token_s: Guarantee in seconds per output token of a request without targets.
        arm: Policy that decided, or would have if the conversation had not stayed on its model.
        number: Number of the request at its gateway, from 0.
        at_s: Monotonic time of the choice, in seconds.
        task: Task of the request in the quality table; ``None`` if it is unknown.
        weight: Weight of its class.
        allowed: Models that can serve it and should be in time, ``[models]``.
        best: Index of the model that greedy would choose.
        chosen: Index of the chosen model.
        quality: Quality of the chosen model at the task.
        propensity: Probability with which the model was chosen.
        features: Inputs of a trained policy, ``[features]``; ``None`` if no trained policy needs them.
        trial: Part in the comparison with greedy; ``None`` if the request has none.
    """

    facts: RequestFacts
    token_s: float
    arm: Arm
    number: int
    at_s: float
    task: str | None
    weight: float
    allowed: BoolArray
    best: int
    chosen: int
    quality: float
    propensity: float
    features: FloatArray | None = None
    trial: Trial | None = None

    def limit_s(self, tokens: int | None = None) -> float:
        """Return the seconds from arrival to the last of ``tokens`` tokens, or of the expected number of tokens."""
        facts = self.facts if tokens is None else replace(self.facts, output_tokens=float(tokens))
        return facts.limit_s(self.token_s)

    def in_time(self, took_s: float, tokens: int, first_s: float | None) -> bool:
        """Return whether a complete response met the request's targets, the network's time included.

        Args:
            took_s: Seconds from arrival to the last token.
            tokens: Number of output tokens.
            first_s: Seconds from arrival to the first token; ``None`` if the response was not streamed.
        """
        network_s, target_s = self.facts.network_s, self.facts.targets.ttft_s
        if first_s is not None and target_s is not None and first_s + network_s > target_s:
            return False
        return took_s + network_s <= self.limit_s(tokens)
