"""The page in a real Chromium: no foreign request, no name of others becomes markup, it says why and survives.

Needs node, the packages of ``clients/page`` (``npm ci`` there) and a Chromium; skipped without.
``SLOSERVE_SCREENSHOTS=docs/images`` keeps the pictures, in which names are those of an ordinary deployment.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sloserve.engine.metrics.live_view import COLUMNS
from sloserve.engine.why import SAYS, Phase, Why
from sloserve.fleet.gateway.fleet_view import COLUMNS as FLEET_COLUMNS
from sloserve.fleet.gateway.fleet_view import WatchRoutes
from sloserve.wire import live_feed
from sloserve.wire.asgi import Receive, Scope, Send, answer
from sloserve.wire.watch_page import sent_signpost
from tests import bounded

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "clients" / "page"
BUILT = ROOT / "sloserve" / "wire" / "page"
KEY = "the-admin-key-canary"
EVIL = "<img src=x onerror=alert(1)>"
FRAMES = 600
LIVE = 1000
CROWD = 200
"""Instances."""


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
PLAUSIBLE = Names("llama-3-8b", "batch", "code", "nosuch", "initech", tuple(f" {word}" for word in SENTENCES.split()))
"""Names for the pictures of the documentation."""


class PlayedServer:
    """A server at work: 1,000 live requests, of which 200 are drawn, some late, paused and preempted."""

    def __init__(self, names: Names = HOSTILE) -> None:
        self.names = names
        self.frames = 0
        self.routes = WatchRoutes(KEY, self.view)
        self.is_fleet = self.is_crowd = False
        self.fleet_frames = 0
        self.policy, self.shadow_policy = "edf", "auto"
        self.changes: list[dict[str, Any]] = []
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        """Headers and bodies of requests for replies."""

    def view(self) -> dict[str, Any]:
        self.frames += 1
        now_s = 1_700_000_000.0 + 0.5 * self.frames
        if self.is_fleet:
            return self._fleet(now_s)
        counts = {phase.name.lower(): 0 for phase in Phase} | {"decode": 120, "waiting": 400, "paused": 10}
        one = {
            **counts,
            "preempted": 10,
            "late": 4,
            "next_due_s": now_s - 3.5,
            "state": "bad",
        }
        one["latency_s"] = {"ttft": [0.213, 1.74], "tpot": [0.0061, 0.042], "e2e": [8.4, 31.9]}
        calm = {
            **one,
            "late": 0,
            "next_due_s": now_s + 20.0,
            "state": "fine",
            "decode": 60,
            "paused": 0,
            "preempted": 0,
        }
        calm["latency_s"] = {"ttft": [2.6, 9.4], "tpot": [0.0083, 0.061], "e2e": [21.0, 74.5]}
        wave = (self.frames % 40) / 40
        shadow = {"plans": 9, "errors": 0, "agreement": 0.7, "gain": 0.1}
        return {
            "at_s": now_s,
            "model": self.names.model,
            "classes": ["interactive", self.names.batch],
            "columns": list(COLUMNS),
            "phases": [phase.name.lower() for phase in Phase],
            "reasons": [why.name.lower() for why in Why],
            "says": [SAYS[why] for why in Why],
            "near": [0, 32, 64],
            "spans_s": [60.0, 600.0],
            "headlines": ["interactive: 4 late, 3 of them waiting: it needs 12 KV blocks, and 4 are free"],
            "alarms": [True],
            "engines": [
                {"rank": 0, "policy": self.policy, "shadow_policy": self.shadow_policy or None, "plans_off": None,
                 "shadow": shadow if self.shadow_policy else None, "steps": self.frames, "plan_s": 0.0011, "live": LIVE,
                 "drawn": 200, "frame_s": now_s, "held_up": [int(Why.BLOCKS), 12, 4],
                 "kv": {"used": 600 + int(300 * wave), "total": 1000,
                        "foreseen": {"mean": [600, 700, 750], "sigma": [0, 20, 40]}}},
            ],
            "tenants": self._tenants(wave) if self.frames > 1 else [],
            "more_tenants": 7,
            "tasks": self._tasks(now_s) if self.frames > 1 else [],
            "open_tasks": 9,
            "by_class": {"interactive": {**one, "attained": [[0.8 - 0.3 * wave, 200], [0.9, 2000]]},
                         self.names.batch: {**calm, "attained": [[0.97, 50], [0.99, 500]]}},
            "rows": dict(self._row(i + self.frames // 40, i, now_s) for i in range(200)),
        }  # fmt: skip

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
        """Return a task that is late, and one without a deadline."""
        late = {"calls": 7, "expected": 12, "open": 1, "began_s": now_s - 95.0, "due_s": now_s - 5.0, "tools_s": 19.0}
        idle = {"calls": 2, "expected": None, "open": 0, "began_s": now_s - 40.0, "due_s": None, "tools_s": 30.0}
        return [
            {"name": "3fa92c1b", "class": "interactive", **late},
            {"name": "00c1d2e3", "class": self.names.batch, **idle},
        ]

    def _fleet(self, now_s: float) -> dict[str, Any]:
        """Ten minutes pass in 120 frames; the first instance switches every two minutes, those of a crowd always."""
        self.fleet_frames += 1
        batch, second = self.names.batch, self.names.second
        now_s += 4.5 * self.fleet_frames
        since_s = now_s - 90.0
        turn, in_turn = divmod(self.fleet_frames, 24)
        phase, began = ("swapping", 0) if in_turn < 3 else ("serving", 3)
        first = [phase, ("chat", second)[turn % 2], now_s - 5.0 * (in_turn - began)]
        rows = {
            "node-a/0": ["node-a", *first, None, 12, 12, 20, 0, 0.1],
            "node-a/1": ["node-a", "swapping", second, now_s - 60.0, 4.0, 0, 0, 0, 2, 0.1],
            "node-b/0": ["node-b", "lost", "chat", since_s, None, 0, 0, 0, 0, None],
        }
        for i in range(CROWD if self.is_crowd else 0):
            model = ("chat", second)[self.fleet_frames % 2]
            rows[f"node-c/{i}"] = ["node-c", "serving", model, now_s, None, 1, 1, 1, 0, 0.1]
        group = {"held": 7, "oldest_s": 4.0, "first_due_in_s": -1.5, "rate_per_s": 2.0, "queues": ["node-a/1"]}
        switch = {"at_s": now_s - 40.0, "instance": "node-a/0", "leaving": second, "coming": "chat", "seconds": 6.5}
        return {
            "at_s": now_s, "fleet": True, "classes": ["interactive", batch], "columns": list(FLEET_COLUMNS),
            "spans_s": [60.0, 600.0],
            "headlines": [
                f"interactive of {second}: 7 held, the first 1.5 s late: no instance serves it; one that switches to "
                "it is ready in 4.0 s",
                "hosts with silent agents: node-b",
            ],
            "by_class": {"interactive": {"attained": [[0.6, 50], [0.95, 500]]}, batch: {"attained": [[None, 0]] * 2}},
            "models": {"chat": {"state": "ready"}, second: {"state": "coming"}}, "hosts": {},
            "groups": [{"model": second, "class": "interactive", **group}], "held": 7, "plan": None,
            "counts": {"models": 2, "groups": 1, "instances": len(rows)},
            "switches": [switch], "rows": rows,
        }  # fmt: skip

    def _row(self, number: int, place: int, now_s: float) -> tuple[str, list[Any]]:
        phase, why = Phase.DECODE, (Why.NOTHING, None, None)
        if place >= 120 or place % 4 == 3:
            phase = Phase.WAITING
        elif place % 10 == 1:
            phase, why = Phase.PAUSED, (Why.PAUSE, 12.5, None)
        elif place % 10 == 2:
            phase, why = Phase.PREEMPTED, (Why.PLAN, number - 1, 7.5)
        values = {
            "class_id": place % 3 == 0, "phase": int(phase), "since_s": now_s - place / 5, "prompt_tokens": 500,
            "arrival_s": now_s - place / 4 - 1, "due_s": now_s - 3.5 + place, "computed_tokens": 500,
            "output_tokens": 40, "preemptions": 0, "ahead": place // 4 if phase == Phase.WAITING else -1,
            "why": int(why[0]), "figure": why[1], "of": why[2],
        }  # fmt: skip
        return f"0-{number}", [int(v) if isinstance(v, bool) else v for v in (values[name] for name in COLUMNS)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/sloserve/policy":
            await self._change(scope, receive, send)
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
            self.routes = WatchRoutes(KEY, self.view)
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
        self.policy, self.shadow_policy = change.get("policy", self.policy), change["shadow_policy"]
        await answer(send, HTTPStatus.OK, b"[]", "application/json")

    async def _reply(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Thirty tokens at once, and ten after a pause, as of a request that was preempted."""
        self.asked.append((_headers(scope), await _body(receive)))
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
        await send(start)  # type: ignore[arg-type]

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


