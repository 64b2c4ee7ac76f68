"""What an instance was sent a moment ago, which its report names for all gateways: beginnings of prompts, and tasks.

A gateway knows which prompts it sent itself. The next call of a task may come through another gateway, which should
send it to the same instance, since the prefix cache there has the prompt, and should know when the task began. The
gateway that sends a request states digests of its prompt and its task, the agent reports them for a few seconds, and
every gateway remembers what it has read.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

REPORTED_S: Final = 5.0
"""Seconds for which an entry is reported: gateways ask every quarter of a second, and give an agent up after 3 s."""
MOST_REPORTED: Final = 256
"""Most entries in a report, which are about 10 KB; the oldest are left out."""

V = TypeVar("V")


class RecentlySent(Generic[V]):
    """Values by name, such as the tokens of beginnings of prompts by their digests. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, tuple[V, float]] = OrderedDict()

    def sent(self, values: Mapping[str, V], now_s: float) -> None:
        """Record the values that a request brings to the instance, by name."""
        for name, value in values.items():
            self._sent[name] = value, now_s
            self._sent.move_to_end(name)
        while len(self._sent) > MOST_REPORTED:
            self._sent.popitem(last=False)

    def reported(self, now_s: float) -> Mapping[str, V]:
        """Return the recent values by name, the newest last."""
        while self._sent:
            name, (_, sent_s) = next(iter(self._sent.items()))
            if now_s - sent_s < REPORTED_S:
                break
            del self._sent[name]
        return {name: value for name, (value, _) in self._sent.items()}

    def clear(self) -> None:
        """Forget all values: the engine that they were sent to is gone."""
        self._sent.clear()
