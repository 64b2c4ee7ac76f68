"""What one gateway shows of its fleet now: hosts, instances with their models, switches, and held requests by group.

:class:`FleetView` makes the view, and :class:`WatchRoutes` serves it: the feed, and the page, with files that hold no
data. For all but these files the admin key is checked before anything else of a request.

A group is the requests of one model and class. Nothing of a single request is shown, nor its tenant. The view contains
what the gateway routes by: the last report of each agent, and its own held requests. Other gateways hold others.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from sloserve.core.attainment_window import SHOWN_SPANS_S
from sloserve.core.in_words import duration
from sloserve.core.spans import Phase
from sloserve.engine.metrics.live_state import BAD, FINE, burn_rates, calm, how_it_fares, state_of
from sloserve.fleet.contract.reports import Demand
from sloserve.fleet.gateway.gateway_instance import FRESH_S, GatewayInstance
from sloserve.fleet.gateway.instances import UNAVAILABLE
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.wire.asgi import CLOSE, Receive, Scope, Send, answer_json, refuse, shows_admin_key
from sloserve.wire.live_feed import LiveFeed, View
from sloserve.wire.watch_page import sent_page

COLUMNS: Final = (
    "host", "phase", "model", "since_s", "ready_in_s", "running", "streams", "room", "parked", "age_s",
)  # fmt: skip
"""Columns of an instance's row.

