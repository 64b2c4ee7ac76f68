"""How one request of a live server fared, as the process that answered it saw it."""

from dataclasses import dataclass

from sloserve.core.finished import FinishedRequest, Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.slo import SLO


@dataclass(frozen=True, slots=True)
class Interruptions:
    """What kept an admitted request from running.

    paused_steps: engine steps it sat out with its KV kept. paused_s: how long that was. preempted_s: how long it was
    without KV, from each preemption to the step that took it in again.
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

    latency: in seconds from the arrival at our front end, queueing included; ``None`` unless it was completed with at
    least one token. qoe: 0..1; ``None`` where it promises no timeline, or was not streamed: no user reads it as it
    comes. waited_s: from arrival to the first step that served it, ``None`` where it never was or is not known.
    preemptions: by the policy and by vLLM. predicted: what was told at its admission. It is never in two of waiting,
    preempted and paused at once; with the time it ran and what the front end takes they are its e2e latency.
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

    @property
    def asked(self) -> SLO:
        return self.slo
