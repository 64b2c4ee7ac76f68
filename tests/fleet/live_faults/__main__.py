"""Run a fleet of real processes under load while its parts are replaced or killed, and say what its tenants saw.

python -m tests.fleet.live_faults --only-upgrades --minutes 2
python -m tests.fleet.live_faults --minutes 30 --tenants 50 --postgres
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.clock import SystemClock
from tests import bounded
from tests.fleet.live_faults.events import FAULTS, UPGRADE
from tests.fleet.live_faults.processes import HOSTS, LiveFleet, started
from tests.fleet.live_faults.users import Seen, check_batches, client_of, tenant

CLOCK = SystemClock()
MOST_S = 600.0
"""Seconds that a run may take beside its minutes with events."""
SETTLE_S = 180.0
"""Seconds for all lines to end after the last event."""
RECOVER_S = 5.0
"""Seconds between two looks at parts that have ended."""


async def run(fleet: LiveFleet, args: argparse.Namespace) -> dict[str, Any]:
    """Use the fleet, and do to it what the seed says; return what was seen."""
    rng, seen, stopping, happened = np.random.default_rng(args.seed), Seen(), asyncio.Event(), list[str]()
    engines = {host: fleet.engines(host) for host in HOSTS}
    began_s = CLOCK.monotonic_s()
    clients = [client_of(fleet.url, key) for key in fleet.keys]
    users = [
        asyncio.create_task(tenant(client, args.seed * 1000 + number, seen, stopping))
        for number, client in enumerate(clients)
    ]
    keeping = asyncio.create_task(_keep(fleet))
    await asyncio.sleep(3.0)
    events, turn = UPGRADE if args.only_upgrades else FAULTS, 0
    while CLOCK.monotonic_s() - began_s < 60.0 * args.minutes:
        event = events[turn % len(events)] if args.only_upgrades else events[rng.integers(len(events))]
        turn += 1
        what = await event(fleet, rng)
        happened.append(what)
        if args.trace:
            print(f"{CLOCK.monotonic_s() - began_s:7.1f} s  {what}; {dict(seen.ended)}", flush=True)
        await asyncio.sleep(rng.uniform(0.5, 1.5) * args.every_s)
    stopping.set()
    _, late = await asyncio.wait(users, timeout=120.0)
    seen.faults += [f"a request of a tenant has not ended within 120 s: {one.get_name()}" for one in late]
    await check_batches(seen, SETTLE_S)
    await asyncio.gather(*(client.close() for client in clients))
    kept = all(engines[host] <= fleet.engines(host) for host in HOSTS)
    keeping.cancel()
    return {
        "minutes": args.minutes,
        "tenants": args.tenants,
        "store": "PostgreSQL" if fleet.postgres else "SQLite",
        "events": len(happened),
        "ended": dict(sorted(seen.ended.items())),
        "faults": seen.faults,
        "engines_kept": kept,
        "lines_open": fleet.open_lines(),
    }


async def _keep(fleet: LiveFleet) -> None:
    while True:
        await asyncio.sleep(1.0)
        await asyncio.to_thread(fleet.keep)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet.live_faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes with events")
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--every-s", type=float, default=6.0, help="mean seconds between two events")
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds of a step of an engine")
    parser.add_argument("--postgres", action="store_true", help="use a PostgreSQL server in place of SQLite")
    parser.add_argument("--only-upgrades", action="store_true", help="replace parts in order, and kill none")
    parser.add_argument("--trace", action="store_true", help="print each event")
    return parser.parse_args(arguments)


def report(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a fleet in this folder; return what was seen, and the processes that are left."""
    with started(folder, args.tenants, on_postgres=args.postgres, step_s=args.step_s) as fleet:
        found = bounded.run(run(fleet, args), 60.0 * args.minutes + MOST_S)
        found["processes_left"] = fleet.stop()
    return found


def main() -> int:
    args = parsed(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="live-faults-") as folder:
        found = report(args, Path(folder))
    print(json.dumps(found, indent=1))
    is_whole = not args.only_upgrades or (found["engines_kept"] and not found["ended"].get("stream broken"))
    return 0 if is_whole and not found["faults"] and not found["lines_open"] and not found["processes_left"] else 1


if __name__ == "__main__":
    sys.exit(main())
