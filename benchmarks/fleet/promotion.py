"""How many accepted lines are lost when the store's primary dies and its standby is promoted?

Two PostgreSQL servers on this machine (``fsync=off``: processes die here, no machine does), the second a standby by
streaming replication; the store's address names both. A client accepts lines, one a commit, as fast as they are
committed. After a while all processes of the primary are killed at once, the standby is promoted, and the client goes
on. Three ways of replication: ``synchronous`` (a commit waits until the standby has written it), ``asynchronous``, and
``cut off``: asynchronous, with a standby that has been away for a second when the primary dies.

    python -m benchmarks.fleet.promotion [--repetitions 10]

Prints and writes benchmarks/results/fleet_promotion.json.gz: lines accepted and lost (acknowledged, and not in the
store that was promoted), how long before the kill the first lost one was acknowledged, and seconds from the kill to the
next accepted line.
"""

import json
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, write_result
from sloserve.core.clock import SystemClock
from sloserve.core.errors import StoreAway
from sloserve.fleet.store.records import DurableRequest
from sloserve.fleet.store.store import Store, open_store
from tests.fleet.store.replicated import Pair, pair

CLOCK = SystemClock()
MODES = ("synchronous", "asynchronous", "cut off")
LINES_BEFORE, CUT_OFF_S, LIMIT_S = 500, 1.0, 60.0
NOTED_S = 0.1
"""After the kill, until all that was acknowledged is noted."""
BODY = b"x" * 500


@dataclass
class Promotion:
    """One death of a primary. lost_s: from the first acknowledgement that was lost to the kill."""

    mode: str
    accepted: int
    lost: int
    lost_s: float
    again_s: float
    lines_per_s: float


class Client(threading.Thread):
    """Accepts lines until it is told to end.

    told: when each was acknowledged, by its id.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(daemon=True)
        self._store, self._prefix = store, prefix
        self.told: dict[str, float] = {}
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.is_set():
            line = DurableRequest(f"{self._prefix}{len(self.told):07}", "t", "m", "batch", 1, BODY, batch="b")
            try:
                self._store.requests.accept([line])
            except StoreAway:
                continue
            self.told[line.id] = CLOCK.monotonic_s()

    def wait_for(self, number: int) -> None:
        """Raises: TimeoutError."""
        until_s = CLOCK.monotonic_s() + LIMIT_S
        while len(self.told) < number:
            if CLOCK.monotonic_s() > until_s:
                raise TimeoutError(f"{len(self.told)} of {number} lines were accepted within {LIMIT_S:.0f} s")
            self.ends.wait(0.01)


def one_promotion(servers: Pair, mode: str, number: int) -> Promotion:
    """Kills the primary and promotes the standby; then makes another standby of the one that was killed."""
    store = open_store(servers.address)
    client = Client(store, f"{mode}-{number}-")
    begun_s = CLOCK.monotonic_s()
    client.start()
    try:
        client.wait_for(LINES_BEFORE)
        if mode == "cut off":
            servers.standby.stop()
        client.ends.wait(CUT_OFF_S)
        killed_s = CLOCK.monotonic_s()
        servers.kill_primary()
        client.ends.wait(NOTED_S)  # not until the client sees it: one whose connection was idle then waits for another
        told = dict(client.told)
        if mode == "cut off":
            servers.standby.start()
        servers.promote()
        client.wait_for(len(told) + 1)
    finally:
        client.ends.set()
        client.join()
    with store.database.reading() as session:
        kept = {id for (id,) in session.rows("SELECT id FROM request")}
    lost = [told[id] for id in told if id not in kept]
    again_s = min(at_s for id, at_s in client.told.items() if id not in told) - killed_s
    store.close()
    servers.follow()
    rate = len(told) / (killed_s - begun_s)
    return Promotion(mode, len(told), len(lost), max(killed_s - min(lost, default=killed_s), 0.0), again_s, rate)


def table(results: list[Promotion]) -> str:
    rows = [("replication", "runs", "accepted", "lost", "most in a run", "lost s (<=)", "again s (<=)", "lines/s")]
    for mode in dict.fromkeys(one.mode for one in results):
        runs = [one for one in results if one.mode == mode]
        rows.append(
            (
                mode,
                str(len(runs)),
                str(sum(one.accepted for one in runs)),
                str(sum(one.lost for one in runs)),
                str(max(one.lost for one in runs)),
                f"{max(one.lost_s for one in runs):.3f}",
                f"{max(one.again_s for one in runs):.1f}",
                f"{sum(one.lines_per_s for one in runs) / len(runs):.0f}",
            )
        )
    return aligned(rows)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--repetitions", type=int, default=10)
    args = parser.parse_args()
    results: list[Promotion] = []
    for mode in MODES:
        with tempfile.TemporaryDirectory(prefix="promotion-") as folder:
            inner = Path(folder) / "servers"  # three folders deep: a server's user is let into all of them
            inner.mkdir()
            with pair(inner, is_synchronous=mode == "synchronous") as servers:
                for number in range(args.repetitions):
                    results.append(one_promotion(servers, mode, number))
                    print(json.dumps(asdict(results[-1])), flush=True)
    print(table(results), end="")
    rows = table(results).splitlines()
    write_result(RESULTS / "fleet_promotion.json.gz", {"table": rows, "runs": [asdict(one) for one in results]})


if __name__ == "__main__":
    main()
