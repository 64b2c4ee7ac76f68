"""The servers that others started, as instances between which a gateway chooses."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from sloserve.fleet.beside.choice_settings import DEVICE
from sloserve.fleet.beside.server_figures import ServerFigures
from sloserve.fleet.beside.server_reports import ServerReports
from sloserve.fleet.contract.reports import AgentReport
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS

_MOST_KEPT: Final = 1024
"""Most models of which the servers are kept: requests may ask for any name."""


class Eligible(NamedTuple):
    """The servers that a request may go to.

    Args:
        models: Models of these servers, by the names that their instances have.
        among: Names of the servers; ``None`` for all.
    """

    models: tuple[str, ...]
    among: frozenset[str] | None


class Servers:
    """What is known of each server: its instance, and the names of models that it serves.

    Args:
        instances: Instances, of which each is a server here.
        capacities: Number of requests that a server runs at a time, by model; ``None`` if it is not known.
    """

    def __init__(self, instances: Instances, capacities: Mapping[str, int | None]) -> None:
        self.instances, self._capacities = instances, dict(capacities)
        self._reports: dict[str, ServerReports] = {}
        self._names: dict[str, frozenset[str]] = {}
        """Names of models by the server that serves them."""
        self._model: dict[str, str] = {}
        self._figures: dict[str, tuple[ServerFigures, float]] = {}
        """Last figures of each server, and the monotonic time at which they came."""
        self._eligible: dict[str, Eligible] = {}
        """The servers that requests may go to that name no subset, by the model that they ask for."""
        self._output_tokens: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reports)

    def listed(self, names: Collection[str]) -> None:
        """Take in which servers there are: these, and no others."""
        for name in names:
            if name not in self._reports:
                self._reports[name] = ServerReports(name, DEVICE, None)
        for name in self._reports.keys() - set(names):
            self.lost(name)
            del self._reports[name]
            self._names.pop(name, None)
            self._model.pop(name, None)
            self._figures.pop(name, None)
            self._eligible.clear()
        self.instances.keep_only(names)

    def served(self, name: str, models: Collection[str]) -> None:
        """Take in the names of models, adapters counted, that a server states."""
        if name in self._reports and self._names.get(name) != frozenset(models):
            self._names[name] = frozenset(models)
            self._eligible.clear()

    def reported(self, name: str, figures: ServerFigures, sent_before: int, now_s: float) -> None:
        """Take in the figures of a server.

        Args:
            name: Name of the server.
            figures: Figures of the server.
            sent_before: Value of :meth:`Instances.sent` when they were asked for.
            now_s: Monotonic time in seconds.
        """
        reports = self._reports.get(name)
        if reports is None:
            return
        if self._model.get(name) != figures.model:
            self._model[name] = figures.model
            self._eligible.clear()
        reports.capacity = self._capacities.get(figures.model)
        instance = self.instances.by_name.get(name)
        report = reports.report(figures, 0 if instance is None else instance.in_flight, figures.model)
        self._output_tokens[figures.model] = reports.output_tokens
        self._figures[name] = figures, now_s
        self.instances.reported(AgentReport(name, name, (report,)), name, sent_before, now_s)

    def ended(self, name: str, now_s: float) -> None:
        """Note that a request has ended which the last report counts, and the server's figures do not.

        Args:
            name: Name of the server.
            now_s: Monotonic time in seconds.
        """
        instance = self.instances.by_name.get(name)
        if instance is None or name not in self._figures or not instance.is_fresh(now_s):
            return
        if instance.room <= 0:
            return  # it has refused a request, and must report room itself
        figures, taken_s = self._figures[name]
        if instance.report.running.requests > max(figures.requests, instance.in_flight):
            self.reported(name, figures, self.instances.sent(), taken_s)

    def capacity(self, model: str) -> int | None:
        """Return how many requests a server of a model runs at a time; ``None`` if it is not known."""
        return self._capacities.get(model)

    def set_capacity(self, model: str, requests: int) -> None:
        """Set how many requests a server of a model runs at a time, from its next figures on."""
        self._capacities[model] = requests

    def lost(self, name: str) -> None:
        """Note that a server does not respond."""
        self.instances.lost(name)

    def eligible(self, model: str, subset: Collection[str] | None) -> Eligible:
        """Return the servers that a request may go to, the ones that serve its model if any is known to.

        Args:
            model: Model that the request asks for; empty if it is not known.
            subset: Names of the servers that it may go to at most; ``None`` for all.
        """
        if subset is not None:
            return self._of(model, self._model.keys() & set(subset))
        known = self._eligible.get(model)
        if known is None:
            known = self._of(model, self._model.keys())
            if len(self._eligible) < _MOST_KEPT:
                self._eligible[model] = known
        return known

    def _of(self, model: str, within: Collection[str]) -> Eligible:
        serving = [one for one in within if model == self._model[one] or model in self._names.get(one, ())]
        found = serving or within
        models = tuple(sorted({self._model[one] for one in found}))
        return Eligible(models, None if len(found) == len(self._model) else frozenset(found))

    def silent(self, subset: Collection[str] | None) -> list[str]:
        """Return the servers to choose from if none of them is known to live: all of the subset, or of the list."""
        return sorted(self._reports if subset is None else set(subset))

    def output_tokens(self, model: str, limit: int | None) -> float:
        """Return the expected tokens of an output.

        Args:
            model: Model that generates it.
            limit: The request's limit; ``None`` for none.
        """
        mean = self._output_tokens.get(model, float(USUAL_OUTPUT_TOKENS))
        return mean if limit is None else min(mean, float(limit))
