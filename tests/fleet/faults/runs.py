"""Runs of seeds: what each breaks, how much was simulated, and how long it took."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.fleet.faults.checks import KNOWN, violations
from tests.fleet.faults.kernel import Spinning
from tests.fleet.faults.world import Violated, World


@dataclass
class Outcome:
    """What became of one seed."""

    seed: int
    hours: float
    broken: list[str] = field(default_factory=list)
    simulated_h: float = 0.0
    cpu_s: float = 0.0
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def command(self) -> str:
        """Return the command that repeats it."""
        return f"python -m tests.fleet.faults --seed {self.seed} --hours {self.hours:g} --trace"


def outcome_of(seed: int, hours: float, *, strict: bool = False) -> Outcome:
    """Run one seed."""
    begun_s = time.process_time()
    with World(seed) as world:
        outcome = Outcome(seed, hours, events=world.events, counts=world.counts)
        try:
            world.run(hours)
            outcome.broken = violations(world, {} if strict else KNOWN)
        except Violated:
            outcome.broken = [f"while it ran: {text}" for text in dict.fromkeys(world.violations)]
        except Spinning as error:
            outcome.broken = [f"spinning: {error}"]
        outcome.simulated_h, outcome.digest = world.hours, world.digest()
        outcome.counts.update(_served(world))
    outcome.cpu_s = time.process_time() - begun_s
    return outcome


def _served(world: World) -> Counter[str]:
    ledger = world.users.ledger
    served = Counter(f"streams: {one.outcome}" for one in ledger.streams)
    served.update(f"batches: {one.status}" for one in ledger.batches)
    served["lines begun"] = sum(world.ran.values())
    return served


def run_seed(seed: int, hours: float, *, trace: bool, strict: bool) -> int:
    """Run one seed, and print it; return 1 if it breaks something."""
    outcome = outcome_of(seed, hours, strict=strict)
    if trace:
        for when_s, text in outcome.events:
            print(f"{when_s:11.3f} {text}")
    for text in outcome.broken:
        print(f"BROKEN {text}")
    print(dict(outcome.counts))
    print(
        f"seed {seed}: {outcome.simulated_h:.2f} fleet-hours in {outcome.cpu_s:.1f} s of CPU, digest {outcome.digest}"
    )
    return int(bool(outcome.broken))


def run_seeds(seeds: Iterable[int], hours: float, minutes: float | None, *, strict: bool = False) -> int:
    """Run seeds until the time is over; print those that break something; return 1 if any does."""
    begun_s, total, broken, number = time.process_time(), Counter[str](), 0, 0
    simulated_h = 0.0
    for seed in seeds:
        if minutes is not None and time.process_time() - begun_s > minutes * 60.0:
            break
        outcome = outcome_of(seed, hours, strict=strict)
        number, simulated_h = number + 1, simulated_h + outcome.simulated_h
        total.update(outcome.counts)
        for text in outcome.broken:
            print(f"seed {seed}: {text}", flush=True)
        if outcome.broken:
            broken += 1
            print(f"  repeat it: {outcome.command}", flush=True)
    cpu_s = time.process_time() - begun_s
    print(dict(sorted(total.items())))
    rate = simulated_h / max(cpu_s, 1e-9) * 60.0
    print(
        f"{number} seeds, {broken} broken, {simulated_h:.1f} fleet-hours in {cpu_s:.0f} s of CPU: {rate:.1f} a minute"
    )
    return int(broken > 0)
