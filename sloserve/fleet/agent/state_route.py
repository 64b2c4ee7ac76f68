"""``GET /state`` of an agent's endpoint: its report, at once or as soon as it differs from what a gateway has.

A gateway names the version that it has. The response comes when an instance has changed its phase, its model or the
size of its room, and otherwise after a moment if anything else has changed, as the load of an engine does with each
token. If nothing has changed until the end of the wait, the response has no body. Without a version it comes at once,
as older gateways expect it.

The state of the instances is looked at some times a second while anyone waits, once for all who do.
"""

import asyncio
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

import msgspec

from sloserve.fleet.contract.endpoint import KNOWN, VERSION_HEADER, WAIT_S, WAITED_HEADER
from sloserve.fleet.contract.reports import AgentReport, standing_of, to_json
from sloserve.wire.asgi import Send, answer_json

LOOK_S: Final = 0.025
"""Seconds between two looks at the instances while gateways wait for a change."""
DRIFT_S: Final = 0.2
"""Least seconds for which a gateway waits if only the load has changed: engines change it with each step."""
MOST_WAIT_S: Final = 2.0
"""Most seconds for which a gateway may wait; it gives an agent up that does not respond for longer."""
MOST_WAITING: Final = 256
"""Most gateways that wait at a time; others are answered at once, and ask again after a while."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a gateway has.

    Args:
        version: Version of the report that it has; empty for none.
        wait_s: Seconds for which it waits for another.
    """

    version: str
    wait_s: float

    @property
    def standing(self) -> str:
        """The part of the version that stands for phases, models and room."""
        return self.version.partition(".")[0]


class StateRoute:
    """Serves the report of an agent.

    Args:
        report: Report that is served.
        standing: Value that changes with the phase, the model or the size of the room of an instance; it is read many
            times a second. ``None`` to read it in reports.
    """

    def __init__(self, report: Callable[[], AgentReport], standing: Callable[[], Hashable] | None = None) -> None:
        self._report = report
        self._standing = standing or (lambda: tuple(map(standing_of, report().instances)))
        self._waiting = 0
        self._changed = asyncio.Event()
        """Event of the next change of ``standing``; each change has a new one."""
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """Respond at once, also to gateways that wait."""
        self._is_closed = True
        self._changed.set()

    async def answer(self, query: str, send: Send) -> None:
        """Answer a request with this query."""
        known = _known(query)
        if known is None or self._waiting >= MOST_WAITING or self._is_closed:
            await answer_json(send, HTTPStatus.OK, to_json(self._report()))
            return
        began_s = asyncio.get_running_loop().time()
        await self._wait(known)
        waited_s = asyncio.get_running_loop().time() - began_s
        report = self._report()
        version = self._version(report)
        headers = [(VERSION_HEADER, version), (WAITED_HEADER, f"{math.floor(waited_s * 1e4) / 1e4:.4f}")]
        if version == known.version:
            raw = [(name.encode(), value.encode()) for name, value in headers]
            await send({"type": "http.response.start", "status": HTTPStatus.NO_CONTENT.value, "headers": raw})
            await send({"type": "http.response.body", "body": b""})
        else:
            await answer_json(send, HTTPStatus.OK, to_json(report), headers)

    async def _wait(self, known: _Known) -> None:
        """Return once the report should be sent: it has changed, or the time is over."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + known.wait_s
        self._waiting += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            while known.standing == self._standing_version() and not self._is_closed:
                changed, left_s = self._changed, ends_s - loop.time()
                try:
                    async with asyncio.timeout(min(DRIFT_S, max(left_s, 0.0))):
                        await changed.wait()
                except TimeoutError:
                    if left_s <= DRIFT_S or known.version != self._version(self._report()):
                        return
        finally:
            self._waiting -= 1

    async def _look(self) -> None:
        """Look at the instances while anyone waits."""
        try:
            seen = self._standing()
            while self._waiting:
                await asyncio.sleep(LOOK_S)
                now = self._standing()
                if now != seen:
                    seen = now
                    self._changed.set()
                    self._changed = asyncio.Event()
        finally:
            self._looking = None

    def _version(self, report: AgentReport) -> str:
        """Return the version of a report. Versions are compared in the process that made them alone."""
        # Times that pass by themselves are no change.
        timeless = replace(report, instances=tuple(replace(one, active_for_s=None) for one in report.instances))
        return f"{self._standing_version()}.{hash(msgspec.json.encode(timeless)) & _MASK:x}"

    def _standing_version(self) -> str:
        return f"{hash(self._standing()) & _MASK:x}"


_MASK: Final = (1 << 64) - 1


def _known(query: str) -> _Known | None:
    """Read what a gateway has; ``None`` if it is an older one, or the query is none of the contract's."""
    stated: Mapping[str, list[str]] = parse_qs(query, keep_blank_values=True, max_num_fields=8) if query else {}
    if KNOWN not in stated or WAIT_S not in stated:
        return None
    try:
        wait_s = float(stated[WAIT_S][0])
    except ValueError:
        return None
    return _Known(stated[KNOWN][0], min(wait_s, MOST_WAIT_S)) if math.isfinite(wait_s) and wait_s >= 0.0 else None
