"""A server and a gateway as watchers see them: an overload in which urgent classes are late and batch is in time."""

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np

from sloserve.engine.metrics import load_history
from sloserve.engine.metrics.live_view import COLUMNS
from sloserve.engine.why import NEXT_STEP, PHASE_IN_WORDS, SAYS, RequestPhase, Why
from sloserve.fleet.gateway.fleet_view import COLUMNS as FLEET_COLUMNS
from sloserve.fleet.gateway.fleet_view import WatchRoutes
from sloserve.wire.asgi import Receive, Scope, Send, answer

KEY = "the-admin-key-canary"
EVIL = "<img src=x onerror=alert(1)>"
LONG = "organization/" + "a-name-as-long-as-any" * 3
LIVE = 1000
CROWD = 200
"""Instances."""
CHAT, SUMMARIES = "llama-3.3-70b", "mistral-small-24b"
"""Models of the fleet beside the second one of :class:`Names`."""
FLEET_HELD = 19


@dataclass(frozen=True, slots=True)
class Names:
    """Names that users choose: a model, a class, a second model, a policy, a tenant; and the words of an output."""

    model: str
    batch: str
    second: str
    policy: str
    tenant: str
    words: tuple[str, ...]


HOSTILE = Names(EVIL, EVIL, EVIL, EVIL, EVIL, tuple(EVIL if i == 3 else f" word{i}" for i in range(40)))
"""Names that become markup in a page that does not escape them."""

SENTENCES = (
    "The sea is never still. Wind raises the waves, the moon draws the tides, and slow currents carry warm water from "
    "the tropics towards the poles. What looks empty from a ship is full of life just below its surface."
)
PLAUSIBLE = Names(
    "llama-3-8b", "batch", "qwen2.5-coder-32b", "nosuch", "initech", tuple(f" {word}" for word in SENTENCES.split())
)
"""Names for the pictures of the documentation."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of requests in the overload.

    Args:
        wait_s: How long its requests wait, from and to.
        target_s: Seconds within which the first token is due.
    """

    wait_s: tuple[float, float]
    target_s: float


KINDS = (Kind((2.0, 30.0), 12.0), Kind((6.0, 75.0), 25.0), Kind((2.0, 50.0), 300.0))
ARRIVE_S = 0.4
"""Seconds between two requests that are drawn."""
DRAWN = 200
EPOCH_S = 1_764_295_200.0
FRAME_S = 0.5
"""Seconds between two frames."""
GIB = 1 << 30