since_s: time in epoch seconds at which its present phase and model were first seen. ready_in_s: seconds until the
coming model serves. running: number of requests that it has. room: number of further requests that it takes. parked:
number of streams of models that sleep. age_s: seconds since its agent's last report; ``None`` if it cannot be reached.
"""
LOST: Final = "lost"
"""Phase of an instance if its agent is silent."""
MOST_SWITCHES: Final = 32
"""Number of latest switches that are shown."""
MOST_NAMED: Final = 100
"""Most models, hosts and groups that are shown, of groups the ones that hold most requests; the others are counted."""
_MOST_HEADLINES: Final = 4
"""Most late groups for which a sentence says why, the latest first; the others are counted."""


_MORE: Final = "Add instances (hosts or devices), or refuse requests early with settings.admission."
_AGENT: Final = "See whether these hosts are up, and start their agents again (sloserve fleet agent)."
_ENGINE: Final = "Start a host that has it, or see why its engines end there (sloserve fleet logs)."
_PLANNER: Final = "No plan is in force: see whether a planner runs (sloserve fleet planner)."


class _Headline(NamedTuple):
    """What does badly: a sentence, its end behind a colon that says the cause, and what an operator can do about it."""

    text: str
    cause: str | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class _Course:
    """Present state of an instance, and since when it has had it.

    Args:
        phase: Phase of the instance.
        model: Model that is active or coming.
        since_s: Epoch seconds at which the state was first seen.
        leaves: Model that the instance had when it last served.
    """

    phase: str
    model: str | None
    since_s: float
    leaves: str | None = None
    began_s: float | None = None
    """Epoch seconds at which the present switch began."""


class FleetView:
    """Reads the view of :mod:`sloserve.wire.live_feed` for a gateway; it sees switches while there are watchers."""

    def __init__(self, parts: GatewayState, more: Callable[[], View] = dict) -> None:
        """Create the view of one gateway.

        Args:
            parts: State of the gateway.
            more: Function that returns further parts of the view, by name.
        """
        self._parts, self._more = parts, more
        self._courses: dict[str, _Course] = {}
        self._switches: deque[dict[str, Any]] = deque(maxlen=MOST_SWITCHES)

    def follow(self, parts: GatewayState) -> None:
        """Go on with the state of another gateway, which has the same instances."""
        self._parts = parts

    def read(self) -> dict[str, Any]:
        """Return the view as of now. It must be called in the event loop of the gateway."""
        parts, instances = self._parts, self._parts.instances
        now_s, epoch_s = parts.clock.monotonic_s(), parts.clock.now_s()
        known = sorted(instances.by_name.values(), key=lambda one: one.name)
        rows = {one.name: self._row(one, now_s, epoch_s) for one in known}
        self._courses = {name: self._courses[name] for name in rows}
        by_class = {name: _figures(one) for name, one in parts.attained.by_class(now_s).items()}
        groups = sorted(parts.demand.report(parts.hold.held, now_s).demand, key=lambda one: -one.held)
        plan = instances.plan
        hosts = _hosts(rows)
        told = [*_missing(by_class), *self._late(groups, now_s), *_silent(hosts)]
        return {
            "at_s": round(epoch_s, 3),
            "fleet": True,
            "classes": list(parts.settings.classes.names),
            "spans_s": list(SHOWN_SPANS_S),
            "headlines": [one.text for one in told],
            "causes": [one.cause for one in told],
            "advice": [one.advice for one in told],
            "by_class": by_class,
            "calm": calm(by_class),
            "columns": list(COLUMNS),
            "models": {name: self._model(name, now_s) for name in sorted(parts.models)[:MOST_NAMED]},
            "hosts": dict(list(hosts.items())[:MOST_NAMED]),
            "groups": [
                {
                    "model": one.model,
                    "class": one.slo_class,
                    "held": one.held,
                    "oldest_s": round(one.oldest_s, 1),
                    "first_due_in_s": None if one.first_due_in_s is None else round(one.first_due_in_s, 1),
                    "rate_per_s": round(one.rate_per_s, 2),
                    "queues": instances.planned(one.model, one.slo_class)[:8],
                }
                for one in groups[:MOST_NAMED]
            ],
            "counts": {"models": len(parts.models), "groups": len(groups), "instances": len(rows)},
            "held": len(parts.hold),
            "plan": None if plan is None else {"late_s": round(plan.late_s, 1), "needed": plan.instances_needed},
            "switches": list(self._switches),
            **self._more(),
            "rows": rows,
        }

    def _late(self, groups: list[Demand], now_s: float) -> list[_Headline]:
        """Return, for each group past its first deadline, how late it is and why no instance takes it."""
        overdue = [(-one.first_due_in_s, one) for one in groups if one.first_due_in_s is not None]
        late = sorted((one for one in overdue if one[0] > 0.0), key=lambda one: -one[0])
        said = []
        for late_s, one in late[:_MOST_HEADLINES]:
            cause, advice = self._held_up(one, now_s)
            text = f"{one.slo_class} of {one.model}: {one.held:,} held, the first {duration(late_s)} late: {cause}"
            said.append(_Headline(text, cause, advice))
        left_out = len(late) - len(said)
        return [*said, _Headline(f"{left_out} more groups are late")] if left_out else said

    def _held_up(self, group: Demand, now_s: float) -> tuple[str, str | None]:
        """Return why none of its requests is dispatched, by the rules of :meth:`Instances.choose` and by the plan.

        The second text is what an operator can do about it; ``None`` where the fleet is about to serve the group.
        """
        instances, model = self._parts.instances, group.model
        serving = instances.serving(model, now_s)
        if serving:
            full = sum(one.room <= 0 for one in serving)
            return f"{full} of {len(serving)} instances that serve it are full", _MORE if full == len(serving) else None
        ready_in_s = instances.ready_in_s(model, now_s)
        if ready_in_s is not None:
            return f"no instance serves it; one that switches to it is ready in {duration(ready_in_s)}", None
        if instances.state_of(model, now_s) == UNAVAILABLE:
            return "no responding instance has it", _ENGINE
        queues = instances.planned(model, group.slo_class)
        if not queues:
            none = "no instance serves it, and the plan has none for it"
            return none, _PLANNER if instances.plan is None else _MORE
        return f"no instance serves it yet; it is in the queue of {queues[0]}", None

    def _row(self, one: GatewayInstance, now_s: float, epoch_s: float) -> list[Any]:
        report, age_s = one.report, now_s - one.seen_s
        is_lost = age_s >= FRESH_S
        course = self._course(one, LOST if is_lost else report.phase.value, epoch_s)
        return [
            one.name.partition("/")[0],
            course.phase,
            course.model,
            round(course.since_s, 3),
            round(max(report.ready_in_s - age_s, 0.0), 1) if not is_lost else None,
            one.requests,
            report.streams,
            max(one.room, 0),
            sum(report.parked.values()),
            None if is_lost else round(age_s, 1),
        ]

    def _course(self, one: GatewayInstance, phase: str, epoch_s: float) -> _Course:
        model, before = one.report.active, self._courses.get(one.name)
        if before is not None and (before.phase, before.model) == (phase, model):
            return before
        leaves, began_s = (None, None) if before is None else (before.leaves, before.began_s)
        if phase in (Phase.DRAINING, Phase.SWITCHING) and began_s is None:
            leaves, began_s = None if before is None else before.model, epoch_s
        elif phase == Phase.SERVING:
            if began_s is not None:
                seconds = round(epoch_s - began_s, 1)
                switch = {"at_s": round(epoch_s, 3), "instance": one.name, "leaving": leaves, "coming": model}
                self._switches.append({**switch, "seconds": seconds})
            leaves, began_s = None, None
        course = self._courses[one.name] = _Course(phase, model, epoch_s, leaves, began_s)
        return course

    def _model(self, name: str, now_s: float) -> dict[str, Any]:
        instances = self._parts.instances
        ready_in_s = instances.ready_in_s(name, now_s)
        return {
            "state": instances.state_of(name, now_s),
            "serving": len(instances.serving(name, now_s)),
            "ready_in_s": None if ready_in_s is None else round(ready_in_s, 1),
        }


def _hosts(rows: dict[str, list[Any]]) -> dict[str, dict[str, int]]:
    """Count the instances of each host, and the ones of them that are lost."""
    found: dict[str, dict[str, int]] = {}
    for row in rows.values():
        host = found.setdefault(row[0], {"instances": 0, LOST: 0})
        host["instances"] += 1
        host[LOST] += row[1] == LOST
    return found


def _figures(of_class: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a class: its requests, burn rates and the state that follows from them."""
    burning = burn_rates(of_class["attained"], of_class["missed"])
    return {**of_class, "burn": burning, "state": state_of(0, burning, of_class["not_served"], of_class["missed"])}