def test_built_files_are_those_that_the_hashes_name() -> None:
    for line in (BUILT / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((BUILT / name).read_bytes()).hexdigest() == digest, name
    assert (
        "uPlot" in (BUILT / "LICENSES.txt").read_text()
        and "Permission is hereby granted" in (BUILT / "LICENSES.txt").read_text()
    )


def test_files_are_sent_without_a_key_and_hold_no_paths_of_requests() -> None:
    async def asked(path: str, method: str = "GET") -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(dict(message))

        async def receive() -> Any:
            raise AssertionError("nothing of a request is read")

        scope = {"type": "http", "method": method, "path": path, "headers": []}
        await PlayedServer().routes(scope, receive, send)
        return sent

    for path in ("/sloserve/", "/sloserve/page.js", "/sloserve/page.css"):
        start, body = bounded.run(asked(path))
        policy = dict(start["headers"])[b"content-security-policy"]
        assert start["status"] == 200 and body["body"] and policy.startswith(b"default-src 'none'; script-src 'self'")
    for path in ("/sloserve/SHA256SUMS", "/sloserve/../asgi.py", "/sloserve//etc/passwd", "/sloserve/page/page.js"):
        assert bounded.run(asked(path))[0]["status"] == 401
    assert bounded.run(asked("/sloserve/", "POST"))[0]["status"] == 401


def test_the_root_says_where_the_page_is_and_takes_no_other_route() -> None:
    async def asked(path: str, method: str = "GET", root: str = "", *, watched: bool = True) -> tuple[bool, str]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "root_path": root, "headers": []}
        done = await sent_signpost(scope, send, "a server", watched=watched)
        assert done == bool(sent)
        return done, sent[1]["body"].decode() if sent else ""

    assert "/sloserve/" in bounded.run(asked("/"))[1]
    assert "/prefix/sloserve/" in bounded.run(asked("/prefix/", root="/prefix"))[1]
    unwatched = bounded.run(asked("/", watched=False))[1]
    assert "SLOSERVE_ADMIN_KEY" in unwatched and "/sloserve/" not in unwatched
    for path, method in (("/v1/models", "GET"), ("/", "POST"), ("//", "GET"), ("/sloserve", "GET")):
        assert bounded.run(asked(path, method)) == (False, "")


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    node = shutil.which("node")
    if chromium is None or node is None or not (PAGE / "node_modules" / "playwright-core").is_dir():
        pytest.skip("needs node, chromium and `npm ci` in clients/page")
    monkeypatch.setattr(live_feed, "EVERY_S", 0.05)
    keeps = os.environ.get("SLOSERVE_SCREENSHOTS")
    folder = ROOT / keeps if keeps else tmp_path
    folder.mkdir(exist_ok=True)

    names = PLAUSIBLE if keeps else HOSTILE
    played = PlayedServer(names)

    async def driven() -> dict[str, Any]:
        server = uvicorn.Server(uvicorn.Config(played, port=0, log_level="error", lifespan="off", ws="none"))
        with contextlib.closing(server.config.bind_socket()) as listening:
            port = listening.getsockname()[1]
            serving = asyncio.create_task(server.serve([listening]))
            command = [node, "test/drive.mjs", chromium, f"http://127.0.0.1:{port}/sloserve/", KEY, str(FRAMES), folder]
            done = await asyncio.to_thread(
                subprocess.run, command, cwd=PAGE, capture_output=True, text=True, timeout=240, check=False
            )
            server.should_exit = server.force_exit = True
            await serving
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**found, "port": port}

    found = bounded.run(driven())
    print({name: found[name] for name in ("heap", "tasks", "long", "axe", "why", "overflow", "lanes", "fleetHeap")})
    assert found["errors"] == [] and not found["formIsSeen"] and "refused" in found["refused"]
    assert {request.split("/")[2] for request in found["requests"]} == {f"127.0.0.1:{found['port']}"}
    assert found["images"] == 0 and names.model in found["text"]
    assert found["first"] == "interactive: 4 late, 3 of them waiting: it needs 12 KV blocks, and 4 are free"
    assert found["text"].count("and 4 are free") == 1, "no sentence stands twice"
    assert all(took in found["text"] for took in ("0.21, 1.7 s", "6.1, 42 ms", "8.4, 32 s"))
    # Tenants are there once there are two, names stay text, and the one that fares worst is marked.
    first, second, third = found["tenants"]
    assert first[:6] == ["globex", "1", "90", "380", "71 %", "25 %"] and first[7:] == ["62 % of 90", "90 % of 900"]
    assert second[:7] == ["acme", "2", "12", "6", "12 %", "50 %", "-8.7 s"] and third[0] == names.tenant
    assert re.fullmatch(r"\+1[12]\.\d s", first[6]) and third[7:] == ["", "100 % of 20"]
    assert found["badTenants"] == ["62 % of 90"] and found["moreTenants"] == "7 more tenants"
    late, idle = found["openTasks"]
    assert late == ["3fa92c1b", "interactive", "7 of 12", "1", "95 s", "5.0 s late", "20 %"]
    assert idle[2:] == ["2", "0", "40 s", "", "75 %"] and idle[1] == names.batch
    assert found["lateTasks"] == ["5.0 s late"] and found["moreTasks"] == "7 more tasks"
    assert found["whyIsSeen"] and "late" in found["why"] and "Request 0-" in found["why"]
    assert KEY not in found["stored"] + found["address"] and not any(KEY in one for one in found["requests"])
    assert found["stored"] == '[{},{},""]'
    assert found["heap"][1] < found["heap"][0] * 1.25
    assert found["tasks"] > FRAMES and max(found["long"], default=0.0) < 50.0, found["long"]
    assert found["overflow"] <= 0
    assert [one for one in found["axe"] if one[0] in ("serious", "critical")] == []
    assert found["lost"].startswith("Lost") and found["back"].startswith("Live")
    # After a reload the key is asked for again; a fleet has its own page.
    assert found["asksAgain"] and found["images"] == 0 and names.second in found["fleet"]
    assert found["fleetFirst"].startswith(
        f"interactive of {names.second}: 7 held, the first 1.5 s late: no instance serves it"
    )
    # Which model each instance held over the last ten minutes; what is older is forgotten.
    first, coming, lost = (lane.split() for lane in found["lanes"])
    assert set(first) == {"chat", "other"} and len(first) >= 5, "a bar for each time between two switches"
    assert set(coming) == {"other", "bare"} and coming.count("other") > 5, "it is hatched while the model comes"
    assert "bad" in lost and not {"chat", "other"} & set(lost)
    assert found["fleetHeap"][1] < found["fleetHeap"][0] * 1.1
    assert "60 % of 50" in found["fleet"] and "1.5 s late" in found["fleet"] and found["fleetCanTry"]
    # A policy is tried as shadow, its verdict is read, and then it decides.
    assert " 10.0 points more" in found["verdict"]
    assert "as edf in 70.0 %" in found["verdict"] and found["changeIs"] == ["Change to auto", "Change to sjf", True]
    assert f"Refused: unknown policy {names.policy}." in found["unknown"]
    nosuch, sjf = {"shadow_policy": "nosuch"}, {"shadow_policy": "sjf"}
    assert played.changes == [nosuch, sjf, {"policy": "sjf", "shadow_policy": ""}]
    # A reply is digested at its reader's pace, however it comes, and the server's report stands beside it.
    (headers, body), *_ = played.asked
    assert KEY not in str(played.asked) and headers["authorization"] == "Bearer user-key-canary"
    slo = {name: value for name, value in headers.items() if name.startswith("x-slo-")}
    wanted = {"x-slo-report": "1", "x-slo-class": "interactive", "x-slo-ttft-ms": "500", "x-slo-e2e-ms": "900"}
    assert slo == {**wanted, "x-slo-tds": "20"}
    assert body["prompt"] == "the sea" and body["max_tokens"] == 128 and body["stream"]
    assert found["early"][0] > found["early"][1] > 0, "tokens wait in the buffer"
    assert "40 tokens" in found["read"] and "QoE 1.000 as they arrived here" in found["read"]
    assert found["reply"] == "".join(names.words)
    assert "missed" in found["report"] and "1010" in found["report"]
    assert "user-key-canary" not in found["stored"]
