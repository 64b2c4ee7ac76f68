"""What is watched while a world runs: steps that the store's protocol forbids, and lines that engines must not get."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sloserve.core.spans import Phase
from sloserve.fleet.store.database import Params, Session
from sloserve.fleet.store.request_sql import FINISH
from tests.fleet.faults.engines import SimulatedEngine
from tests.fleet.faults.kernel import Process, State

if TYPE_CHECKING:
    from tests.fleet.faults.users import SentBatch
    from tests.fleet.faults.world import World

_ENDED: Final = "('done', 'failed', 'expired', 'cancelled')"
_MOVES: Final = (
    "('unconfirmed validating', 'unconfirmed cancelling', 'unconfirmed cancelled', 'validating in_progress', "
    "'validating failed', 'validating cancelling', 'in_progress finalizing', 'in_progress cancelling', "
    "'finalizing completed', 'finalizing expired', 'cancelling cancelled', 'cancelling failed')"
)
_NOTE: Final = "BEGIN INSERT INTO protocol_fault VALUES"
TRIGGERS: Final = (
    "CREATE TABLE protocol_fault (text text)",
    f"""CREATE TRIGGER revived AFTER UPDATE OF state ON request WHEN OLD.state IN {_ENDED} AND NEW.state <> OLD.state
        {_NOTE} (OLD.id || ' was ' || OLD.state || ' and is ' || NEW.state); END""",
    f"""CREATE TRIGGER finished AFTER UPDATE OF state ON request WHEN NEW.state = 'done' AND OLD.state <> 'claimed'
        {_NOTE} (OLD.id || ' was ' || OLD.state || ' and is done'); END""",
    f"""CREATE TRIGGER claimed AFTER UPDATE OF state ON request WHEN NEW.state = 'claimed'
        AND (OLD.state <> 'queued' OR NEW.attempt <> OLD.attempt + 1 OR NEW.claim IS NULL)
        {_NOTE} (OLD.id || ' was ' || OLD.state || ' at attempt ' || OLD.attempt || ' and is claimed for attempt ' ||
        NEW.attempt); END""",
    f"""CREATE TRIGGER older_plan AFTER UPDATE ON plan WHEN (NEW.term, NEW.version) <= (OLD.term, OLD.version)
        {_NOTE} ('plan ' || OLD.term || '.' || OLD.version || ' is followed by ' || NEW.term || '.' || NEW.version);
        END""",
    "CREATE TABLE lapsed (request text, attempt int, at_s real)",
    """CREATE TRIGGER lapse BEFORE DELETE ON claim WHEN OLD.until_s <= store_now() BEGIN
        INSERT INTO lapsed SELECT id, attempt, OLD.until_s FROM request WHERE claim = OLD.id; END""",
    f"""CREATE TRIGGER moved AFTER UPDATE OF state ON batch WHEN OLD.state || ' ' || NEW.state NOT IN {_MOVES}
        {_NOTE} (OLD.id || ' was ' || OLD.state || ' and is ' || NEW.state); END""",
)
"""Statements that have the store note what no step of the protocol does, and which claims were not renewed in time."""
_LAPSED: Final = "SELECT at_s FROM lapsed WHERE request = :id AND attempt = :attempt"
_HELD: Final = """
    SELECT r.state, r.batch, c.agent, c.until_s FROM request r LEFT JOIN claim c ON c.id = r.claim WHERE r.id = :id"""
_ENDED_OTHERWISE: Final = """
    SELECT count(*) FROM request r WHERE r.state = 'queued' AND r.attempt = 0 AND r.batch = :batch"""


def lapse_s(world: "World") -> float:
    """Return the seconds after which what kept an agent from renewing has no consequence any more."""
    return 1.5 * world.knobs.lease_s + 10.0


class WatchedSession:
    """A transaction of which results that count are looked at: each must be of the newest attempt."""

    def __init__(self, inner: Session, violations: list[str]) -> None:
        self._inner, self._violations = inner, violations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def given(self, sql: str, params: Sequence[Params]) -> list[tuple[Any, ...]]:
        found = self._inner.given(sql, params)
        if sql == FINISH:
            for id in {row[0] for row in found}:
                newest = self._inner.rows("SELECT attempt FROM request WHERE id = :id", id=id)[0][0]
                stated = {one["attempt"] for one in params if one["id"] == id}
                if newest not in stated:
                    self._violations.append(f"results of attempts {stated} of {id} count, and attempt {newest} runs")
        return found


class Oracles:
    """Looks at each request that an engine begins, and now and then at all members."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def began(self, engine: SimulatedEngine, request: str) -> None:
        """Note that an engine begins a request; engines get canaries and streams, too."""
        world = self._world
        if not request.startswith("batch_req"):
            return
        world.ran[request] += 1
        if not self._is_held(engine, request):
            # It may just have been given back, and then its end is on its way to the engine.
            world.kernel.after(engine.process, 0.5, lambda: self._must_have_left(engine, request))
        self._has_lease(engine, request)
        self._runs_alone(engine, request)
        self._is_wanted(request)

    def look(self) -> None:
        """Look whether a step was made that the protocol forbids, and whether a host has two agents with engines."""
        world, now_s = self._world, self._world.kernel.now_s
        recent_s = 20.0 + 5.0 * world.knobs.pace
        self._all_are_held()
        self._cancelled_have_left()
        self._engines_are_known()
        world.violations += self._forbidden()
        owners: dict[str, set[str]] = {}
        for engine in world.ground.engines:
            owner = engine.owner
            calm = owner.state is State.RUNNING and owner.disturbed_s < now_s - recent_s
            if engine.process.is_alive and calm and world.store_clock.set_s < now_s - recent_s:
                owners.setdefault(owner.place, set()).add(owner.name)
        for place, names in owners.items():
            if len(names) > 1:
                world.violations.append(f"{place} has {len(names)} agents with engines: {sorted(names)}")

    def _engines_are_known(self) -> None:
        """Check that each engine of an agent is one of its instances' engines, and awake if the instance takes it so.

        While a switch is on its way, or an agent comes or goes, an instance may not know yet.
        """
        world = self._world
        for engine in world.ground.engines:
            instances = world.ground.instances.get(engine.owner.name)
            if instances is None or not (engine.owner.state is engine.process.state is State.RUNNING):
                continue
            if any(one.is_switching or one._is_leaving or one._phase is Phase.EMPTY for one in instances):
                continue
            held = [known for one in instances for known in one._engines._engines if known.process is engine]
            if not held:
                world.violations.append(f"{engine.process.name} goes on, and no instance of {engine.owner.name} has it")
            elif engine.engine.is_sleeping is not (held[0].level > 0):
                state = "sleeps" if engine.engine.is_sleeping else "is awake"
                world.violations.append(f"{engine.process.name} {state}, and {engine.owner.name} takes it otherwise")

    def lost_host(self, process: Process) -> None:
        """Note that an agent finds that another has its host: nothing else may have kept it from renewing its lease."""
        if self._is_undisturbed(process):
            self._world.violations.append(f"{process.name} was well, and another agent has its host")

    def _forbidden(self) -> list[str]:
        """Return the steps that the protocol forbids."""
        with self._world.inner.reading() as session:
            return [str(text) for (text,) in session.rows("SELECT DISTINCT text FROM protocol_fault")]

    def _row(self, request: str) -> tuple[Any, ...]:
        with self._world.inner.reading() as session:
            found = session.rows(_HELD, id=request)
        return found[0] if found else (None, None, None, None)

    def _is_held(self, engine: SimulatedEngine, request: str) -> bool:
        state, _, agent, _ = self._row(request)
        return state == "claimed" and agent == self._world.ground.holders.get(engine.owner.name)

    def _is_calm(self, engine: SimulatedEngine) -> bool:
        """Return whether nothing can have kept the agent of an engine from renewing its leases."""
        return self._is_undisturbed(engine.owner) and not self._was_stopped(engine)

    def _was_stopped(self, engine: SimulatedEngine) -> bool:
        """Return whether the engine was stopped a short while ago: what it begins and ends then comes late."""
        return engine.process.state is State.STOPPED or engine.process.disturbed_s > self._world.kernel.now_s - 60.0

    def _is_undisturbed(self, process: Process) -> bool:
        world = self._world
        since_s = world.kernel.now_s - lapse_s(world)
        last_s = max(process.disturbed_s, world.store_clock.set_s, world.trouble.since_s)
        return process.state is State.RUNNING and last_s < since_s

    def _has_lease(self, engine: SimulatedEngine, request: str) -> None:
        """Check that a line is sent within the lease of its claim, by which no other agent can have it.

        What counts is when the agent decided it: its process may have been stopped between that and the send.
        """
        world = self._world
        found = _serving(engine.owner, request)
        if found is None or world.store_clock.set_s > world.kernel.now_s - 2.0 * world.knobs.lease_s:
            return
        decided_s, attempt = found
        ended_s = self._row(request)[3] if self._is_held(engine, request) else self._lapsed_s(request, attempt)
        if ended_s is not None and (late_s := decided_s + world.store_clock.ahead_s - ended_s) > 0.0:
            world.violations.append(f"{request} was sent to {engine.process.name} {late_s:.1f} s after its lease")

    def _lapsed_s(self, request: str, attempt: int) -> float | None:
        """Return when the lease of an attempt ended by the store's clock, ``None`` if it has not lapsed."""
        with self._world.inner.reading() as session:
            found = session.rows(_LAPSED, id=request, attempt=attempt)
        return float(found[0][0]) if found else None

    def _all_are_held(self) -> None:
        for engine in self._world.ground.engines:
            for request in engine.running:
                if request.startswith("batch_req") and self._is_calm(engine) and not self._is_held(engine, request):
                    later = partial(self._must_have_left, engine, request)
                    self._world.kernel.after(engine.process, 0.5, later)

    def _must_have_left(self, engine: SimulatedEngine, request: str) -> None:
        world, now_s = self._world, self._world.kernel.now_s
        calm_s = now_s - 60.0
        if engine.process.disturbed_s > calm_s or world.store_clock.set_s > calm_s:
            return
        if engine.owner.state is State.STOPPED or world.trouble.latency_s > 0.01:
            return
        if request in engine.running and not self._is_held(engine, request):
            state, _, agent, _ = self._row(request)
            text = f"{request} was sent to {engine.process.name}, and is {state} for {agent}"
            world.violations.append(text)

    def _runs_alone(self, engine: SimulatedEngine, request: str) -> None:
        world = self._world
        for other in world.ground.engines:
            if other is not engine and request in other.running and self._is_calm(other):
                world.violations.append(f"{request} runs on {engine.process.name} and {other.process.name} at once")

    def _is_wanted(self, request: str) -> None:
        """Check, in a healthy fleet, that no engine begins a line of a batch that was cancelled a while ago."""
        if (after_s := self._cancelled_for_s(request)) is not None:
            self._world.violations.append(f"{request} begins {after_s:.0f} s after its cancel")

    def _cancelled_have_left(self) -> None:
        """Check, in a healthy fleet, that no line of a batch that was cancelled a while ago waits or runs."""
        world = self._world
        for engine in world.ground.engines:
            for request in [one for one in engine.running if one.startswith("batch_req")]:
                if not self._was_stopped(engine) and (after_s := self._cancelled_for_s(request)) is not None:
                    world.violations.append(f"{request} runs {after_s:.0f} s after its cancel")
        for sent in world.users.ledger.batches:
            if self._is_long_cancelled(sent):
                with world.inner.reading() as session:
                    (count,) = session.rows(_ENDED_OTHERWISE, batch=sent.id)[0]
                if count:
                    world.violations.append(f"{count} lines of {sent.id} wait long after its cancel")

    def _cancelled_for_s(self, request: str) -> float | None:
        """Return for how long a line has been cancelled, if no engine may have it any more; else ``None``."""
        batch = self._row(request)[1]
        found = (one for one in self._world.users.ledger.batches if one.id == batch and self._is_long_cancelled(one))
        sent = next(found, None)
        return None if sent is None else self._world.kernel.now_s - sent.cancelled_s

    def _is_long_cancelled(self, sent: "SentBatch") -> bool:
        """Return whether a batch was cancelled so long ago that gateways and agents have acted on it."""
        knobs, now_s = self._world.knobs, self._world.kernel.now_s
        since_s = now_s - knobs.lease_s / 2.0 - knobs.pace - 5.0
        return self._world.quiet_s < since_s and sent.cancelled_s < since_s


def _serving(owner: Process, request: str) -> tuple[float, int] | None:
    """Return when an agent began the task that sends a line, and its attempt; ``None`` without such a task."""
    for task in owner.tasks:
        coro = task.get_coro()
        if coro.__qualname__ == "LineService._serve" and coro.cr_frame is not None:
            claimed = coro.cr_frame.f_locals["line"].claimed
            if claimed.id == request:
                return task.created_s, claimed.attempt
    return None