def _missing(by_class: Mapping[str, Mapping[str, Any]]) -> list[_Headline]:
    """Return for each class that is not fine how it fares, the bad ones and the highest burn rate first."""
    wrong = [(name, one) for name, one in by_class.items() if one["state"] != FINE]
    wrong.sort(key=lambda one: (one[1]["state"] != BAD, -(one[1]["burn"][0] or 0.0)))
    fares = [(name, filter(None, (how_it_fares(one), _overdue(one["missed"])))) for name, one in wrong]
    return [_Headline(f"{name}: {'; '.join(parts)}") for name, parts in fares]


def _overdue(missed: int) -> str:
    return f"{missed:,} with a missed deadline" if missed else ""


def _silent(hosts: dict[str, dict[str, int]]) -> list[_Headline]:
    """Return a sentence that names the hosts with silent agents, if there are any."""
    lost = [name for name, host in hosts.items() if host[LOST]]
    more = f" and {len(lost) - _MOST_HEADLINES} more" if len(lost) > _MOST_HEADLINES else ""
    names = ", ".join(lost[:_MOST_HEADLINES])
    return [_Headline(f"hosts with silent agents: {names}{more}", advice=_AGENT)] if lost else []


PREFIX: Final = "/sloserve/"
EVENTS: Final = PREFIX + "events"
FILE: Final = PREFIX + "file"


class WatchRoutes:
    """ASGI app of the routes below :data:`PREFIX`.

    Args:
        key: Admin key.
        read: View of the fleet, called in the event loop.
        history: The load of the last ten minutes, called in the event loop; ``None`` for none.
        file: State of the fleet's file, called in the event loop; ``None`` where it is not read again.
    """

    def __init__(
        self,
        key: str,
        read: Callable[[], View],
        history: Callable[[], View] | None = None,
        file: Callable[[], View] | None = None,
    ) -> None:
        self._key, self._file = os.fsencode(key), file
        self._feed = LiveFeed(read, in_loop=True, history=history)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix(PREFIX)
        if await sent_page(scope, send, name, "gateway") or not await shows_admin_key(scope, send, self._key):
            return
        path = scope["path"]
        if path != EVENTS and (path != FILE or self._file is None):
            message = f"there is no such route; there is GET {EVENTS}"
            await refuse(send, HTTPStatus.NOT_FOUND, message, headers=[CLOSE])
        elif scope["method"] != "GET":
            headers = [("allow", "GET"), CLOSE]
            await refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, f"{path}: the method is GET", headers=headers)
        elif path == FILE and self._file is not None:
            await answer_json(send, HTTPStatus.OK, dict(self._file()))
        else:
            await self._feed.serve(receive, send)

    def close(self) -> None:
        """End the responses to all watchers, and take no more."""
        self._feed.close()
