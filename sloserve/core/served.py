"""How one request of a live server fared, as the process that answered it saw it."""

from dataclasses import dataclass
from typing import Final

from sloserve.core.finished import FinishedRequest, Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.promises import Promised
from sloserve.core.slo import SLO


@dataclass(frozen=True, slots=True)
class InEngine:
    """What a request met in its engine, and what it used of it.

    Args:
        paused_steps: Engine steps in which the request was paused with its KV kept.
        paused_s: Seconds for which it was paused.
        preempted_s: Seconds without KV, from each preemption to the step that admitted the request again.
        engine_s: Seconds of the engine that it used, see :mod:`sloserve.engine.step_shares`.
        kv_s: Seconds of the whole KV cache that it used: the share that it held, times the time for which it did.
    """

    paused_steps: int = 0
    paused_s: float = 0.0
    preempted_s: float = 0.0
    engine_s: float = 0.0
    kv_s: float = 0.0

    def __add__(self, other: "InEngine") -> "InEngine":
        """Return what two calls of the engine for one request met and used."""
        return InEngine(
            self.paused_steps + other.paused_steps,
            self.paused_s + other.paused_s,
            self.preempted_s + other.preempted_s,
            self.engine_s + other.engine_s,
            self.kv_s + other.kv_s,
        )


UNUSED: Final = InEngine()
"""What a request met and used that nothing is known of."""


@dataclass(frozen=True)
class ServedRequest(FinishedRequest):
    """One request that ended, of a class and perhaps a tenant.

    The request is never in two of waiting, preempted and paused at once; these times, the time in which it ran, and the
    front end's own time sum to its e2e latency.

    Args:
        latency: Seconds from the arrival at our front end, queueing included; ``None`` unless the request was completed
            with at least one token.
        qoe: Quality of experience, 0..1; ``None`` if the request promises no timeline, or was not streamed, since no
            user reads such an output as it comes.
        waited_s: Seconds from arrival to the first step that served the request; ``None`` if no step did, or if it is
            not known.
        preemptions: Number of preemptions by the policy and by vLLM.
        predicted: The latency that was predicted at admission.
        promised: The promise that was given at admission; ``None`` for none.
        was_late: Whether a target had been missed when its client left.
    """

    slo: SLO
    outcome: Outcome
    tenant: str | None = None
    latency: Latency | None = None
    qoe: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    waited_s: float | None = None
    preemptions: int = 0
    in_engine: InEngine = UNUSED
    predicted: Predicted | None = None
    promised: Promised | None = None
    was_late: bool = False

    @property
    def asked(self) -> SLO:
        return self.slo
