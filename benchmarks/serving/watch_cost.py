"""What do watchers of the live feed cost the engine's steps and the API process, and how long are its frames?

Usage: python -m benchmarks.serving.watch_cost [--quick] [--policies NAME ...]

A virtual engine is held at so many requests, of which half run, as held_engine says; it makes steps without watchers
and with three, in turns of as many steps. Timed is thread CPU time, with caches filled with other data between steps.
Time of a watched engine is virtual, so that it shows two frames a second of the time that its steps take on the
profile's device; what a frame takes is shared by the steps between two. Twenty tenants share the engine. The API
process's part is real: it reads the engine's page, its own full windows, its load and 200 open tasks, works out what
has changed and writes a frame for all of its watchers. Two costs of its own are timed beside it: ten minutes of history
for a watcher that connects, and a sample of the load every five seconds. Writes results/watch_cost.json.gz.
"""

import itertools
import json
import logging
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.serving.held_engine import WARM_UP, Stopwatch, engine_of, hold, requests_to_come
from benchmarks.serving.watched_front_end import FrontEnd
from sloserve.engine.metrics.engine_page import PageWriter
from sloserve.engine.metrics.live_page import FRAME_EVERY_S, LiveWriter, find_live_pages
from sloserve.wire.live_feed import changes, fitted, frame, recent

POLICIES = ("fcfs", "edf", "auto")
REQUESTS = (500, 2000)
WATCHERS = 3
TENANTS = 20
"""As many as a view names."""
STEPS, TURN = 1200, 100
"""Timed in all, and in a row with or without watchers."""

FOUND = ("vllm", "watched", "held_up", "frame", "lasts", "reading", "snapshot", "change")
"""Seconds of thread CPU time: of vLLM's part of each step; of all that watching adds to each watched step, what of it
comes before the device has its step, and the frames among it; of the API process's readings. How long watched steps
last on the device. Bytes of frames.
"""


