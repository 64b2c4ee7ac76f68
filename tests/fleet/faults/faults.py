"""The faults of a world: which kinds it has, and when each begins and ends, drawn from its seed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tests.fleet.faults.kernel import Process, State
from tests.fleet.faults.members import AgentMember, Member
from tests.fleet.faults.storage import StoreTrouble

if TYPE_CHECKING:
    from tests.fleet.faults.world import World

Undo = Callable[[], None]
_HEALTHY: Final = StoreTrouble()
_LAST_S: Final = 60.0
"""Seconds at the end of the faults in which a world has faults of one kind alone; a quarter of them if they are few."""


class Faults:
    """Makes faults in a world until it is told to end. A world has some kinds of faults only, some of them often.

    At the end it has one kind alone for a while: no other fault hides what is left of it.
    """

    def __init__(self, world: "World") -> None:
        self._world, self._rng = world, world.rng
        self._process = Process(world.kernel, "faults", "faults")
        self._open: dict[int, Undo] = {}
        self._number = 0
        self.is_over = False
        kinds = list(_KINDS)
        kept = self._rng.random(len(kinds)) < self._rng.choice([0.2, 0.5, 1.0])
        self._kinds = [kind for kind, is_kept in zip(kinds, kept, strict=True) if is_kept] or kinds
        self._every_s = float(self._rng.choice([10.0, 30.0, 100.0]))
        self._last = kinds[int(self._rng.integers(len(kinds)))]

    def begin(self, until_s: float) -> None:
        """Make faults from now on, and keep members alive."""
        self._last_from_s = until_s - min(_LAST_S, (until_s - self._world.kernel.now_s) / 4.0)
        self._next()
        self._world.kernel.at(self._process, self._last_from_s, lambda: self._make(self._last))
        self._world.kernel.after(self._process, 1.0, self._restart)

    def end(self) -> None:
        """Undo all faults, and start what has ended."""
        self.is_over = True
        for undo in list(self._open.values()):
            undo()
        self._open.clear()

    def _next(self) -> None:
        self._world.kernel.after(self._process, float(self._rng.exponential(self._every_s)), self._happen)

    def _happen(self) -> None:
        if self.is_over:
            return
        kind = self._kinds[int(self._rng.integers(len(self._kinds)))]
        self._make(kind if self._world.kernel.now_s < self._last_from_s else self._last)
        self._next()

    def _make(self, kind: str) -> None:
        """Make a fault of this kind, if the world has a place for it."""
        found = _KINDS[kind](self._world, self._rng)
        if found is not None:
            text, undo, lasts_s = found
            lasting = f" for {lasts_s:.1f} s" if undo is not None else ""
            self._world.note(f"fault: {text}{lasting}")
            self._world.counts[kind] += 1
            if undo is not None:
                self._lasting(text, undo, lasts_s)

    def _lasting(self, text: str, undo: Undo, lasts_s: float) -> None:
        self._number += 1
        number = self._number
        self._open[number] = undo

        def over() -> None:
            if self._open.pop(number, None) is not None:
                undo()
                self._world.note(f"over: {text}")

        self._world.kernel.after(self._process, lasts_s, over)

    def _restart(self) -> None:
        """Start members that have ended, as Kubernetes or systemd do."""
        for member in self._world.members:
            member.look()
            if not member.process.is_alive and self._rng.random() < (1.0 if self.is_over else 0.3):
                member.start()
                self._world.note(f"start: {member.process.name}")
        self._world.kernel.after(self._process, 2.0, self._restart)


Found = tuple[str, Undo | None, float] | None
Rng = np.random.Generator


def _about_a_lease_s(world: "World", rng: Rng) -> float:
    """Return a time that ends before, as, or after leases lapse and others have what was held."""
    return world.knobs.lease_s * float(rng.choice([0.2, 0.8, 1.1, 1.5, 2.0, 2.5]) * rng.uniform(0.8, 1.2))


def _now_or_at_pause(process: Process, rng: Rng, call: Callable[[], None]) -> None:
    """Make a call now, or when a thread of the process is before or after a transaction or a write next."""
    if rng.random() < 0.5:
        call()
    else:
        process.at_pause = call


def _one(rng: Rng, values: list[Any]) -> Any:
    return values[int(rng.integers(len(values)))] if values else None


def _kill(world: "World", rng: Rng) -> Found:
    process: Process = _one(rng, world.members).process

    def kill() -> None:
        _blame(world, process)
        process.kill()

    _now_or_at_pause(process, rng, kill)
    return f"kill {process.name}", None, 0.0


def _blame(world: "World", owner: Process, *, engine: Any = None) -> None:
    """Note what runs on engines that are about to be killed."""
    for one in world.ground.engines:
        if one.owner is owner and engine in (None, one):
            world.blamed.update(one.running)


def _kill_engine(world: "World", rng: Rng) -> Found:
    engine = _one(rng, [one for one in world.ground.engines if one.process.is_alive])
    if engine is None:
        return None

    def kill() -> None:
        _blame(world, engine.owner, engine=engine)
        engine.kill()

    if rng.random() < 0.5:
        kill()
    else:
        engine.process.at_send = kill  # within a response, which may be complete but for its end

    def undo() -> None:
        engine.process.at_send = None

    return f"kill {engine.process.name}", undo, 30.0


def _stop(world: "World", rng: Rng) -> Found:
    process: Process = _one(rng, world.members).process
    if not process.is_alive:
        return None

    def stop() -> None:
        _blame(world, process)
        process.stop()

    _now_or_at_pause(process, rng, stop)
    return f"stop {process.name}", process.resume, _about_a_lease_s(world, rng)


def _stop_leader(world: "World", rng: Rng) -> Found:
    """The planner that leads hangs in the midst of its work, until another one leads or nearly."""
    leader = world.leader()
    found = [one.process for one in world.planners if one.process.is_alive and leader == f"{one.place}:{one.starts}"]
    if not found:
        return None
    (process,) = found
    _after_pauses(process, int(rng.integers(8)), process.stop)
    lasts_s = world.knobs.planner_lease_s * float(rng.choice([0.8, 1.5, 2.5]) * rng.uniform(0.8, 1.2))
    return f"stop {process.name}, which leads", process.resume, lasts_s


def _after_pauses(process: Process, number: int, call: Callable[[], None]) -> None:
    """Make a call when threads of the process have paused ``number`` times, and pause again."""
    process.at_pause = call if number <= 0 else lambda: _after_pauses(process, number - 1, call)


def _hang_with_batch(world: "World", rng: Rng) -> Found:
    """A gateway hangs in the midst of a new batch, and its user cancels the batch through another one."""
    if len(world.gateways) < 2:
        return None
    first, second = (world.gateways[i] for i in rng.permutation(len(world.gateways))[:2].tolist())
    process, pauses, is_over = first.process, int(rng.integers(16)), False
    if process.state is not State.RUNNING:
        return None

    def hang() -> None:
        if not is_over:
            _after_pauses(process, pauses, process.stop)

    def undo() -> None:
        nonlocal is_over
        is_over = True
        process.resume()

    world.users.spawn(world.users.create_here_and_cancel_there(first.path, second.path, hang))
    return f"stop {process.name} with a new batch", undo, 10.0 + _about_a_lease_s(world, rng)


def _stop_engine(world: "World", rng: Rng) -> Found:
    engine = _one(rng, [one for one in world.ground.engines if one.process.is_alive])
    if engine is None:
        return None
    _blame(world, engine.owner, engine=engine)
    engine.process.stop()
    return f"stop {engine.process.name}", engine.process.resume, float(rng.exponential(40.0))


def _cut_from_store(world: "World", rng: Rng) -> Found:
    member: Member = _one(rng, world.members)
    place = member.place
    _blame(world, member.process)
    world.trouble.cut.add(place)
    return f"cut {place} from the store", lambda: world.trouble.cut.discard(place), _about_a_lease_s(world, rng)


def _cut_from_agent(world: "World", rng: Rng) -> Found:
    gateway, agent = _one(rng, world.gateways).place, _one(rng, world.agents).place
    world.network.cut(gateway, agent)
    return f"cut {gateway} from {agent}", lambda: world.network.heal(gateway, agent), float(rng.exponential(40.0))


def _set(world: "World", name: str, value: Any, text: str, lasts_s: float) -> Found:
    setattr(world.trouble, name, value)
    world.trouble.since_s = world.kernel.now_s
    for engine in world.ground.engines:
        world.blamed.update(engine.running)  # their claims may lapse

    def undo() -> None:
        setattr(world.trouble, name, getattr(_HEALTHY, name))
        world.trouble.since_s = world.kernel.now_s

    return text, undo, lasts_s


def _slow_store(world: "World", rng: Rng) -> Found:
    latency_s = float(rng.choice([0.05, 0.3, 1.5]))
    return _set(world, "latency_s", latency_s, f"the store takes {latency_s} s", float(rng.exponential(60.0)))


def _failing_store(world: "World", rng: Rng) -> Found:
    return _set(world, "fails", float(rng.choice([0.05, 0.3])), "transactions fail", float(rng.exponential(60.0)))


def _unacknowledged(world: "World", rng: Rng) -> Found:
    part = float(rng.choice([0.1, 0.5]))
    return _set(world, "unacknowledged", part, "commits are not acknowledged", float(rng.exponential(60.0)))


def _store_away(world: "World", rng: Rng) -> Found:
    return _set(world, "is_away", True, "the store is away", float(rng.exponential(30.0)))


def _store_full(world: "World", rng: Rng) -> Found:
    return _set(world, "is_full", True, "the store is full", float(rng.exponential(30.0)))


def _disk_full(world: "World", rng: Rng) -> Found:
    world.disk.free_bytes = int(rng.choice([0, 300, 1_000]))

    def undo() -> None:
        world.disk.free_bytes = None

    return f"the disk of files has {world.disk.free_bytes} bytes left", undo, float(rng.exponential(60.0))


def _disk_full_and_failing_store(world: "World", rng: Rng) -> Found:
    """Nothing can be noted in a file meanwhile of what the store did not take."""
    lasts_s = float(rng.exponential(60.0))
    world.disk.free_bytes = 0
    found = _set(world, "fails", 0.3, "the disk of files is full, and transactions fail", lasts_s)
    assert found is not None and found[1] is not None
    text, over, _ = found

    def undo() -> None:
        world.disk.free_bytes = None
        over()

    return text, undo, lasts_s


def _clock_jump(world: "World", rng: Rng) -> Found:
    process: Process = _one(rng, world.members).process
    process.clock.ahead_s += float(rng.choice([-3_600.0, -60.0, 60.0, 3_600.0, 90_000.0]))
    return f"the clock of {process.name} is set {process.clock.ahead_s:g} s ahead", None, 0.0


def _store_clock_jump(world: "World", rng: Rng) -> Found:
    world.store_clock.set(world.store_clock.ahead_s + float(rng.choice([-10.0, 10.0, 35.0, 100.0])))
    return f"the clock of the store is set {world.store_clock.ahead_s:g} s ahead", None, 0.0


def _drain(world: "World", rng: Rng) -> Found:
    agent: AgentMember = _one(rng, world.agents)
    world.store.members.order_end(f"agent:{agent.host.name}")
    return f"ask {agent.process.name} to end", None, 0.0


def _restart(world: "World", rng: Rng) -> Found:
    """An agent restarts, as on SIGHUP: its engines go on."""
    agent: AgentMember = _one(rng, world.agents)
    _blame(world, agent.process)
    agent.must_restart.set()
    return f"ask {agent.process.name} to restart", None, 0.0


def _second_agent(world: "World", rng: Rng) -> Found:
    """Someone starts a second agent of a host on another machine, while the first one lives: it must give up."""
    agent: AgentMember = _one(rng, world.agents)
    old = agent.process
    if old.state is not State.RUNNING:
        return None
    agent.folder += 1
    agent.start()
    return f"start {agent.process.name} beside {old.name}", None, 0.0


def _other_machine(world: "World", rng: Rng) -> Found:
    """An agent hangs, and its host comes up on another machine; then the first one goes on."""
    agent: AgentMember = _one(rng, world.agents)
    old = agent.process
    if not old.is_alive:
        return None
    _blame(world, old)
    old.stop()
    agent.folder += 1
    agent.start()
    return f"stop {old.name}, and start {agent.process.name} elsewhere", old.resume, _about_a_lease_s(world, rng)


def _lose_host(world: "World", rng: Rng) -> Found:
    """A host is lost for good, with what its agent holds."""
    if len(world.agents) < 2:
        return None
    agent: AgentMember = _one(rng, world.agents)
    world.agents.remove(agent)
    for process in (agent.process, *agent.before):
        _blame(world, process)
        process.kill()
    agent.lose_engines()
    return f"lose the host of {agent.process.name}", None, 0.0


_KINDS: Final[dict[str, Callable[["World", Rng], Found]]] = {
    "kill": _kill,
    "kill an engine": _kill_engine,
    "stop": _stop,
    "stop the leader": _stop_leader,
    "hang with a batch": _hang_with_batch,
    "stop an engine": _stop_engine,
    "cut from the store": _cut_from_store,
    "cut from an agent": _cut_from_agent,
    "slow store": _slow_store,
    "failing store": _failing_store,
    "lost acknowledgements": _unacknowledged,
    "store away": _store_away,
    "store full": _store_full,
    "disk full": _disk_full,
    "disk full and failing store": _disk_full_and_failing_store,
    "clock jump": _clock_jump,
    "store clock jump": _store_clock_jump,
    "drain": _drain,
    "restart": _restart,
    "second agent": _second_agent,
    "other machine": _other_machine,
    "lose a host": _lose_host,
}
