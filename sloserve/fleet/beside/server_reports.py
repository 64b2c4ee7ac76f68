"""Reports on servers that others started, of the same form as the reports of agents: from figures, not from requests.

A server says how many requests run and wait, and how long the ended requests were. What is to come of the present
ones is estimated from that: each waiting request has a prompt and an output of the mean length, of the prompt the part
that prefix caches lately missed, and each running request has half of its output before it.
"""

from dataclasses import dataclass, field
from typing import Final

from sloserve.core.spans import Phase
from sloserve.fleet.beside.server_figures import ServerFigures, Totals
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums

BOUNDLESS: Final = 1 << 20
"""Room of a server of which it is not known how many requests it runs at a time."""
_USUAL_PROMPT_TOKENS: Final = 512.0
"""Tokens assumed for a prompt before any request has ended."""
_KEEP: Final = 0.9
"""Weight of the means up to now where new requests have ended since the last figures."""


@dataclass(slots=True)
class _Means:
    """Means over requests that ended lately."""

    prompt_tokens: float = _USUAL_PROMPT_TOKENS
    output_tokens: float = float(USUAL_OUTPUT_TOKENS)
    missed: float = 1.0
    """Share of the prompts' tokens that the prefix cache lacked."""
    _is_known: bool = field(default=False)

    def follow(self, before: Totals, now: Totals) -> None:
        """Take in what has ended between two figures; a server that was started again counts from its start."""
        if now.outputs < before.outputs:
            before = Totals()
        prompts, outputs = now.prompts - before.prompts, now.outputs - before.outputs
        queried = now.queried_tokens - before.queried_tokens
        keep = _KEEP if self._is_known else 0.0
        if prompts > 0.0 and outputs > 0.0:
            self.prompt_tokens = _moved(self.prompt_tokens, (now.prompt_tokens - before.prompt_tokens) / prompts, keep)
            self.output_tokens = _moved(self.output_tokens, (now.output_tokens - before.output_tokens) / outputs, keep)
            self._is_known = True
        if queried > 0.0:
            hit = min(max((now.hit_tokens - before.hit_tokens) / queried, 0.0), 1.0)
            self.missed = _moved(self.missed, 1.0 - hit, keep)


def _moved(known: float, new: float, keep: float) -> float:
    return keep * known + (1.0 - keep) * max(new, 0.0)


class ServerReports:
    """Makes the reports on one server.

    Args:
        name: Name of the server.
        device: Kind of its device.
        capacity: Number of requests that its engines run at a time; ``None`` if it is not known.
    """

    def __init__(self, name: str, device: str, capacity: int | None) -> None:
        self._name, self._device, self.capacity = name, device, capacity
        self._totals, self._means = Totals(), _Means()

    @property
    def output_tokens(self) -> float:
        """Mean tokens of the outputs that ended lately."""
        return self._means.output_tokens

    def report(self, figures: ServerFigures, in_flight: int, model: str) -> InstanceReport:
        """Return the report on the server.

        Args:
            figures: Latest figures of the server.
            in_flight: Number of requests that were sent there and have not ended. A server counts a request one step
                after it has come, and by then counts the requests of others as well.
            model: Name by which requests find the server.
        """
        if figures.totals != self._totals:
            self._means.follow(self._totals, figures.totals)
            self._totals = figures.totals
        means = self._means
        requests = max(figures.requests, in_flight)
        waiting = requests - figures.running
        lengths = means.prompt_tokens + means.output_tokens / 2.0
        output = (waiting + figures.running / 2.0) * means.output_tokens
        context = figures.running * lengths if figures.context_tokens is None else figures.context_tokens
        running = RunningSums(
            requests,
            waiting * means.prompt_tokens * means.missed,
            context,
            output,
            output * means.output_tokens,
            means.output_tokens if requests else 0.0,
        )
        room = BOUNDLESS if self.capacity is None else max(self.capacity - requests, 0)
        return InstanceReport(
            self._name,
            self._device,
            Phase.SERVING,
            {model: ModelState.ACTIVE},
            running=running,
            streams=requests,
            room=room,
        )