class PlayedServer:
    """A server under an overload: 1,000 live requests, of which 200 are drawn, some late, paused and preempted.

    Priority and interactive requests wait too long for their first token, and batch requests are in time.
    """

    def __init__(self, names: Names = HOSTILE) -> None:
        self.names = names
        self.classes = ["priority", "interactive", names.batch]
        self.frames = 0
        self.routes = WatchRoutes(KEY, self.view, self.history)
        self.is_fleet = self.is_crowd = False
        self.fleet_frames = 0
        self.policy, self.shadow_policy = "edf", "auto"
        self.policy_change: dict[str, Any] | None = None
        self.changes: list[dict[str, Any]] = []
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        """Headers and bodies of requests for replies."""

    @property
    def now_s(self) -> float:
        return EPOCH_S + FRAME_S * self.frames

    def view(self) -> dict[str, Any]:
        self.frames += 1
        if self.is_fleet:
            return self._fleet(self.now_s)
        now_s = self.now_s
        rows = self._rows(now_s)
        wave = (self.frames % 40) / 40
        shadow = {"plans": 903, "errors": 0, "agreement": 0.7, "gain": 0.1}
        return {
            "at_s": now_s,
            "model": self.names.model,
            "server": {"version": "0.1.0", "vllm": "0.32.0", "started_s": EPOCH_S - 3 * 3600},
            "classes": self.classes,
            "columns": list(COLUMNS),
            "phases": [phase.name.lower() for phase in RequestPhase],
            "phases_say": list(PHASE_IN_WORDS),
            "reasons": [why.name.lower() for why in Why],
            "says": [SAYS[why] for why in Why],
            "near": [0, 32, 64],
            "spans_s": [60.0, 600.0],
            "levels": [0.5, 0.9, 0.99],
            "headlines": [
                "interactive: 51% of 212 in time within 60 s, 78% of 2,140 in time within 10 min; 43 with a missed "
                "deadline, 39 of them waiting: all places are taken: 190 of 190 requests run",
                "priority: 62% of 96 in time within 60 s, 91% of 970 in time within 10 min; 12 with a missed "
                "deadline, 11 of them waiting: all places are taken: 190 of 190 requests run",
            ],
            "causes": ["all places are taken: 190 of 190 requests run"] * 2,
            "alarms": [True, False],
            "advice": [NEXT_STEP[Why.PLACES]] * 2,
            "engines": [
                {"rank": 0, "policy": self.policy, "shadow_policy": self.shadow_policy or None, "plans_off": None,
                 "policy_change": self.policy_change,
                 "shadow": shadow if self.shadow_policy else None, "steps": self.frames, "plan_s": 0.0011, "live": LIVE,
                 "drawn": DRAWN, "frame_s": now_s, "held_up": [int(Why.PLACES), 190, 190],
                 "kv": {"used": 600 + int(300 * wave), "total": 1000,
                        "foreseen": {"mean": [600, 700, 750], "sigma": [0, 20, 40]}}},
            ],
            "tenants": self._tenants(wave) if self.frames > 1 else [],
            "more_tenants": 7,
            "tasks": self._tasks(now_s) if self.frames > 1 else [],
            "open_tasks": 9,
            "by_class": self._by_class(rows, now_s, wave),
            "load": dict(zip(load_history.ROW, self._sample(now_s - now_s % 5.0), strict=True)),
            "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_used_bytes": 74 * GIB, "memory_bytes": 80 * GIB,
                      "busy": 0.98, "power_w": 641.0, "joules": None}],
            "rows": rows,
        }  # fmt: skip

    def history(self) -> dict[str, Any]:
        """Return ten minutes, in which the overload begins after five."""
        last_s = self.now_s - self.now_s % 5.0
        sample = self._fleet_sample if self.is_fleet else self._sample
        return {"columns": list(load_history.ROW), "rows": [sample(last_s - 5.0 * i) for i in range(119, -1, -1)]}

    def _fleet_sample(self, at_s: float) -> list[Any]:
        """Return the load of the gateway, which knows nothing of engines' caches, steps and GPUs."""
        noise = np.random.default_rng(int(at_s))
        by_column: dict[str, Any] = dict.fromkeys(load_history.ROW) | {
            "at_s": at_s, "requests_per_s": round(float(noise.normal(14.2, 0.9)), 2), "refused_per_s": 0,
            "prompt_tokens_per_s": round(float(noise.normal(15_600.0, 1_100.0))),
            "output_tokens_per_s": round(float(noise.normal(4_100.0, 180.0))),
            "running": round(float(noise.normal(112.0, 4.0))), "waiting": max(round(float(noise.normal(17.0, 3.0))), 0),
            "attained": [],
        }  # fmt: skip
        return [by_column[name] for name in load_history.ROW]

    def _sample(self, at_s: float) -> list[Any]:
        noise = np.random.default_rng(int(at_s))
        over = min(max((at_s - EPOCH_S + 300.0) / 240.0, 0.0), 1.0)

        def about(value: float, digits: int = 2) -> float:
            return round(value * float(noise.uniform(0.96, 1.04)), digits)

        by_column = {
            "at_s": at_s, "requests_per_s": about(4.1 + 1.5 * over), "refused_per_s": 0,
            "prompt_tokens_per_s": round(about(4100 + 2900 * over)),
            "output_tokens_per_s": round(about(1900 + 900 * over)),
            "running": round(about(96 + 94 * over)) if over < 1.0 else 190, "waiting": round(about(810 * over**2)),
            "kv_used": about(0.42 + 0.5 * over, 3), "prefix_hit_share": about(0.36 - 0.12 * over, 3),
            "accepted_share": about(0.61, 3), "step_s": about(0.019 + 0.02 * over, 4),
            "gpu_busy": about(0.7 + 0.25 * over, 2), "power_w": round(about(455 + 190 * over)),
            "joules_per_good": about(112 + 120 * over, 1),
            "attained": [about(share, 3) - 0.04 for share in (0.98 - 0.36 * over, 0.97 - 0.46 * over**2, 0.99)],
        }  # fmt: skip
        return [by_column[name] for name in load_history.ROW]

    def _by_class(self, rows: dict[str, list[Any]], now_s: float, wave: float) -> dict[str, dict[str, Any]]:
        at = {name: COLUMNS.index(name) for name in ("class_id", "phase", "due_s", "missed")}
        latency = (
            {"ttft": [9.4, 29.8], "tpot": [0.038, 0.071], "e2e": [16.1, 41.0]},
            {"ttft": [24.213, 71.74], "tpot": [0.041, 0.082], "e2e": [38.4, 97.9]},
            {"ttft": [11.6, 49.4], "tpot": [0.0083, 0.061], "e2e": [41.0, 94.5]},
        )
        attained = (
            [[0.62, 96], [0.91, 970]],
            [[round(0.51 - 0.02 * wave, 4), 212], [0.78, 2140]],
            [[0.98, 50], [0.99, 500]],
        )
        good, low = [False] * 3, [False, True, True]
        band, few = [0.0335, 0.0201, 0.007], [0.0671, 0.0402, 0.0133]
        predicted: tuple[dict[str, Any], ...] = (
            {
                "ttft": {
                    "judged": 2000,
                    "within": [0.512, 0.893, 0.988],
                    "band": band,
                    "off": good,
                    "width": [2.1, 4.4],
                },
                "tpot": {
                    "judged": 2000,
                    "within": [0.485, 0.903, 0.991],
                    "band": band,
                    "off": good,
                    "width": [1.2, 1.6],
                },
                "e2e": {
                    "judged": 2000,
                    "within": [0.497, 0.908, 0.9925],
                    "band": band,
                    "off": good,
                    "width": [1.8, 2.9],
                },
            },
            {
                "ttft": {
                    "judged": 2000,
                    "within": [0.471, 0.852, 0.963],
                    "band": band,
                    "off": low,
                    "width": [2.6, 5.8],
                },
                "tpot": None,
                "e2e": {"judged": 2000, "within": [0.49, 0.889, 0.987], "band": band, "off": good, "width": [1.9, 3.4]},
            },
            {
                "ttft": {"judged": 500, "within": [0.54, 0.92, 0.996], "band": few, "off": good, "width": [3.1, 9.7]},
                "tpot": None,
                "e2e": None,
            },
        )
        counts_of = {
            "kept": 983,
            "broken": 9,
            "withdrawn": 8,
            "broken_share": 0.0091,
            "allowed_share": 0.01,
            "off": False,
        }
        late = {"kept": 371, "broken": 29, "withdrawn": 4, "broken_share": 0.0725, "allowed_share": 0.0112, "off": True}
        promises = (counts_of, late, None)
        found = {}
        for i, name in enumerate(self.classes):
            mine = [row for row in rows.values() if row[at["class_id"]] == i]
            counts = {phase.name.lower(): sum(row[at["phase"]] == phase for row in mine) for phase in RequestPhase}
            more = ({"waiting": 96, "decode": 30}, {"waiting": 480, "decode": 60}, {"waiting": 84, "decode": 50})[i]
            found[name] = {
                **counts,
                **{phase: counts[phase] + extra for phase, extra in more.items()},
                "late": (12, 43, 0)[i],
                "missed": (12, 43, 0)[i],
                "next_due_s": (now_s - 8.2, now_s - 41.5, now_s + 94.0)[i],
                "state": ("late", "bad", "fine")[i],
                "attained": attained[i],
                "burn": ([3.8, 0.9], [4.9, 2.2], [0.2, 0.1])[i],
                "latency_s": latency[i],
                "predicted": predicted[i],
                "promises": promises[i],
            }
        return found

    def _rows(self, now_s: float) -> dict[str, list[Any]]:
        """Return the requests that arrived last, each as its age makes it."""
        last = int((now_s - EPOCH_S) / ARRIVE_S) + DRAWN
        return dict(self._row(number, now_s) for number in range(last - DRAWN, last))

    def _tenants(self, wave: float) -> list[dict[str, Any]]:
        """Return three tenants, the first of which meets the smallest share of its targets while another is in debt."""
        low = {"attained": [[0.62, 90], [0.9, 900]], "state": "bad"}
        good = {"attained": [[0.98, 50], [0.99, 500]], "state": "fine"}
        in_debt = {"running": 90, "waiting": 380, "served": 0.71, "fair": 0.25, "debt_s": 11.8 + wave}
        owed = {"running": 12, "waiting": 6, "served": 0.12, "fair": 0.25, "debt_s": -3.1 - wave}
        return [
            {"name": "globex", "weight": 1.0, **in_debt, **low},
            {"name": "acme", "weight": 2.0, **owed, "fair": 0.5, "debt_s": -8.7, **good},
            {"name": self.names.tenant, "weight": 1.0, **owed, "attained": [[None, 0], [1.0, 20]], "state": "fine"},
        ]

    def _tasks(self, now_s: float) -> list[dict[str, Any]]:
        """Return a task that is late, one without a deadline, and one of which all calls have ended."""
        late = {
            "calls": 7,
            "expected": 12,
            "open": 1,
            "began_s": now_s - 95.0,
            "due_s": now_s - 5.0,
            "tools_s": 19.0,
            "engine_s": 21.4,
            "called": False,
        }
        idle = {
            "calls": 2,
            "expected": None,
            "open": 0,
            "began_s": now_s - 40.0,
            "due_s": None,
            "tools_s": 30.0,
            "called": False,
        }
        called = {**late, "expected": 7, "open": 0, "called": True}
        return [
            {"name": "3fa92c1b", "class": "interactive", **late},
            {"name": "00c1d2e3", "class": self.names.batch, **idle},
            {"name": "77aa0b1c", "class": "interactive", **called},
        ]

    def _fleet(self, now_s: float) -> dict[str, Any]:
        """Three hosts with two instances each, one host of which is silent; ten minutes pass in 120 frames.

        The first instance switches every two minutes, those of a crowd always. After ten minutes the second instance
        switches to the second model, for which requests are held.
        """
        self.fleet_frames += 1
        batch, second = self.names.batch, self.names.second
        now_s += 4.5 * self.fleet_frames
        turn, in_turn = divmod(self.fleet_frames, 24)
        phase, began = ("swapping", 0) if in_turn < 3 else ("serving", 3)
        running, room = (0, 0) if in_turn < 3 else (41, 7)
        first = [phase, (CHAT, second)[turn % 2], now_s - 5.0 * (in_turn - began), None, running, running, room, 3, 0.1]
        rows = {
            "h100-01/0": ["h100-01", *first],
            "h100-01/1": ["h100-01", *self._second_instance(now_s)],
            "h100-02/0": ["h100-02", "lost", CHAT, now_s - 95.0, None, 0, 0, 0, 0, None],
            "h100-02/1": ["h100-02", "lost", SUMMARIES, now_s - 95.0, None, 0, 0, 0, 0, None],
            "h100-03/0": ["h100-03", "serving", CHAT, now_s - 3240.0, None, 48, 48, 0, 0, 0.1],
            "h100-03/1": ["h100-03", "serving", SUMMARIES, now_s - 5760.0, None, 23, 23, 25, 0, 0.1],
        }
        for i in range(CROWD if self.is_crowd else 0):
            model = (CHAT, second)[self.fleet_frames % 2]
            rows[f"h100-04/{i}"] = ["h100-04", "serving", model, now_s, None, 1, 1, 1, 0, 0.1]
        group = {"held": 7, "oldest_s": 4.0, "first_due_in_s": -1.5, "rate_per_s": 2.4, "queues": ["h100-01/1"]}
        batches = {"held": 12, "oldest_s": 96.0, "first_due_in_s": 504.0, "rate_per_s": 1.1, "queues": ["h100-03/1"]}
        asked = {"held": 0, "oldest_s": 0.0, "first_due_in_s": None, "rate_per_s": 10.7, "queues": []}
        switches = ((40.0, "h100-01/0", second, CHAT, 15.0), (320.0, "h100-01/1", second, SUMMARIES, 14.2))
        models = {CHAT: {"state": "active"}, second: {"state": "coming"}, SUMMARIES: {"state": "active"}}
        groups = [
            {"model": second, "class": "interactive", **group}, {"model": SUMMARIES, "class": "batch", **batches},
            {"model": CHAT, "class": "interactive", **asked},
        ]  # fmt: skip
        if self.is_crowd:
            many = {"held": 12_345, "oldest_s": 7000.0, "first_due_in_s": -5999.0, "rate_per_s": 1234.5, "queues": []}
            groups += [{"model": LONG, "class": LONG, **many}]
            models[LONG] = {"state": "warm"}
        return {
            "at_s": now_s, "fleet": True, "classes": ["interactive", batch], "columns": list(FLEET_COLUMNS),
            "load": dict(zip(load_history.ROW, self._fleet_sample(self.now_s - self.now_s % 5.0), strict=True)),
            "spans_s": [60.0, 600.0],
            "headlines": [
                "interactive: 91% of 788 in time within 60 s, 94% of 1,000 in time within 10 min; 7 with a missed "
                "deadline",
                f"interactive of {second}: 7 held, the first 1.5 s late: no instance serves it; one that switches to "
                "it is ready in 4.0 s",
                "hosts with silent agents: h100-02",
            ],
            "causes": [None, "no instance serves it; one that switches to it is ready in 4.0 s", None],
            "advice": [None, None, "See whether these hosts are up, and start their agents again."],
            "by_class": {
                "interactive": {"attained": [[0.91, 788], [0.943, 1000]], "missed": 7, "state": "bad"},
                batch: {"attained": [[None, 0], [0.994, 178]], "missed": 0, "state": "fine"},
            },
            "models": models,
            "hosts": {},
            "groups": groups,
            "held": FLEET_HELD, "plan": None, "counts": {"models": 3, "groups": 3, "instances": len(rows)},
            "switches": [
                {"at_s": now_s - ago_s, "instance": name, "leaving": left, "coming": came, "seconds": took_s}
                for ago_s, name, left, came, took_s in reversed(switches)
            ],
            "rows": rows,
        }  # fmt: skip

    def _second_instance(self, now_s: float) -> list[Any]:
        """Return its row without the host: it serves the second model at first, then another, and switches back."""
        frame, second = self.fleet_frames, self.names.second
        if 16 <= frame < 84:
            return ["serving", second, now_s - 5.0 * (frame - 16), None, 39, 39, 9, 2, 0.1]
        if 84 <= frame < 118:
            return ["serving", SUMMARIES, now_s - 5.0 * (frame - 84), None, 12, 12, 36, 2, 0.1]
        return ["swapping", second, now_s - (5.0 * (frame - 118) if frame >= 118 else 20.0), 4.0, 0, 0, 0, 2, 0.1]

    def _row(self, number: int, now_s: float) -> tuple[str, list[Any]]:
        fate = np.random.default_rng(number)
        class_id, odd, prompt = (0, 1, 1, 1, 2, 2)[fate.integers(6)], fate.integers(12), int(fate.integers(80, 2400))
        kind, arrival_s = KINDS[class_id], EPOCH_S + ARRIVE_S * (number - DRAWN)
        age_s, wait_s = now_s - arrival_s, float(fate.uniform(*kind.wait_s))
        phase, since_s = RequestPhase.DECODE, arrival_s + wait_s + 1.0
        why: tuple[Why, float | None, float | None] = Why.NOTHING, None, None
        due_s: float | None = now_s + float(fate.uniform(0.05, 0.45))
        if age_s < wait_s:
            ahead = int(wait_s - age_s) * 9
            phase, since_s, due_s = RequestPhase.WAITING, arrival_s, arrival_s + kind.target_s
            why = (Why.CLASS, max(ahead // 2, 1), ahead) if class_id == 2 and ahead else (Why.PLACES, 190, 190)
            if due_s < now_s:
                why = (Why.GIVEN_UP, ahead, 190)
        elif age_s < wait_s + 1.0:
            phase, since_s = RequestPhase.PREFILL, arrival_s + wait_s
        elif odd == 0 and class_id == 2:
            phase, since_s, due_s = RequestPhase.PREEMPTED, arrival_s + wait_s + 3.0, arrival_s + kind.target_s
            why = (Why.PLAN, number + 31, 7.5)
        elif odd == 1:
            phase, why = RequestPhase.PAUSED, (Why.PAUSE, 12.5, None)
        values = {
            "class_id": class_id, "phase": int(phase), "since_s": since_s, "prompt_tokens": prompt,
            "arrival_s": arrival_s, "due_s": due_s,
            "computed_tokens": {RequestPhase.WAITING: 0, RequestPhase.PREFILL: prompt // 2}.get(phase, prompt),
            "output_tokens": max(int((age_s - wait_s - 1.0) * 20), 0),
            "preemptions": int(phase == RequestPhase.PREEMPTED),
            "ahead": why[2] or 0 if phase == RequestPhase.WAITING else -1,
            "why": int(why[0]), "figure": why[1], "of": why[2],
            "missed": int(min(age_s - FRAME_S, wait_s + 1.0) > kind.target_s),  # as of the frame before
        }  # fmt: skip
        return f"0-{number}", [values[name] for name in COLUMNS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/sloserve/policy":
            await self._change(scope, receive, send)
            return
        if scope["path"] == "/sloserve/explain":
            assert scope["method"] == "GET" and _headers(scope)["authorization"] == f"Bearer {KEY}"
            named = scope["query_string"].decode().removeprefix("request=")
            said = {"text": [f"request {named}: class {self.names.batch}", "  yes     under edf in place of fcfs"]}
            await answer(send, HTTPStatus.OK, json.dumps(said).encode(), "application/json")
            return
        if scope["path"] == "/v1/completions":
            await self._reply(scope, receive, send)
            return
        if scope["path"].startswith("/sloserve/"):
            await self.routes(scope, receive, send)
            return
        if scope["path"] == "/down":
            self.routes.close()
        elif scope["path"] == "/fleet":
            self.is_fleet = True
        elif scope["path"] == "/crowd":
            self.is_crowd = True
        elif scope["path"] == "/up":
            self.routes = WatchRoutes(KEY, self.view, self.history)
        await answer(send, HTTPStatus.OK, str(self.frames).encode(), "text/plain")

    async def _change(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As the admin route: one policy is unknown."""
        assert scope["method"] == "PUT" and _headers(scope)["authorization"] == f"Bearer {KEY}"
        change = await _body(receive)
        self.changes.append(change)
        if "nosuch" in change.values():
            error = {"error": {"message": f"unknown policy {self.names.policy}"}}
            await answer(send, HTTPStatus.BAD_REQUEST, json.dumps(error).encode(), "application/json")
            return
        before = self.policy
        if "undo" in change:
            assert self.policy_change is not None and change["undo"] == self.policy_change["id"]
            self.policy = self.policy_change["before"]
        else:
            self.policy, self.shadow_policy = change.get("policy", self.policy), change["shadow_policy"]
        if self.policy != before:
            by = f"{change.get('by', '')} from 10.0.0.7".strip()
            self.policy_change = {"id": f"change-{len(self.changes)}", "at_s": self.now_s, "by": by, "before": before}
        await answer(send, HTTPStatus.OK, b"[]", "application/json")

    async def _reply(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Thirty tokens at once, and ten after a pause, as of a request that was preempted."""
        self.asked.append((_headers(scope), await _body(receive)))
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
        await send(start)

        async def event(data: str, *, more: bool = True) -> None:
            body = f"data: {data}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": more})

        for i, word in enumerate(self.names.words):
            if i == 30:
                await asyncio.sleep(1.0)
            await event(json.dumps({"choices": [{"index": 0, "text": word}], "usage": {"completion_tokens": i + 1}}))
        told = {
            "class": "interactive", "outcome": "completed", "targets": {"ttft_ms": 500.0, "e2e_ms": 900.0},
            "achieved": {"ttft_ms": 12.5, "tpot_ms": 25.0, "e2e_ms": 1010.0}, "met": {"ttft": True, "e2e": False},
            "qoe": 1.0, "preempted_ms": 1000.0, "output_tokens": 40,
        }  # fmt: skip
        await event(json.dumps({"choices": [], "usage": {"completion_tokens": 40}, "slo": told}))
        await event("[DONE]", more=False)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in scope["headers"]}


async def _body(receive: Receive) -> dict[str, Any]:
    parts, more = b"", True
    while more:
        message = await receive()
        parts += message.get("body", b"")
        more = message.get("more_body", False)
    found: dict[str, Any] = json.loads(parts)
    return found
