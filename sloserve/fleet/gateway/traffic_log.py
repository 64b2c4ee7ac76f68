"""The requests of the last minutes that came through one gateway, for the planner to replay.

It holds at most MOST_REQUESTS requests, and nothing of their text. Where more arrive within the window the oldest are
forgotten, and the report says that it covers less.
"""

from collections import deque
from dataclasses import dataclass

from sloserve.core.slo import Targets
from sloserve.fleet.contract.traffic import MOST_REQUESTS, WINDOW_S, RecentTraffic, SeenRequest


@dataclass(slots=True)
class LoggedRequest:
    """One request in the log; the caller sets the output when it is over."""

    arrival_s: float
    model: str
    slo_class: str
    targets: Targets
    prompt_tokens: int
    max_tokens: int | None
    output_tokens: int = 0
    ended: bool = False

    def over(self, output_tokens: int, *, complete: bool) -> None:
        """Record the output tokens of the request, which is over, and whether they are all that it asked for."""
        self.output_tokens, self.ended = output_tokens, complete


class TrafficLog:
    """A log of arrivals.

    Args:
        now_s: Monotonic time in seconds; the log covers what arrives after it.
        most: Most requests that it holds.
    """

    def __init__(self, now_s: float, most: int = MOST_REQUESTS) -> None:
        self._since_s, self._most = now_s, most
        self._requests: deque[LoggedRequest] = deque()

    def arrived(
        self,
        model: str,
        slo_class: str,
        targets: Targets,
        prompt_tokens: int,
        max_tokens: int | None,
        now_s: float,
    ) -> LoggedRequest:
        """Record a request that arrives, and return its entry.

        Args:
            model: Model that it asks for.
            slo_class: Name of its class.
            targets: Targets that it has.
            prompt_tokens: Tokens of its prompt.
            max_tokens: Limit of its output tokens; ``None`` for no limit.
            now_s: Monotonic time in seconds.
        """
        entry = LoggedRequest(now_s, model, slo_class, targets, prompt_tokens, max_tokens)
        self._forget(now_s)
        if len(self._requests) >= self._most:
            self._since_s = max(self._since_s, self._requests.popleft().arrival_s)
        self._requests.append(entry)
        return entry

    def report(self, now_s: float) -> RecentTraffic:
        """Return what arrived in the window before ``now_s``."""
        self._forget(now_s)
        return RecentTraffic(
            min(now_s - self._since_s, WINDOW_S),
            tuple(
                SeenRequest(
                    now_s - one.arrival_s,
                    one.model,
                    one.slo_class,
                    one.prompt_tokens,
                    one.max_tokens,
                    one.output_tokens,
                    one.ended,
                    one.targets,
                )
                for one in self._requests
            ),
        )

    def _forget(self, now_s: float) -> None:
        while self._requests and self._requests[0].arrival_s < now_s - WINDOW_S:
            self._requests.popleft()
