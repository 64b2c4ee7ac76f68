"""Facts about a request and about the models that might serve it, which decide the models that can."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sloserve.core.slo import Targets

_FOREVER_S = 1e12
"""Longest finite time in seconds: a model that can serve a request has a time, however long."""


class Barred(StrEnum):
    """The reason why a model cannot serve a request, whatever its load."""

    NOT_ALLOWED = "not_allowed"
    """The client's key may not use the model."""
    TOO_LONG = "too_long"
    """Prompt and output are longer than the model's context."""
    UNSUPPORTED = "unsupported"
    """The model lacks something that the request needs: tools, a grammar, images."""
    ASLEEP = "asleep"
    """The model serves nowhere, and nothing says when it will."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """One request that names no model.

    Args:
        task: Task that its header states.
        output_tokens: Expected output tokens, or the client's cap if nothing better is known.
        needs: Features that a model must support, such as ``tools``.
        conversation: a key that is the same for all requests of one conversation, and for no two tenants; ``None`` for
            a request of its own.
        begins: Whether it is the first of its conversation.
        context_tokens: Tokens that a model's context must have.
        elapsed_s: Seconds since its arrival.
        network_s: Seconds that the network takes of its time, to the client and back.
    """

    slo_class: str
    targets: Targets
    prompt_tokens: int
    output_tokens: float
    task: str | None = None
    needs: frozenset[str] = frozenset()
    conversation: str | None = None
    begins: bool = False
    context_tokens: int = 1
    elapsed_s: float = 0.0
    network_s: float = 0.0

    def limit_s(self, token_s: float) -> float:
        """Return the seconds from arrival to the last token by its targets, or ``token_s`` a token without them."""
        tokens, targets = max(self.output_tokens, 1.0), self.targets
        limits = [] if targets.e2e_s is None else [targets.e2e_s]
        if targets.pace_s is not None:
            limits.append(targets.pace_s * tokens + (targets.ttft_s or 0.0))
        return min(limits) if limits else max(token_s * tokens, targets.ttft_s or 0.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model, and what its instances would do with the request now.

    Args:
        batches: Number of requests at each instance that serves it.
        ready_in_s: Seconds until an instance serves it: 0, the predicted end of a switch, or infinite.
        first_s: Predicted seconds from then to the first token at the best instance.
        completion_s: Predicted seconds from then to the last token at the best instance.
        error: Relative standard deviation of the prediction; ``None`` for the settings' own.
        full: Whether it would refuse the request for as long as others wait.
    """

    model: str
    max_model_len: int
    completion_s: float
    first_s: float = 0.0
    batches: Sequence[int] = ()
    ready_in_s: float = 0.0
    error: float | None = None
    supports: frozenset[str] = field(default_factory=frozenset)
    allowed: bool = True
    full: bool = False

    def barred(self, facts: RequestFacts) -> Barred | None:
        """Return why the model cannot serve the request, or ``None`` if it can."""
        if not self.allowed:
            return Barred.NOT_ALLOWED
        if facts.context_tokens > self.max_model_len:
            return Barred.TOO_LONG
        if not facts.needs <= self.supports:
            return Barred.UNSUPPORTED
        return None if math.isfinite(self.ready_in_s) else Barred.ASLEEP

    def predicted_s(self, facts: RequestFacts, limit_s: float) -> float:
        """Return the seconds until the last token.

        If the first token is the tighter target, return ``limit_s`` times the part that the first token takes of its
        own limit.
        """
        predicted_s = self.ready_in_s + self.completion_s
        if facts.targets.ttft_s is not None:
            late = (self.ready_in_s + self.first_s) / max(facts.targets.ttft_s - facts.elapsed_s, 1e-9)
            predicted_s = max(predicted_s, late * limit_s)
        return predicted_s if predicted_s < _FOREVER_S else _FOREVER_S  # also where it is not a number
