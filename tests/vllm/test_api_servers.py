"""Two API servers before one engine: whichever is asked tells the whole, and a cap is that of both."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.page_folder import PageFile
from sloserve.engine.metrics.process_page import Board
from tests.vllm.server import Server

pytestmark = pytest.mark.vllm

MODEL = "builtin:tiny"
CAP = 3
SETTINGS = f"""
policy: edf
admission: {{mode: cap, max_waiting: {{background: {CAP}, batch: 64, interactive: 64, priority: 64}}}}
"""
MAX_NUM_SEQS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "serve.yaml"
    config.write_text(SETTINGS)
    running = Server("--slo-config", str(config), "--max-num-seqs", str(MAX_NUM_SEQS), api_servers=2)
    try:
        running.wait_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture(scope="module")
def clients(server: Server) -> Iterator[list[httpx.Client]]:
    """One that each API server answers. On a busy machine both may connect to the same one: then one connects again."""
    with contextlib.ExitStack() as open_clients:
        found: dict[int, httpx.Client] = {}
        for _ in range(20):
            client = open_clients.enter_context(httpx.Client(base_url=server.url, timeout=120))
            found.setdefault(answers(server, client), client)
            if len(found) == 2:
                break
        yield [client for _, client in sorted(found.items())]


def answers(server: Server, client: httpx.Client) -> int:
    """The process that has the other end of the connection that ``client`` keeps open."""
    with client.stream("GET", "/health") as answer:
        _, port = answer.extensions["network_stream"].get_extra_info("client_addr")
        answer.read()
    ends = [f"0100007F:{number:04X}" for number in (server.port, port)]
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    (inode,) = [fields[9] for fields in map(str.split, lines) if fields[1:3] == ends]
    pids = [file.pid for path, file in pages(server).items() if path.suffix == page_folder.API]
    links = {pid: [os.path.realpath(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()] for pid in pids}
    (found,) = [pid for pid in pids if any(link.endswith(f"socket:[{inode}]") for link in links[pid])]
    return found


def completion(**body: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello", "max_tokens": 4, "ignore_eos": True} | body


def scrape(client: httpx.Client) -> dict[tuple[str, ...], float]:
    """Our metrics, by name and the values of their labels, sorted by label."""
    return {
        (sample.name.removeprefix("sloserve:"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").raise_for_status().text)
        for sample in family.samples
        if sample.name.startswith("sloserve:")
    }


def pages(server: Server) -> dict[Path, PageFile]:
    """The pages of the processes that the server started."""
    files = {path: PageFile.named(path) for path in page_folder.page_folder().iterdir()}
    return {path: file for path, file in files.items() if file is not None and file.parent == server.process.pid}


def test_whoever_is_scraped_shows_what_the_clients_saw(server: Server, clients: list[httpx.Client]) -> None:
    for i in range(24):
        slo = {"ttft_ms": 60_000, "tpot_ms": 0.001 if i % 4 == 0 else 60_000}
        clients[i % 3 == 0].post("/v1/completions", json=completion(slo=slo)).raise_for_status()
    boards = [Board.read(file) for path, file in pages(server).items() if path.suffix == page_folder.API]
    assert sorted(np.count_nonzero(board.ended) for board in boards) == [8, 16]
    for client in clients * 3:
        shown = scrape(client)
        assert shown["requests_total", "interactive", "completed"] == 24
        assert shown["slo_requests_total", "interactive"] == 24
        assert shown["goodput_requests_total", "interactive"] == 18
        assert shown["slo_violations_total", "interactive", "tpot"] == 6
        assert shown["ttft_seconds_count", "interactive"] == shown["e2e_seconds_bucket", "interactive", "+Inf"] == 24
        attained = {target: shown["slo_attainment_ratio", "interactive", target] for target in ("ttft", "tpot", "all")}
        assert attained == {"ttft": 1.0, "tpot": 0.75, "all": 0.75}
        assert shown["prediction_coverage_ratio", "interactive", "ttft", "0.5"] >= 0.0
        assert shown["scheduler_policy_info", "0", "edf", ""] == 1.0
        assert shown["plans_total", "0", "fresh"] > 0


def test_a_cap_is_that_of_both(clients: list[httpx.Client]) -> None:
    with contextlib.ExitStack() as open_streams:

        def stream(client: httpx.Client, **body: Any) -> httpx.Response:
            request = completion(stream=True, **body)
            return open_streams.enter_context(client.stream("POST", "/v1/completions", json=request))

        running = [stream(clients[0], max_tokens=4000).iter_bytes() for _ in range(MAX_NUM_SEQS)]
        for parts in running:
            next(parts)  # its first token
        answers = [stream(clients[i % 2], slo={"class": "background"}) for i in range(4 * CAP)]
        statuses = [answer.status_code for answer in answers]
    assert statuses == [200] * CAP + [429] * 3 * CAP
    for client in clients:
        assert scrape(client)["rejected_requests_total", "background", "rejected-saturated"] == 3 * CAP


def test_both_servers_know_one_task_its_deadline_and_its_end(clients: list[httpx.Client]) -> None:
    """Whichever serves a call: it began once, is due at one time, and is counted once."""
    before = scrape(clients[0])
    reports = []
    for number, client in enumerate([clients[0], clients[1], clients[0], clients[1]], 1):
        stated = {"task_id": "two servers", "report": True}
        if number == 1:
            stated["task_e2e_ms"] = 3_600_000
        if number == 4:
            stated["task_last"] = True
        answer = client.post("/v1/completions", json=completion(slo=stated)).raise_for_status().json()
        reports.append(answer["slo"]["task"])
    assert [report["calls"] for report in reports] == [1, 2, 3, 4]
    due_ms = [report["elapsed_ms"] + report["due_in_ms"] for report in reports]
    assert due_ms == pytest.approx([3_600_000] * 4, abs=1.0)
    assert [report["tools_ms"] for report in reports] == sorted(report["tools_ms"] for report in reports)
    for client in clients:
        after = scrape(client)
        for name, values in (("tasks_started_total", ()), ("tasks_ended_total", ("in_time",))):
            key = (name, "interactive", *values)
            assert after[key] - before.get(key, 0.0) == 1.0, key
        assert after[("open_tasks", "interactive")] == 0.0


def test_a_killed_api_server_leaves_no_page(server: Server) -> None:
    found = pages(server)
    of_both = [page_folder.API, page_folder.TASKS] * 2
    assert sorted(path.suffix for path in found) == sorted([*of_both, page_folder.ENGINE, page_folder.LIVE])
    os.kill(next(file.pid for path, file in found.items() if path.suffix == page_folder.API), signal.SIGKILL)
    server.exit_status()
    assert pages(server) == {}
