"""How one request of a live server fared, as the process that answered it saw it."""

from dataclasses import dataclass

from sloserve.core.finished import FinishedRequest, Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.promises import Promised
from sloserve.core.slo import SLO


@dataclass(frozen=True, slots=True)
class Interruptions:
    """Time in which an admitted request did not run.

    Args:
        paused_steps: Engine steps in which the request was paused with its KV kept.
        paused_s: Seconds for which it was paused.
        preempted_s: Seconds without KV, from each preemption to the step that admitted the request again.
    """

    paused_steps: int = 0
    paused_s: float = 0.0
    preempted_s: float = 0.0

    def __add__(self, other: "Interruptions") -> "Interruptions":
        """Return what kept two calls of the engine for one request from running."""
        return Interruptions(
            self.paused_steps + other.paused_steps,
            self.paused_s + other.paused_s,
            self.preempted_s + other.preempted_s,
        )


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
    interruptions: Interruptions = Interruptions()
    predicted: Predicted | None = None
    promised: Promised | None = None
    was_late: bool = False

    @property
    def asked(self) -> SLO:
        return self.slo
