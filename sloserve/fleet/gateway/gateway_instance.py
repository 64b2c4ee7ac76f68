"""One instance of a fleet as one gateway knows it: its agent's last report, and the requests sent there since."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sloserve.core.spans import Phase
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.fleet.contract.reports import InstanceReport
from sloserve.fleet.gateway.prediction import NOTHING, InstanceForecast, Pace, Work, total
from sloserve.fleet.gateway.prefixes import Beginning, PrefixTable

FRESH_S: Final = 3.0
"""Seconds without a report from its agent after which an instance gets no requests."""


@dataclass(slots=True)
class SendCounter:
    """Counts the requests that one gateway sends to instances; the counts tell which of them a report contains."""

    count: int = 0


def _ignored(instance: "GatewayInstance") -> None:
    """Do nothing: the instance is in no index."""


class GatewayInstance:
    """One instance. Its room is the room in its agent's report, less what was sent since, plus what has ended since.

    Args:
        report: First report on it.
        endpoint: Endpoint of its agent.
        sends: Counter of the gateway's requests; ``None`` for one of its own.
        changed: Called whenever :attr:`open_for` may have changed.
        number: Number of the instance in the order in which the gateway came to know of them.
    """

    def __init__(
        self,
        report: InstanceReport,
        endpoint: str,
        sends: SendCounter | None = None,
        changed: Callable[["GatewayInstance"], None] = _ignored,
        number: int = 0,
    ) -> None:
        self.report, self.endpoint, self.number = report, endpoint, number
        self._sends, self._changed = sends or SendCounter(), changed
        self.active = report.active
        """Model that is active, or coming."""
        self.prefixes = PrefixTable()
        self._computed, self._output = RunningMean(), RunningMean()
        self._usual = Work(1)
        self.seen_s = float("-inf")
        self.in_flight = 0
        """Number of requests sent there that have not ended."""
        self._sent_before = 0
        """Count of the gateway's requests after the last one that it sent here."""
        self._sent_s = float("-inf")
        self._ended = 0
        self._refused_at: tuple[int, float] | None = None
        """Count, and time of the last request sent here, when an instance refused one; ``None`` if it takes them."""
        self._is_gone = False
        self._since: dict[int, tuple[Work, float]] = {}
        self._since_work: Work | None = NOTHING
        """Sum of the works in ``_since``; ``None`` if it has to be added up again."""

    @property
    def name(self) -> str:
        return self.report.name

    @property
    def sent(self) -> int:
        """Count of the gateway's requests until now; returned with the report that counts them."""
        return self._sends.count

    @property
    def room(self) -> int:
        """Number of further requests that it should take now."""
        if self._refused_at is not None:
            return 0
        return self.report.room - len(self._since) + self._ended

    @property
    def open_for(self) -> str | None:
        """Model for which it takes a request if its agent's last report is fresh; ``None`` for none."""
        if self.report.phase is not Phase.SERVING or self._is_gone or self.room <= 0 or self.seen_s == float("-inf"):
            return None
        return self.active

    def reported(
        self, report: InstanceReport, endpoint: str, sent_before: int, now_s: float, made_s: float = float("-inf")
    ) -> list[Beginning]:
        """Take in a report of its agent, and return the beginnings of prompts that are new in it.

        Args:
            report: Report on the instance.
            endpoint: Endpoint of its agent.
            sent_before: Value of :attr:`sent` when the report was asked for.
            now_s: Monotonic time in seconds.
            made_s: Time after which the report was made, if it was made later than it was asked for. What was sent
                before is in it.
        """
        new: list[Beginning] = []
        if report.active != self.active or report.phase is not Phase.SERVING:
            self.prefixes.clear()
            self._computed, self._output = RunningMean(), RunningMean()
            self._usual = Work(1)
        elif report.cached:
            new = self.prefixes.reported(report.cached)
        self.report, self.endpoint, self.seen_s, self.active = report, endpoint, now_s, report.active
        self._ended = 0
        if self._refused_at is not None and (sent_before >= self._refused_at[0] or made_s > self._refused_at[1]):
            self._refused_at, self._is_gone = None, False
        if self._since:
            self._since = {
                number: sent for number, sent in self._since.items() if number >= sent_before and sent[1] >= made_s
            }
            self._since_work = None
        self._changed(self)
        return new

    def lost(self) -> None:
        """Note that its agent cannot be reached."""
        self.seen_s = float("-inf")
        self._changed(self)

    def is_fresh(self, now_s: float) -> bool:
        """Return whether its agent has reported lately."""
        return now_s - self.seen_s < FRESH_S

    def serves(self, model: str, now_s: float) -> bool:
        """Return whether the model is active there, and its agent alive."""
        return self.report.phase is Phase.SERVING and self.is_for(model) and now_s - self.seen_s < FRESH_S

    def is_for(self, model: str) -> bool:
        """Return whether it has the model or is on its way to it, and no request has found it gone since."""
        return self.active == model and not self._is_gone

    def send(self, work: Work, prompt: Sequence[Beginning], now_s: float = float("inf")) -> "SentRequest":
        """Record that a request goes there.

        Args:
            work: Size of the request.
            prompt: Beginnings of its prompt.
            now_s: Monotonic time in seconds.
        """
        number = self._sends.count
        flight = SentRequest(self, number)
        computed_tokens = max(work.prompt_tokens - self.prefixes.cached_tokens(prompt), 0.0)
        self._computed.add(computed_tokens)
        self._output.add(work.output_tokens)
        self._usual = Work(1, self._computed.value or 0.0, self._output.value or 0.0)
        self._since[number], self._since_work = (work, now_s), None
        self._sends.count = self._sent_before = number + 1
        self._sent_s = now_s
        self.in_flight += 1
        self.prefixes.sent(prompt, computed_tokens + work.output_tokens)
        self._changed(self)
        return flight

    def times_s(self, pace: Pace, new: Work, prompt: Sequence[Beginning], held: Work = NOTHING) -> InstanceForecast:
        """Return the expected times of a new request here.

        Args:
            pace: Speed of its model on the instance's device.
            new: Size of the new request.
            prompt: Beginnings of its prompt.
            held: Work that waits for the instance in the gateway.
        """
        if self._since_work is None:
            self._since_work = total(work for work, _ in self._since.values())
        sent = self._since_work if held is NOTHING else total((self._since_work, held))
        return pace.times_s(self.report.running, sent, new, self.prefixes.cached_tokens(prompt), self._usual)

    @property
    def requests(self) -> int:
        """Number of requests that it has, as far as is known here."""
        return self.report.running.requests + len(self._since)

    def ended(self, number: int) -> None:
        self.in_flight -= 1
        if self._since.pop(number, None) is None:
            self._ended += 1
        else:
            self._since_work = None
        self._changed(self)

    def refused(self, *, gone: bool = False) -> None:
        """Treat the instance as full until its agent reports room, in a report requested after the last request.

        Args:
            gone: Whether its model is taken to be gone until then, too.
        """
        self._refused_at, self._is_gone = (self._sent_before, self._sent_s), self._is_gone or gone
        self._changed(self)


@dataclass(slots=True)
class SentRequest:
    """A request that was sent to an instance. The caller must end it once, however it ends."""

    instance: GatewayInstance
    number: int
    over: bool = False

    def end(self, *, refused: bool = False, gone: bool = False) -> None:
        """End the request at this instance.

        Args:
            refused: Whether the instance refused it, see :meth:`GatewayInstance.refused`.
            gone: Whether the model was gone, see the same method.
        """
        if not self.over:
            self.over = True
            self.instance.ended(self.number)
            if refused:
                self.instance.refused(gone=gone)
