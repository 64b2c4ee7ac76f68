"""The replicas of a deployment as servers, as one router of Ray Serve knows them; nothing here imports Ray.

A replica says how many requests it has with each request that it takes or rejects, and a router knows which of its own
have ended. What a replica said becomes too old while others may have sent requests there: then the router's own count.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.files.model import Allowed, check_model, dotted
from sloserve.fleet.beside.choice_settings import ChoiceSection, ServedModel
from sloserve.fleet.beside.picking import Pick, Picking
from sloserve.fleet.beside.request_reading import RequestReading
from sloserve.fleet.beside.serve_router.calls import Call
from sloserve.fleet.beside.server_figures import ServerFigures, read_figures
from sloserve.scheduler.settings import PluginSettings, read_settings

MODEL: Final = "replica"
"""Name of the one model that all replicas of a deployment have here."""
_KNOWN_S: Final = 10.0
"""Seconds for which the number of requests that a replica said counts; Ray's own routers ask again after as long."""
_REPORT_S: Final = 1.0
"""Seconds after which the same figures are taken in again: instances with older figures get no requests."""
_MOST_PICKS: Final = 1 << 16
"""Most requests that are followed to their end."""


class RouterOptions(ChoiceSection, ServedModel):
    """Arguments of the router, in ``request_router_kwargs``.

    Args:
        settings: Settings with the classes, as in a file of ``sloserve serve --slo-config``.
    """

    settings: Annotated[dict[str, Any], Allowed("a mapping of settings, as configs/serve.yaml")] = {}


def routing_stats(page: str) -> dict[str, Any]:
    """Return what a deployment's ``record_routing_stats`` should: the figures in vLLM's metrics, or nothing.

    Args:
        page: Text of ``/metrics`` of the replica's engine.
    """
    figures = read_figures(page)
    return {} if figures is None else dict(msgspec.to_builtins(figures))


@dataclass(slots=True)
class _Replica:
    """What is known of a replica.

    Args:
        ongoing: Number of requests that it last said it has, with what this router sent and saw end since.
        said_s: Monotonic time at which it said so.
        reported_s: Monotonic time at which its figures were last taken in.
    """

    ongoing: int = 0
    said_s: float = float("-inf")
    reported_s: float = float("-inf")
    figures: ServerFigures = field(default_factory=lambda: ServerFigures(MODEL))


