"""What does a large batch cost the gateway that checks, accepts and finalizes it?

One batch through the live fleet's runner and store, with no other work: its file is checked, its lines are accepted and
claimed, each is answered at once with the reply of a chat of ``REPLY_TOKENS`` tokens, and the results are written to
files and deleted from the store. One line in a hundred fails. SQLite and a folder, on the disk of ``TMPDIR``.

    python -m benchmarks.fleet.batch_phases [--lines 50000] [--repetitions 3] [--quick]

Prints and writes benchmarks/results/fleet_batch_phases.json.gz: CPU seconds and seconds of each phase. Seconds include
waits for the disk, and for other work of the machine.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, write_result
from sloserve.core.clock import SystemClock
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.store.records import Batch, BatchState, File, RequestState, Result
from sloserve.fleet.store.store import Store, open_store

CLOCK = SystemClock()
ROUTE = "/v1/chat/completions"
PROMPT_TOKENS, REPLY_TOKENS, WORD = 200, 340, "token "
FAILS_ONE_IN, CLAIMED = 100, 64
PHASES = ("check and accept", "claim and answer", "finalize")


def line(number: int) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": WORD * PROMPT_TOKENS}], "max_tokens": REPLY_TOKENS}
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": ROUTE, "body": body}).encode() + b"\n"


def reply() -> bytes:
    message = {"role": "assistant", "content": WORD * REPLY_TOKENS}
    choices = [{"index": 0, "message": message, "finish_reason": "length"}]
    return json.dumps({"id": "chatcmpl-0", "object": "chat.completion", "choices": choices}).encode()


def answer_all(store: Store) -> None:
    """As agents do: claims lines and ends them, until there are none."""
    said, number = reply(), 0
    group = store.requests.sums()[0].group
    while True:
        claim = store.requests.claim("agent", group, CLAIMED, 30.0)
        if claim is None:
            groups = store.requests.sums()
            if not groups:
                return
            group = groups[0].group
            continue
        ended = []
        for one in claim.requests:
            number += 1
            status = 500 if number % FAILS_ONE_IN == 0 else 200
            ended.append(Result(one.id, one.attempt, RequestState.DONE, status, said))
        store.requests.finish(ended)


def one_batch(lines: int) -> dict[str, Any]:
    """Seconds and CPU seconds by phase."""
    with tempfile.TemporaryDirectory(prefix="batch-phases-") as folder:
        store, files = open_store(f"sqlite:{folder}/store.sqlite"), Folder(Path(folder) / "files")
        runner = BatchRunner(store, files, lambda tenant: {"m"})
        file, batch = ids.new_file(), ids.new_batch()
        with files.writing(file) as written:
            size = sum(written.write(line(number)) for number in range(lines))
        store.batches.add_file(File(file, "t", "in", "batch", size, 0.0))
        store.batches.add(Batch(batch, "t", ROUTE, "1d", file, BatchState.VALIDATING, {}, 0.0), 86_400.0)

        def until(*states: BatchState) -> None:
            while store_state() not in states:
                runner.step()

        def store_state() -> BatchState:
            found = store.batches.get("t", batch)
            assert found is not None
            return found.state

        steps: tuple[Callable[[], None], ...] = (
            lambda: until(BatchState.IN_PROGRESS),
            lambda: answer_all(store),
            lambda: until(BatchState.COMPLETED),
        )
        row: dict[str, Any] = {"lines": lines}
        for phase, step in zip(PHASES, steps, strict=True):
            begun_s, begun_cpu_s = CLOCK.monotonic_s(), time.process_time()
            step()
            row[f"{phase} s"] = CLOCK.monotonic_s() - begun_s
            row[f"{phase} CPU s"] = time.process_time() - begun_cpu_s
        ended = store.batches.get("t", batch)
        assert ended is not None and ended.completed + ended.failed == lines
        store.close()
    row["peak RSS MB"] = getrusage(RUSAGE_SELF).ru_maxrss / 1e3
    return row


def table(runs: list[dict[str, Any]]) -> str:
    rows = [("phase", "s", "CPU s", "CPU us/line")]
    for phase in PHASES:
        seconds, cpu = (statistics.median(run[f"{phase}{unit}"] for run in runs) for unit in (" s", " CPU s"))
        rows.append((phase, f"{seconds:.1f}", f"{cpu:.1f}", f"{cpu / runs[0]['lines'] * 1e6:.0f}"))
    return aligned(rows)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="once, 200 lines; writes nothing")
    args = parser.parse_args()
    if args.quick:
        print(table([one_batch(200)]), end="")
        return
    runs = [one_batch(args.lines) for _ in range(args.repetitions)]
    print(table(runs), end="")
    write_result(RESULTS / "fleet_batch_phases.json.gz", {"table": table(runs).splitlines(), "runs": runs})


if __name__ == "__main__":
    main()
