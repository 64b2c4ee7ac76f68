"""Members of a fleet: signs of life of agents, one leader at a time, the plan in force."""

import json
from collections.abc import Mapping
from typing import Any, Final

from sloserve.fleet.store.database import Database
from sloserve.fleet.store.lease import LONGEST_S
from sloserve.fleet.store.records import AgentRecord, HostRenewed, HostTaken, StoredPlan

FORGOTTEN_S: Final = 3_600.0
"""Seconds without a sign of life after which the next planner that leads forgets a member."""
_PLANNER: Final = "planner"


class Members:
    """Agents, leader and plan of one store. Every method is one transaction; many threads may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def beat(self, agent: str, state: Mapping[str, Any]) -> None:
        """Record that an agent is alive, together with its state."""
        with self._database.transaction() as session:
            session.change(_BEAT, id=agent, state=json.dumps(state))

    def take_host(self, agent: str, holder: str, place: str, lease_s: float) -> HostTaken:
        """Make the process ``holder`` the agent of a host, unless another process is.

        Another process is not if the host has had none, if its lease is over, or if it held the same lock as ``holder``
        does now and has died.

        Args:
            agent: Id under which the agent gives signs of life.
            holder: Name of the process that takes the host.
            place: Name of the lock.
            lease_s: Length of the lease in seconds; see :meth:`renew_host`.
        """
        with self._database.transaction() as session:
            before = session.rows("SELECT holder, until_s FROM agent WHERE id = :id", id=agent)
            values = {"id": agent, "holder": holder, "place": place, "lease_s": lease_s}
            taken = bool(session.rows(_TAKE_HOST, **values, longest_s=LONGEST_S))
        last, until_s = before[0] if before else (None, 0.0)
        return HostTaken(taken, None if last == holder else last, float(until_s))

    def renew_host(self, agent: str, holder: str, state: Mapping[str, Any], lease_s: float) -> HostRenewed:
        """Record a sign of life, as :meth:`beat` does, if the process still holds its host."""
        with self._database.transaction() as session:
            values = {"id": agent, "holder": holder, "state": json.dumps(state), "lease_s": lease_s}
            found = session.rows(_RENEW_HOST, **values)
        return HostRenewed(bool(found), bool(found and found[0][0]))

    def order_end(self, agent: str) -> None:
        """Ask the process that is this agent now to drain and end; its next sign of life returns the request."""
        with self._database.transaction() as session:
            session.change("UPDATE agent SET told_to_end = 1 WHERE id = :id", id=agent)

    def agents(self) -> list[AgentRecord]:
        """Return all agents that gave a sign of life recently and did not leave, in order of their ids."""
        with self._database.reading() as session:
            found = session.rows("SELECT id, state, store_now() - beat_s FROM agent ORDER BY id")
        return [AgentRecord(id_, json.loads(state), float(age_s)) for id_, state, age_s in found]

    def leave(self, member: str, holder: str = "") -> None:
        """Remove a member, which is then no longer missed. Claims that it has not given back will lapse.

        Args:
            member: Id of the member that leaves.
            holder: Process that leaves, for an agent; if another process has taken its host, that process stays.
        """
        with self._database.transaction() as session:
            gone = "DELETE FROM agent WHERE id = :id AND (holder IS NULL OR holder = :holder)"
            session.change(gone, id=member, holder=holder)

    def lead(self, holder: str, lease_s: float) -> int | None:
        """Make or keep ``holder`` the leader and return its term, or ``None`` if another process leads.

        The term of a new leader is higher than any before.
        """
        with self._database.transaction() as session:
            found = session.rows(_LEAD, role=_PLANNER, holder=holder, lease_s=lease_s, longest_s=LONGEST_S)
            if found:  # names are new in each process: rows of killed ones would stay
                session.change("DELETE FROM agent WHERE beat_s < store_now() - :gone_s", gone_s=FORGOTTEN_S)
        return int(found[0][0]) if found else None

    def write_plan(self, holder: str, plan: StoredPlan) -> bool:
        """Put a plan in force; return ``False`` if its term is over or a later plan of that term is in force."""
        values = {"role": _PLANNER, "holder": holder, "term": plan.term, "version": plan.version}
        with self._database.transaction() as session:
            return session.change(_WRITE_PLAN, **values, plan=json.dumps(plan.plan)) > 0

    def plan(self, known: StoredPlan | None = None) -> StoredPlan | None:
        """Return the plan in force, or ``None`` before the first.

        Args:
            known: A plan that was in force before; if it still is, it is returned itself, and its text is not read.
        """
        last = (-1, -1) if known is None else (known.term, known.version)
        with self._database.reading() as session:
            found = session.rows(_PLAN, role=_PLANNER, term=last[0], version=last[1])
        if not found:
            return None
        term, version, plan = found[0]
        return known if plan is None else StoredPlan(int(term), int(version), json.loads(plan))


_BEAT: Final = """
    INSERT INTO agent (id, state, beat_s) VALUES (:id, :state, store_now())
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, beat_s = excluded.beat_s"""
_TAKE_HOST: Final = """
    INSERT INTO agent (id, state, beat_s, holder, place, until_s)
    VALUES (:id, '{}', store_now(), :holder, :place, store_now() + :lease_s)
    ON CONFLICT (id) DO UPDATE SET
        state = excluded.state,
        beat_s = excluded.beat_s,
        holder = excluded.holder,
        place = excluded.place,
        until_s = excluded.until_s,
        told_to_end = 0
    WHERE agent.holder = excluded.holder OR agent.place = excluded.place
        OR agent.until_s > store_now() + :longest_s
        OR (agent.until_s <= store_now() AND (agent.holder IS NOT NULL OR agent.beat_s <= store_now() - :lease_s))
    RETURNING id"""
_RENEW_HOST: Final = """
    UPDATE agent SET state = :state, beat_s = store_now(), until_s = store_now() + :lease_s
    WHERE id = :id AND holder = :holder
    RETURNING told_to_end"""
_LEAD: Final = """
    INSERT INTO leader (role, holder, term, until_s) VALUES (:role, :holder, 1, store_now() + :lease_s)
    ON CONFLICT (role) DO UPDATE SET
        holder = excluded.holder,
        until_s = excluded.until_s,
        term = leader.term
            + CASE WHEN leader.holder = excluded.holder AND leader.until_s > store_now() THEN 0 ELSE 1 END
    WHERE leader.holder = excluded.holder OR leader.until_s <= store_now()
        OR leader.until_s > store_now() + :longest_s
    RETURNING term"""
_PLAN: Final = """
    SELECT term, version, CASE WHEN term = :term AND version = :version THEN NULL ELSE plan END
    FROM plan WHERE role = :role"""
_WRITE_PLAN: Final = """
    INSERT INTO plan (role, term, version, plan)
    SELECT role, term, CAST(:version AS bigint), CAST(:plan AS text) FROM leader
    WHERE role = :role AND term = :term AND holder = :holder
    ON CONFLICT (role) DO UPDATE SET term = excluded.term, version = excluded.version, plan = excluded.plan
    WHERE (plan.term, plan.version) < (excluded.term, excluded.version)"""