class Replicas:
    """The replicas, and the requests on their way.

    Args:
        options: Arguments of the router, as they are written.
        clock: Clock of this process.

    Raises: ConfigError that names each argument that cannot be used.
    """

    def __init__(self, options: Mapping[str, Any], clock: Clock) -> None:
        checked, wrong = check_model(RouterOptions, dict(options))
        settings, more = read_settings(checked.settings) if checked is not None else (None, [])
        faults = [f"{dotted(one.path)}: {one.text}" for one in wrong]
        faults += [f"settings.{dotted(one.path)}: {one.text}" for one in more]
        if checked is not None and checked.shed:
            faults.append("shed: a router of Ray Serve cannot refuse requests; leave it out")
        if faults or checked is None:
            raise ConfigError("request_router_kwargs: " + "\n".join(faults))
        self._clock = clock
        self._reading = RequestReading(settings or PluginSettings())
        model = ServedModel(profile=checked.profile, flags=checked.flags)
        self._picking = Picking({MODEL: model}, checked, clock)
        self._seats = self._picking.servers.capacity(MODEL)
        self._known: dict[str, _Replica] = {}
        self._picks: OrderedDict[str, Pick] = OrderedDict()

    def listed(self, stats: Mapping[str, Mapping[str, Any]], most_ongoing: int) -> None:
        """Take in which replicas there are.

        Args:
            stats: What the deployment's ``record_routing_stats`` returned, by replica.
            most_ongoing: Number of requests that a replica takes at a time.
        """
        seats = most_ongoing if self._seats is None else min(self._seats, most_ongoing)
        self._picking.servers.set_capacity(MODEL, seats)
        self._picking.servers.listed(list(stats))
        self._known = {name: self._known.get(name) or _Replica() for name in stats}
        for name, said in stats.items():
            replica, figures = self._known[name], _figures_in(said)
            if figures is not None and figures != replica.figures:
                replica.figures = figures
                replica.ongoing, replica.said_s = figures.requests, self._clock.monotonic_s()
            self._report(name, replica)

    def counted(self, name: str, ongoing: int) -> None:
        """Take in how many requests a replica says it has."""
        replica = self._known.get(name)
        if replica is not None:
            replica.ongoing, replica.said_s = ongoing, self._clock.monotonic_s()
            self._report(name, replica)

    async def ranks(self, key: str, call: Call, among: Collection[str]) -> list[list[str]]:
        """Choose a replica for a request, and return it and then the others; a second choice replaces the first.

        Args:
            key: Id of the request.
            call: What its call says of it.
            among: Replicas that it may go to.
        """
        self.completed(key)
        now_s = self._clock.monotonic_s()
        for name, replica in self._known.items():
            if now_s - replica.reported_s >= _REPORT_S:
                self._report(name, replica)
        request, _ = self._reading.read(call.headers, call.body, call.path, now_s)
        request.model = MODEL
        is_all = len(among) == len(self._known)
        pick = await self._picking.pick(request, None if is_all else among)
        if pick is None:
            return [list(among)]
        self._picks[key] = pick
        while len(self._picks) > _MOST_PICKS:
            self._picking.ended(self._picks.popitem(last=False)[1])
        others = [name for name in among if name != pick.server]
        return [[pick.server], others] if others else [[pick.server]]

    def moved(self, name: str, by: int) -> None:
        """Note that requests of this router came to a replica, or have ended there.

        Args:
            name: Name of the replica.
            by: Number of requests, negative for requests that have ended.
        """
        replica = self._known.get(name)
        if replica is not None:
            replica.ongoing = max(replica.ongoing + by, 0)
            self._report(name, replica)

    def routed(self, key: str, name: str) -> None:
        """Note which replica took a request."""
        pick = self._picks.get(key)
        if pick is not None:
            self._picking.moved(pick, name)

    def completed(self, key: str, name: str | None = None) -> None:
        """Note that a request has ended, or is chosen for again.

        Args:
            key: Id of the request.
            name: Replica that it has left; ``None`` for any. One that was rejected may be on its way to another.
        """
        pick = self._picks.get(key)
        if pick is not None and name in (None, pick.server):
            del self._picks[key]
            self._picking.ended(pick)
            if pick.server in self._known:
                self._report(pick.server, self._known[pick.server])

    def lost(self, name: str) -> None:
        """Note that a replica has died: nothing goes there until it is listed again."""
        self._known.pop(name, None)
        self._picking.servers.listed(list(self._known))

    def _report(self, name: str, replica: _Replica) -> None:
        now_s = replica.reported_s = self._clock.monotonic_s()
        known = replica.figures
        ongoing = replica.ongoing if now_s - replica.said_s < _KNOWN_S else 0
        running = min(ongoing, self._picking.servers.capacity(MODEL) or ongoing)
        figures = ServerFigures(MODEL, running, ongoing - running, known.context_tokens, known.totals)
        self._picking.reported(name, figures, self._picking.instances.sent())


def _figures_in(stats: Mapping[str, Any]) -> ServerFigures | None:
    """Return the figures in what ``record_routing_stats`` returned; ``None`` if it is something else."""
    try:
        return msgspec.convert(dict(stats), ServerFigures) if stats else None
    except (msgspec.ValidationError, TypeError, ValueError):
        return None


def names_of(replicas: Iterable[Any]) -> list[str]:
    """Return the names of replicas."""
    return [str(one.replica_id.unique_id) for one in replicas]
