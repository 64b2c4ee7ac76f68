"""The page in a real Chromium: no foreign request, no name of others becomes markup, it says why and survives.

Needs node, the packages of ``clients/page`` (``npm ci`` there) and a Chromium; skipped without.
``SLOSERVE_SCREENSHOTS=docs/images`` keeps the picture of a fleet's page, in which names are those of an ordinary
deployment; the pictures of a server's page are those of a real one (``benchmarks.serving.watch_pictures``).
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sloserve.engine.why import NEXT_STEP, Why
from sloserve.wire import live_feed
from sloserve.wire.watch_page import sent_signpost
from tests import bounded
from tests.wire.played_server import HOSTILE, KEY, PLAUSIBLE, PlayedServer

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "clients" / "page"
BUILT = ROOT / "sloserve" / "wire" / "page"
FRAMES = 600
LONG_TASK_MS = 50.0
"""Processor time from which on a browser calls a task long."""


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
    start, body = bounded.run(asked("/sloserve/about.json"))
    assert start["status"] == 200 and json.loads(body["body"]) == {"what": "gateway"}
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


def test_the_page_makes_no_formatter_for_each_figure() -> None:
    """``toLocaleString`` looks for a formatter at each call, which took a third of the page's time."""
    sources = list((PAGE / "src").glob("*.ts"))
    assert sources and [one.name for one in sources if ".toLocale" in one.read_text()] == []


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    node = shutil.which("node")
    if chromium is None or node is None or not (PAGE / "node_modules" / "playwright-core").is_dir():
        pytest.skip("needs node, chromium and `npm ci` in clients/page")
    monkeypatch.setattr(live_feed, "EVERY_S", 0.05)
    keeps = os.environ.get("SLOSERVE_SCREENSHOTS")
    names = PLAUSIBLE if keeps else HOSTILE
    played = PlayedServer(names)

    async def driven() -> dict[str, Any]:
        server = uvicorn.Server(uvicorn.Config(played, port=0, log_level="error", lifespan="off", ws="none"))
        with contextlib.closing(server.config.bind_socket()) as listening:
            port = listening.getsockname()[1]
            serving = asyncio.create_task(server.serve([listening]))
            command = [
                node,
                "test/drive.mjs",
                chromium,
                f"http://127.0.0.1:{port}/sloserve/",
                KEY,
                str(FRAMES),
                str(tmp_path),
            ]
            done = await asyncio.to_thread(
                subprocess.run, command, cwd=PAGE, capture_output=True, text=True, timeout=240, check=False
            )
            server.should_exit = server.force_exit = True
            await serving
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**found, "port": port}

    found = bounded.run(driven())
    if keeps:
        shutil.copy(tmp_path / "watch-fleet.png", ROOT / keeps)
    shown = "heap", "tasks", "longest", "axe", "why", "overflow", "lanes", "fleetHeap", "inked", "scrolls"
    print({name: found[name] for name in shown})
    assert found["errors"] == [] and not found["formIsSeen"] and "refused" in found["refused"]
    assert {request.split("/")[2] for request in found["requests"]} == {f"127.0.0.1:{found['port']}"}
    assert found["images"] == 0 and names.model in found["text"]
    # The form says which server this is, which key it wants, and where that is.
    assert "This is the sloserve gateway at 127.0.0.1" in found["form"] and "SLOSERVE_ADMIN_KEY" in found["form"]
    # The class, the cause and the next step come first; a cause stands on a line of its own.
    assert found["first"].startswith("interactive: 51% of 212 in time") and "39 of them waitingCause:" in found["first"]
    assert f"Next step: {NEXT_STEP[Why.PLACES]}" in found["first"] and found["title"].startswith("! interactive – ")
    assert found["text"].count("all places are taken") == 1, "what a headline says stands nowhere again"
    assert found["first"].endswith("11 of them waitingCause and next step: as above.")
    head, priority, interactive, batch = found["classes"]
    assert head == [
        "class", "in time, 1 min", "10 min", "late", "next due, s", "TTFT p50 · 99, s", "TPOT p50 · 99, ms",
        "e2e p50 · 99, s", "waiting", "in prefill", "decoding", "paused", "preempted",
    ]  # fmt: skip
    assert priority[:5] == ["priority", "62 % of 96", "91 %", "12", "8.2 late"]
    assert interactive[5:8] == ["24.2 · 71.7", "41.0 · 82.0", "38.4 · 97.9"] and interactive[4] == "41.5 late"
    assert batch[0] == names.batch and batch[3:7] == ["0", "94.0", "11.6 · 49.4", "8.3 · 61.0"]
    assert "sloserve 0.1.0, vLLM 0.32.0 · up 3.0 h" in found["about"]
    # Ten minutes of load are there at once, in figures and in charts.
    assert [name for name, *_ in found["tiles"]] == [
        "Requests ended/s", "Output tokens/s", "Prompt tokens/s", "Running", "Queue", "KV cache used",
        "Prefix cache hits", "Drafts accepted", "Step, ms", "GPU busy", "Power, W", "J per good request",
    ]  # fmt: skip
    assert all(value for _, value, _ in found["tiles"]) and found["tiles"][5][2] == "→ 75 ± 4 %"
    assert min(found["inked"]) > 0.6, found["inked"]
    assert found["gpus"][1] == ["0 NVIDIA H100 80GB HBM3", "98 %", "74.0", "80.0", "641"]
    # Tenants are there once there are two, names stay text, and the one that fares worst is marked.
    first, second, third = found["tenants"]
    assert first[:7] == ["globex", "62 % of 90", "90 %", "1", "90", "380", "71 of 25 %"]
    assert second == ["acme", "98 % of 50", "99 %", "2", "12", "6", "12 of 50 %", "-8.7"] and third[0] == names.tenant
    assert re.fullmatch(r"\+1[12]\.\d", first[7]) and third[1:3] == ["–", "100 %"]
    assert found["badTenants"] == ["62 % of 90"] and found["moreTenants"] == "7 more tenants"
    late, idle, called = found["openTasks"]
    assert late == ["3fa92c1b", "interactive", "5.00 late", "7 of 12", "1", "95.0", "20 %", "21.4"]
    assert (
        idle[2:] == ["", "2", "0", "40.0", "75 %", "0.0"]
        and called[2:4] == ["called", "7 of 7"]
        and idle[1] == names.batch
    )
    assert found["lateTasks"] == ["5.00 late"] and found["moreTasks"] == "6 more tasks"
    # Shares within predicted quantiles stand beside their bands; the ones outside say so in words.
    head, *rows = found["predictions"]
    assert head == ["class", "time", "in p50, %", "in p90, %", "in p99, %", "p90 · 99 in p50", "judged"]
    assert rows[0] == ["priority", "TTFT", "51.2", "89.3", "98.8", "2.1 · 4.4", "2,000"] and len(rows) == 6
    assert rows[3][2:5] == ["47.1", "85.2 low", "96.3 low"] and rows[5][0] == names.batch
    assert found["marks"][0] == ["33.3%", "66.7%", "56.0%"] and found["marks"][11][2] == "0.0%"
    head, *rows = found["promises"]
    assert head == ["class", "ended", "kept", "broken", "withdrawn", "broken of allowed, %"]
    assert rows == [
        ["priority", "1,000", "983", "9", "8", "0.9 of 1.0"],
        ["interactive", "404", "371", "29", "4", "7.2 of 1.1, too many"],
    ]
    assert found["off"] == ["7.2 of 1.1, too many", "85.2 low", "96.3 low"]
    # Requests that can still be in time come first; the others are folded into a count that opens.
    assert re.match(r"Request 0-\d+ \((priority|interactive)\): waiting for .*, due in ", found["why"])
    assert found["why"].endswith("All places are taken: 190 of 190 requests run.")
    assert re.fullmatch(
        r"▸ Show: \d+ requests have missed a deadline and cannot be in time any more \(interactive \d+, priority \d+\)"
        r"(; \d+ of them are drawn)?",
        found["fold"],
    )
    assert found["unfold"].startswith("▾ Hide") and found["lanesHigh"][1] > found["lanesHigh"][0] + 300
    assert found["whyIsSeen"]
    early, button, explained = found["explains"]
    asked = re.fullmatch(r"Why was request (0-\d+) late\?", button)
    assert not early and asked is not None
    assert explained == [f"request {asked[1]}: class {names.batch}", "  yes     under edf in place of fcfs"]
    # The key stays in the tab alone, until logout.
    assert KEY not in found["address"] and not any(KEY in one for one in found["requests"])
    assert json.loads(found["stored"]) == [{}, {"sloserve-admin-key /sloserve/": KEY}, ""]
    assert json.loads(found["afterLogout"]) == [{}, {}, ""] and found["asksAgain"]
    assert found["heap"][1] < found["heap"][0] * 1.25
    assert found["tasks"] > FRAMES and max(found["longest"].values()) < LONG_TASK_MS, found["longest"]
    assert len(found["overflow"]) == 6 and max(found["overflow"]) <= 0
    assert found["scrolls"] == [] and found["cut"] == []
    assert [one for one in found["axe"] if one[0] in ("serious", "critical")] == []
    assert found["lost"].startswith("Lost") and found["back"].startswith("Live")
    # After a reload the key is not asked for again; a fleet has its own page.
    assert found["images"] == 0 and names.second in found["fleet"] and found["fleetTiles"] == 5
    assert found["fleetFirst"].startswith("interactive: 91% of 788 in time within 60 s")
    late = f"interactive of {names.second}: 7 held, the first 1.5 s lateCause: no instance serves it; one that switches"
    assert late in found["fleetFirst"] and "h100-02Next step: See whether these hosts are up" in found["fleetFirst"]
    # Which model each instance held over the last ten minutes; what is older is forgotten.
    first, coming, lost = (lane.split() for lane in found["lanes"])
    assert set(first) == {"chat", "other"} and len(first) >= 5, "a bar for each time between two switches"
    assert set(coming) == {"other", "bare"} and coming.count("other") > 5, "it is hatched while the model comes"
    assert "bad" in lost and not {"chat", "other"} & set(lost)
    # Of a crowd of instances the ones to look at are shown, and the others when they are asked for.
    assert found["instances"] == [
        [40, 2, "▸ Show 166 more instances (serving 166)"],
        [206, 2, "▾ Hide all but 40 instances"],
    ]
    assert found["fleetHeap"][1] < found["fleetHeap"][0] * 1.1
    assert "91 % of 788" in found["fleet"] and "1.5 late" in found["fleet"] and found["fleetCanTry"]
    assert "switching models" in found["fleet"] and "swapping" not in found["fleet"], "states are in words"
    # A policy is tried as shadow, its verdict is read, the change is confirmed, and it is undone.
    assert " 10.0 points more" in found["verdict"]
    assert "as edf in 70.0 %" in found["verdict"] and found["changeIs"] == ["Change to auto", "Change to sjf", True]
    assert f"Refused: unknown policy {names.policy}." in found["unknown"]
    nosuch, sjf = {"shadow_policy": "nosuch"}, {"shadow_policy": "sjf"}
    assert "Change the policy from edf to sjf?" in found["question"] and "policy edf" in found["changedByNo"]
    assert re.fullmatch(r"sjf decides since [\d:]+, when anna from 10\.0\.0\.7 changed it from edf\.", found["atWork"])
    assert found["undoes"] == "Change the policy from sjf back to edf?"
    assert re.search(r"edf decides since [\d:]+, when anna .* changed it from sjf\.", found["afterUndo"])
    nosuch, sjf, undo = {"shadow_policy": "nosuch"}, {"shadow_policy": "sjf"}, {"undo": "change-3", "by": "anna"}
    assert played.changes == [nosuch, sjf, {"policy": "sjf", "shadow_policy": "", "by": "anna"}, undo]
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