class _Server:
    """One engine that is held at so many requests, and the view that an API process has of it."""

    def __init__(self, policy: str, requests: int, folder: Path) -> None:
        self.engine = engine_of(policy, requests // 2, tenant_shares={"half_life_s": 30})
        self.requests, self.clock = requests, Stopwatch()
        scheduler = self.engine.scheduler
        names = scheduler._settings.classes.names
        scheduler._stats.publish_on(PageWriter(names, 0, folder, tenant_rows=scheduler._tenant_rows.size))
        scheduler.show_on(LiveWriter(len(names), 0, folder))
        self._time(scheduler)
        self.pages = [page for _ in range(WATCHERS) for page in find_live_pages(folder)]
        self.front_end = FrontEnd(names, self.engine._clock, folder)
        self.view = self.front_end.view

    def _time(self, scheduler: Any) -> None:
        watched = scheduler._observers.watched
        self.is_due = watched.is_due
        self.scheduling = False
        shows = self.clock.times("frame", watched.write)

        def write(*step: Any) -> None:
            before_s = self.clock.spent["frame"]
            shows(*step)
            if self.scheduling:
                self.clock.spent["held_up"] += self.clock.spent["frame"] - before_s

        def schedule(*args: Any, **kwargs: Any) -> Any:
            self.scheduling = True
            try:
                return scheduled(*args, **kwargs)
            finally:
                self.scheduling = False

        watched.write = write
        for name in ("preempting", "preempted"):
            setattr(watched, name, self.clock.times("noted", getattr(watched, name)))
        self.clock.times_vllm()
        for name in ("schedule", "update_from_output"):
            setattr(scheduler, name, self.clock.times("ours", getattr(scheduler, name)))
        scheduled = scheduler.schedule
        scheduler.schedule = schedule

    def asking_us(self) -> float:
        """What a step without watchers costs: to find that there is none."""
        times = 10_000
        return min(timeit.repeat(lambda: self.is_due(1e9), number=times, repeat=5)) / times * 1e6

    def api_costs(self) -> dict[str, Any]:
        """What the API process does beside frames, and how much of each part a view has."""
        front_end, view = self.front_end, self.view.read()
        return {
            "tenants": len(view["tenants"]),
            "tasks": len(view["tasks"]),
            "history_rows": len(recent(front_end.history())["rows"]),
            "history_us": round(self.once_us(lambda: recent(front_end.history())), 1),
            "sample_us": round(self.once_us(front_end.sampler.sample), 1),
        }

    def once_us(self, call: Callable[[], Any]) -> float:
        """Microseconds of thread CPU time of one call, the median of twenty."""
        took = []
        for _ in range(20):
            began = time.thread_time()
            call()
            took.append(time.thread_time() - began)
        return float(np.median(took)) * 1e6

    def measure(self, steps: int, turn: int) -> dict[str, list[float]]:
        """Seconds of the steps and of the frames, and bytes of the frames."""
        engine, clock = self.engine, self.clock
        found: dict[str, list[float]] = {name: [] for name in FOUND}
        shown, read_s = None, 0.0
        before_s = engine._clock.monotonic_s()

        def stepped(number: int) -> None:
            nonlocal shown, read_s, before_s
            now_s = engine._clock.monotonic_s()
            is_watched = (number + WARM_UP) // turn % 2 == 1
            if number >= 0:
                found["vllm"].append(clock.spent["vllm"])
                if is_watched:
                    found["watched"].append(clock.spent["frame"] + clock.spent["noted"])
                    found["held_up"].append(clock.spent["held_up"] + clock.spent["noted"])
                    found["lasts"].append(now_s - before_s)
                if clock.spent["frame"]:
                    found["frame"].append(clock.spent["frame"])
            before_s = now_s
            if is_watched and now_s >= read_s:
                read_s = now_s + FRAME_EVERY_S
                for page in self.pages:
                    page.watch(now_s)
                began = time.thread_time()
                view = fitted(self.view.read())
                sent = frame("change", changes(shown, view)) if shown else frame("snapshot", view)
                found["reading"].append(time.thread_time() - began)
                if view["rows"]:
                    found["change" if shown else "snapshot"].append(len(sent))
                shown = view if view["rows"] else None
            elif not is_watched:
                shown = None
                for page in self.pages:  # those that watched have left
                    page._memory.floats[0] = 0.0

        hold(engine, clock, _of_tenants(requests_to_come(self.requests * 60, 0)), self.requests, steps, stepped)
        return found


def _of_tenants(coming: Iterator[Any]) -> Iterator[Any]:
    return (replace(request, tenant=f"tenant-{i % TENANTS}") for i, request in enumerate(coming))


def row_of(policy: str, requests: int, asking_us: float, found: dict[str, list[float]]) -> dict[str, Any]:
    vllm_s, watched_s, held_up_s = (float(np.mean(found[what])) for what in ("vllm", "watched", "held_up"))
    return {
        "policy": policy,
        "requests": requests,
        "steps": len(found["vllm"]),
        "vllm_us": round(vllm_s * 1e6, 1),
        "no_watcher_us": round(asking_us, 3),
        "no_watcher_share_of_vllm": round(asking_us / 1e6 / vllm_s, 5),
        "watched_us": round(watched_s * 1e6, 1),
        "watched_share_of_vllm": round(watched_s / vllm_s, 4),
        "held_up_us": round(held_up_s * 1e6, 2),
        "held_up_share_of_vllm": round(held_up_s / vllm_s, 6),
        "watched_share_of_step": round(watched_s / float(np.mean(found["lasts"])), 5),
        "frames": len(found["frame"]),
        "frame_us_median": round(float(np.median(found["frame"])) * 1e6, 1),
        "reading_us_median": round(float(np.median(found["reading"])) * 1e6, 1),
        "snapshot_bytes": int(np.median(found["snapshot"])),
        "change_bytes_median": int(np.median(found["change"])),
        "change_bytes_most": int(max(found["change"])),
    }


def main() -> None:
    parser = parser_for(__doc__, quick=False)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    given = parser.parse_args()
    logging.getLogger("vllm").setLevel(logging.ERROR)
    sizes, steps, turn = ((100,), 240, 60) if given.quick else (REQUESTS, STEPS, TURN)
    rows = []
    for requests, policy in itertools.product(sizes, given.policies):
        with tempfile.TemporaryDirectory() as folder:
            server = _Server(policy, requests, Path(folder))
            found = server.measure(steps, turn)
            rows.append(row_of(policy, requests, server.asking_us(), found) | server.api_costs())
        print(json.dumps(rows[-1]), flush=True)
    if not given.quick:
        write_result(
            RESULTS / "watch_cost.json.gz", {"watchers": WATCHERS, "frames_per_s": 1 / FRAME_EVERY_S, "rows": rows}
        )


if __name__ == "__main__":
    main()
