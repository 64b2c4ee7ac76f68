"""A file that is due soon beside lines that fill an engine: the whole of ``sloserve fleet`` in real processes."""

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import bounded
from tests.fleet.run.test_processes import ROOT, STAND_IN
from tests.orphans import kill_with_children
from tests.ports import free_port

FLEET = """
models: {anna: {model: builtin:tiny, profile: cpu-tiny.yaml, active_on: [local/0], flags: {max_num_seqs: 2}}}
hosts: {local: {device: cpu, devices: 1}}
settings: {policy: fcfs, classes: {interactive: {rank: 1, ttft_ms: 15000}, batch: {rank: 2, e2e_ms: 86400000}}}
"""
LATER, SOONER = 400, 2
"""Lines of each file. The later ones would take the engine minutes."""


@contextmanager
def started(folder: Path, options: tuple[str, ...]) -> Iterator[httpx.Client]:
    (folder / "fleet.yaml").write_text(FLEET)
    shutil.copy(ROOT / "configs" / "cpu-tiny.yaml", folder)
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "sloserve.cli", "fleet", str(folder / "fleet.yaml"), "--port", str(port), *options]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            with bounded.within(f"'ready: ' in {log}", 200.0):
                while "ready: " not in log.read_text():
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.1)
            yield client
    finally:
        kill_with_children(process)


def body(prompt: str, tokens: int) -> dict[str, Any]:
    return {"model": "anna", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def sent(client: httpx.Client, name: str, lines: int, tokens: int, window: str) -> str:
    """The id of a batch."""
    file = "\n".join(
        json.dumps(
            {"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": body(f"{name} {i}", tokens)}
        )
        for i in range(lines)
    )
    upload = client.post("/v1/files", files={"file": ("lines.jsonl", file.encode())}, data={"purpose": "batch"}).json()
    wanted = {"input_file_id": upload["id"], "endpoint": "/v1/completions", "completion_window": window}
    return str(client.post("/v1/batches", json=wanted).json()["id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "options"),
    [(400, STAND_IN), pytest.param(1_500, (), marks=(pytest.mark.vllm, pytest.mark.whole), id="vllm")],
)
def test_running_lines_give_way_to_a_file_that_is_due_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, options: tuple[str, ...]
) -> None:
    """The file has its results before a line that ran when it came has ended, and that line has its whole output."""
    monkeypatch.setenv("STAND_IN_STEP_S", "0.02")

    def rows(where: str, *given: Any) -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "fleet.state" / "store.sqlite", timeout=30.0)) as opened:
            return opened.execute(f"SELECT id, line, attempt FROM request r WHERE {where}", given).fetchall()

    with bounded.within("a fleet, a line that gives way, and its output", 280.0), started(tmp_path, options) as client:
        later = sent(client, "later", LATER, tokens, "24h")
        while not rows("batch = ? AND state = 'claimed'", later):
            time.sleep(0.1)
        sooner = sent(client, "sooner", SOONER, 4, "1m")
        evicted = "batch = ? AND EXISTS (SELECT 1 FROM request_progress p WHERE p.id = r.id)"
        left: dict[str, None] = {}  # a line that has ended elsewhere has no progress any more
        while client.get(f"/v1/batches/{sooner}").json()["status"] not in ("completed", "expired", "failed"):
            left.update(dict.fromkeys(id for id, _, _ in rows(evicted, later)))
            time.sleep(0.1)
        left.update(dict.fromkeys(id for id, _, _ in rows(evicted, later)))
        assert client.get(f"/v1/batches/{sooner}").json()["request_counts"]["completed"] == SOONER
        assert len(left) in (1, 2), "as many as the places that were needed"
        while not (ended := rows("id = ? AND state = 'done'", next(iter(left)))):
            time.sleep(0.1)
        ((_, line, attempt),) = ended
        assert attempt > 1
        client.post(f"/v1/batches/{later}/cancel")
        alone = client.post("/v1/completions", json=body(f"later {line - 1}", tokens)).json()
        while (state := client.get(f"/v1/batches/{later}").json())["status"] != "cancelled":
            time.sleep(0.1)
        results = [
            json.loads(one) for one in client.get(f"/v1/files/{state['output_file_id']}/content").text.splitlines()
        ]
        (whole,) = [one["response"]["body"] for one in results if one["custom_id"] == str(line - 1)]
        assert whole["choices"][0]["text"] == alone["choices"][0]["text"]
        assert whole["usage"]["completion_tokens"] == tokens
