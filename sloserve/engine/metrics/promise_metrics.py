"""Counts of promises: how many were given, kept, broken and refused, and what they cost, by class and by tenant.

A promise is entered when its request ends. What it costs the others is known when it is given; what a broken one costs
its client is the time beyond its targets.
"""

from prometheus_client import Counter
from prometheus_client.registry import Collector

from sloserve.core.finished import seconds_beyond
from sloserve.core.promise_window import PromiseWindow
from sloserve.core.promises import PROMISES_KEPT, WHY_REFUSED
from sloserve.core.served import ServedRequest
from sloserve.core.stamps import Stamps
from sloserve.engine.metrics.engine_metrics import PREFIX


class PromiseFamilies:
    """The metrics of promises, each for all classes or tenants."""

    def __init__(self) -> None:
        self.ended = _counter("promises", "Promises whose request ended, by what came of them", "class", "outcome")
        self.refused = _counter("promises_refused", "Promises asked for that were not given", "class", "why")
        self.allowed = _counter(
            "promises_allowed_broken",
            "Broken promises that the levels allow: the sum of 1 - level over kept and broken promises",
            "class",
        )
        self.delay = _counter(
            "promise_delay_seconds",
            "Price of promises whose request ended: seconds by which they delayed requests that waited without one",
            "class",
        )
        self.beyond = _counter(
            "promise_broken_seconds",
            "Cost of broken promises: seconds beyond the target that was missed most; of a request that was not "
            "completed its e2e target",
            "class",
        )
        self.of_tenant = _counter(
            "tenant_promises", "Promises whose request ended, by what came of them", "tenant", "outcome"
        )

    def all(self) -> list[Collector]:
        """Return each collector once, to be registered."""
        return list(vars(self).values())


def _counter(name: str, documentation: str, *labels: str) -> Counter:
    return Counter(f"{PREFIX}{name}", documentation, labels, registry=None)


class ClassPromises:
    """The promises of one class; its series start at 0."""

    def __init__(self, name: str, families: PromiseFamilies, stamps: Stamps) -> None:
        """Create the series of one class.

        Args:
            name: Name of the class.
            families: The metrics to which the series belong.
            stamps: Memory of the class's latest promises.
        """
        self._window = PromiseWindow(stamps)
        self._ended = {outcome: families.ended.labels(name, outcome) for outcome in PROMISES_KEPT}
        self._refused = {why: families.refused.labels(name, why) for why in WHY_REFUSED}
        self._allowed, self._delay = families.allowed.labels(name), families.delay.labels(name)
        self._beyond = families.beyond.labels(name)

    def record(self, served: ServedRequest, now_s: float) -> None:
        """Enter a request that ended, if it had a promise."""
        promised, outcome = served.promised, served.promise
        if promised is None or outcome is None:
            return
        self._ended[outcome].inc()
        self._delay.inc(max(promised.delayed_s, 0.0))
        if outcome != "withdrawn":
            self._allowed.inc(max(1.0 - promised.level, 0.0))
        if outcome == "broken":
            self._beyond.inc(seconds_beyond(served.asked.targets, served.latency, served.output_tokens))
        self._window.record(outcome, promised.level, now_s)

    def refused(self, why: str) -> None:
        """Count a promise that was asked for and not given.

        Args:
            why: One of :data:`~sloserve.core.promises.WHY_REFUSED`.
        """
        self._refused[why].inc()
