"""How long does a large batch take through OpenAI's SDK, by phase, and how much memory do gateway and agent take?

One batch through a live fleet of real processes: the SDK uploads its file, makes the batch, asks for it until it is
completed, and reads its results. Engines are stand-ins, which answer at once. SQLite and a folder, on one machine.

    python -m benchmarks.fleet.batch_sdk [--lines 50000] [--quick]

Prints and writes benchmarks/results/fleet_batch_sdk.json.gz: seconds of each phase, to the second where the batch's own
timestamps say it, and the peak of resident memory.
"""

import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import httpx
import openai
from openai.types import Batch

from benchmarks.arguments import parser_for
from benchmarks.fleet.batch_phases import PROMPT_TOKENS, WORD
from benchmarks.fleet.fleet_processes import FleetProcesses
from benchmarks.publish import RESULTS, aligned, write_result
from sloserve.core.clock import SystemClock
from tests.ports import free_port

CLOCK = SystemClock()
ROOT = Path(__file__).parents[2]
ROUTE = "/v1/chat/completions"
TOKENS, SEATS = 64, 64
FILE = f"""
models: {{chat: {{model: builtin:tiny, profile: {ROOT}/configs/cpu-tiny.yaml, flags: {{max_num_seqs: {SEATS}}}}}}}
hosts: {{a: {{device: cpu, devices: 1, host_memory_gib: 1}}}}
"""
ENDED = ("completed", "failed", "expired", "cancelled")


def lines(count: int) -> bytes:
    messages = [{"role": "user", "content": WORD * PROMPT_TOKENS}]
    body = {"model": "chat", "messages": messages, "max_tokens": TOKENS}
    made = ({"custom_id": f"line-{k}", "method": "POST", "url": ROUTE, "body": body} for k in range(count))
    return "\n".join(map(json.dumps, made)).encode()


def one_batch(client: openai.OpenAI, count: int) -> dict[str, Any]:
    """Seconds by phase. Every line has one result."""
    begun_s = CLOCK.monotonic_s()
    file = client.files.create(file=("lines.jsonl", lines(count)), purpose="batch")
    uploaded_s = CLOCK.monotonic_s()
    batch = client.batches.create(input_file_id=file.id, endpoint=ROUTE, completion_window="24h")
    while batch.status not in ENDED:
        time.sleep(0.5)
        batch = client.batches.retrieve(batch.id)
    completed_s = CLOCK.monotonic_s()
    assert batch.status == "completed" and batch.output_file_id is not None, batch
    ids = set[str]()
    with client.files.with_streaming_response.content(batch.output_file_id) as answer:
        for line in answer.iter_lines():
            ids.add(json.loads(line)["custom_id"])
    assert len(ids) == count
    return {
        "lines": count,
        "upload": round(uploaded_s - begun_s, 1),
        **_by_its_own_word(batch),
        "read the results": round(CLOCK.monotonic_s() - completed_s, 1),
        "all": round(CLOCK.monotonic_s() - begun_s, 1),
    }


def _by_its_own_word(batch: Batch) -> dict[str, int]:
    stamps = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    begins = cast(list[int], stamps)
    phases = ("check and accept", "serve", "finalize")
    return {phase: end - begin for phase, begin, end in zip(phases, begins, begins[1:], strict=False)}


def peak_mb(pid: int) -> float:
    """Of a process, resident, since its start."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found is not None
    return round(int(found[1]) / 1e3, 1)


def measured(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="batch-sdk-") as folder:
        fleet = FleetProcesses(Path(folder), {"STAND_IN_STEP_S": "0"})
        fleet.file.write_text(FILE, encoding="utf-8")
        port = free_port()
        try:
            fleet.start("agent", "--engine-module", "tests.fleet.stand_in.server")
            fleet.start("planner")
            fleet.start("gateway", "--port", str(port))
            _until_served(f"http://127.0.0.1:{port}")
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=600.0) as client:
                row = one_batch(client, count)
            row |= {f"{part}, peak RSS MB": peak_mb(fleet.running[part].pid) for part in ("gateway", "agent")}
        finally:
            fleet.stop()
    return row | {"load": round(os.getloadavg()[0], 1)}


def _until_served(url: str) -> None:
    asked = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    until_s = CLOCK.monotonic_s() + 120.0
    while True:
        try:
            if httpx.post(url + ROUTE, json=asked, timeout=60.0).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert CLOCK.monotonic_s() < until_s, "the fleet does not serve"
        time.sleep(0.5)


def table(row: dict[str, Any]) -> str:
    return aligned([("phase", "s or MB"), *((name, str(value)) for name, value in row.items())])


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="200 lines; writes nothing")
    args = parser.parse_args()
    row = measured(200 if args.quick else args.lines)
    print(table(row), end="")
    if not args.quick:
        write_result(RESULTS / "fleet_batch_sdk.json.gz", {"run": row})


if __name__ == "__main__":
    main()
