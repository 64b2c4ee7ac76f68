"""Promises of a gateway in virtual time: the live gateway's own admission, one for each model over all its instances.

Differs: no cap and no chance refuses a request, so that the outcomes of all requests are measured.
"""

from collections.abc import Sequence

from sloserve.core.promises import Promised
from sloserve.core.runlog import latency_of
from sloserve.fleet.simulated.dispatcher import WaitingRequest
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket


class SimulatedPromises:
    """Gives promises to streams, and learns from all streams.

    Args:
        class_names: Names of the service classes.
    """

    def __init__(self, class_names: Sequence[str]) -> None:
        self._class_names = class_names
        self._admissions: dict[str, Admission] = {}
        self._tickets: dict[str, Ticket] = {}
        self._first_s: dict[str, float] = {}

    def arrived(self, request: WaitingRequest, serving: int, now_s: float) -> Promised | None:
        """Admit a stream; return the promise that it is given, or ``None``.

        Args:
            request: The stream.
            serving: Number of instances that serve its model now.
            now_s: The present time, in seconds.

        Raises: PromiseRefused for a stream that wants no service without a promise.
        """
        assert request.slo is not None
        admission = self._admissions.get(request.model)
        if admission is None:
            admission = self._admissions[request.model] = Admission(self._class_names, lambda place: True)
        admission.serves_with(serving)
        new = ArrivingRequest(
            request.slo, request.arrival_s, request.prompt_tokens, request.most_tokens, tenant=request.tenant
        )
        ticket = admission.admit(new, admission.forecast(new, now_s), request.request_id, now_s)
        self._tickets[request.request_id] = ticket
        return ticket.promised

    def began(self, request_id: str, now_s: float) -> None:
        """Record that the first token of a stream has come."""
        if request_id not in self._first_s:
            self._first_s[request_id] = now_s
            self._tickets[request_id].started(now_s)

    def ended(self, request_id: str, tokens: int | None, now_s: float) -> None:
        """Record that a stream has ended with its number of tokens; ``None`` if it is not complete."""
        ticket, first_s = self._tickets.pop(request_id), self._first_s.pop(request_id, None)
        latency = None
        if tokens is not None and first_s is not None:
            latency = latency_of(ticket.new.arrival_s, first_s, now_s, tokens)
        ticket.ended(latency, tokens or 0, now_s)
