"""Faults planted into the product, to see whether seeds find them: python -m tests.fleet.faults.mutants [--only NAME].

Each is a change of one place of the source, which is made as the module is loaded; no file is touched. It runs in a
process of its own, seed by seed, until something is broken or its time is over.
"""

import argparse
import importlib
import importlib.machinery
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final

from tests.bounded import within

_HOURS: Final = 0.1
_LOADED_BEFORE: Final = ("aiohttp", "numpy", "starlette.applications", "pydantic", "prometheus_client", "yaml")
"""Packages that the product loads, and that take the longest."""


@dataclass(frozen=True)
class Mutant:
    """A planted fault. module: below ``sloserve.fleet``; before: text that the source has once."""

    name: str
    module: str
    before: str
    after: str


MUTANTS: Final = (
    Mutant(
        "a result counts whatever attempt it is of",
        "store.request_sql",
        "WHERE request.id = given.id AND request.attempt = given.attempt AND request.state = 'claimed'\n    RETURNING",
        "WHERE request.id = given.id AND request.state = 'claimed'\n    RETURNING",
    ),
    Mutant(
        "a result counts for a request that has ended",
        "store.request_sql",
        "WHERE request.id = given.id AND request.attempt = given.attempt AND request.state = 'claimed'\n    RETURNING",
        "WHERE request.id = given.id AND request.attempt = given.attempt\n    RETURNING",
    ),
    Mutant(
        "the attempt is not raised",
        "store.request_sql",
        "state = 'claimed', attempt = attempt + 1, claim",
        "state = 'claimed', attempt = attempt, claim",
    ),
    Mutant(
        "claimed requests are claimed again",
        "store.request_sql",
        "ALIVE: Final = \"state = 'queued' AND",
        "ALIVE: Final = \"state IN ('queued', 'claimed') AND",
    ),
    Mutant(
        "a lease lapses 20 s too early",
        "store.request_sql",
        "DELETE FROM claim WHERE until_s <= store_now() OR",
        "DELETE FROM claim WHERE until_s <= store_now() + 20 OR",
    ),
    Mutant(
        "a lease never lapses",
        "store.request_sql",
        "DELETE FROM claim WHERE until_s <= store_now() OR",
        "DELETE FROM claim WHERE until_s <= store_now() - 1e9 OR",
    ),
    Mutant(
        "a lapsed claim is deleted, and its requests stay claimed",
        "store.requests",
        "longest_s=LONGEST_S)\n            _requeue(session, [claim for (claim,) in lapsed])",
        "longest_s=LONGEST_S)",
    ),
    Mutant(
        "claims of an agent that has died are deleted, and not given back",
        "store.requests",
        'RETURNING id", agent=agent)\n            _requeue(session, [claim for (claim,) in held])',
        'RETURNING id", agent=agent)',
    ),
    Mutant(
        "what is given back stays claimed",
        "store.requests",
        '            session.change(sql.REQUEUE, claim=claim)\n            session.change("DELETE FROM claim',
        '            session.change("DELETE FROM claim',
    ),
    Mutant(
        "suspects are not halved",
        "store.requests",
        "most=max(suspects // 2, 1)",
        "most=suspects",
    ),
    Mutant(
        "an engine's death makes no suspects",
        "store.requests",
        "                session.change(sql.SUSPECT, claim=claim, suspects=len(found))",
        "                session.change(sql.SUSPECT, claim=claim, suspects=0)",
    ),
    Mutant(
        "requests expire that are not due",
        "store.request_sql",
        'DUE: Final = "due_s <= (SELECT store_now())"',
        'DUE: Final = "due_s <= (SELECT store_now()) + 90000"',
    ),
    Mutant(
        "queued requests of a cancelled batch go on",
        "store.requests",
        'ended = self._end_queued("batch = :batch", RequestState.CANCELLED, batch=batch)',
        "ended: list[str] = []",
    ),
    Mutant(
        "a cancel of requests in flight is lost",
        "store.request_sql",
        "SET cancelled = 1 WHERE",
        "SET cancelled = 0 WHERE",
    ),
    Mutant(
        "a batch moves whatever state it is in",
        "store.batches_sql",
        "    WHERE id = :id AND state = :before",
        "    WHERE id = :id AND :before <> ''",
    ),
    Mutant(
        "a planner takes the lead from another that lives",
        "store.members",
        "    WHERE leader.holder = excluded.holder OR leader.until_s <= store_now()\n        OR",
        "    WHERE leader.holder = excluded.holder OR leader.until_s > 0\n        OR",
    ),
    Mutant(
        "a plan is written whoever leads",
        "store.members",
        "WHERE role = :role AND term = :term AND holder = :holder\n    ON CONFLICT (role) DO UPDATE SET term = "
        "excluded.term, version = excluded.version, plan = excluded.plan\n    WHERE (plan.term, plan.version) < "
        "(excluded.term, excluded.version)",
        "WHERE role = :role AND :term > 0 AND :holder <> ''\n    ON CONFLICT (role) DO UPDATE SET term = "
        "excluded.term, version = excluded.version, plan = excluded.plan",
    ),
    Mutant(
        "an agent takes a host that another one has",
        "store.members",
        "OR (agent.until_s <= store_now() AND (",
        "OR (agent.until_s > 0 AND (",
    ),
    Mutant(
        "an agent does not notice that another has its host",
        "agent.host_fence",
        "        self.lost.set()\n",
        "        pass\n",
    ),
    Mutant(
        "an agent sends lines after its lease",
        "agent.line_service",
        "room > 0 and claim.lease.left_s > 0.0 and line.model",
        "room > 0 and line.model",
    ),
    Mutant(
        "the holder's lease is ten times as long",
        "store.lease",
        "self._asked_s + self.lease_s * (1.0 - MARGIN)",
        "self._asked_s + self.lease_s * 10.0",
    ),
    Mutant(
        "a claim whose response was lost is renewed for ever",
        "agent.pulling",
        "for id in renewed.claims - held.keys() - claims.ending.keys():",
        "for id in frozenset[int]():",
    ),
    Mutant(
        "the use of a result that does not count is counted",
        "store.requests",
        "            _count_use(session, ended)",
        "            _count_use(session, first.values())",
    ),
    Mutant(
        "the body of a line that has ended stays",
        "store.requests",
        "            _forget_bodies(session, (r.id for r in ended))\n",
        "",
    ),
    Mutant(
        "only one of a group learns that its commit failed",
        "store.group_commit",
        "                    for _, future in part:\n",
        "                    for _, future in part[:1]:\n",
    ),
    Mutant(
        "lines of a dead engine are not reported",
        "agent.crashes",
        "                await self._mark_suspects(claims, streams)",
        "                pass",
    ),
    Mutant(
        "a line that was on its way to an engine that died is no suspect",
        "agent.claims",
        "any(line.is_sent or line.is_coming for",
        "any(line.is_sent for",
    ),
    Mutant(
        "an engine that died is not replaced",
        "agent.instance",
        "            self._fail(self._models[self._active])",
        "            self._phase = Phase.FAILED",
    ),
    Mutant(
        "a switch that has ended counts as one under way",
        "agent.instance",
        "            return False\n        finally:\n            self._is_switching = False",
        "            return False\n        finally:\n            pass",
    ),
    Mutant(
        "a request that has ended keeps its place in the engine",
        "agent.engine_requests",
        "        self._requests.pop(request, None)\n",
        "        self._requests.get(request)\n",
    ),
    Mutant(
        "the text before a continuation is lost",
        "agent.line_output",
        '        text = (before.text if before else "") + "".join(self._text)\n        is_chat',
        '        text = "".join(self._text)\n        is_chat',
    ),
    Mutant(
        "a complete output is continued",
        "agent.line_output",
        "        return self.is_complete or (limit",
        "        return False and (limit",
    ),
    Mutant(
        "a request's id is new each time that its line is accepted",
        "batch_api.ids",
        '    return f"batch_req_{_digest(batch, str(line))}"',
        '    return f"batch_req_{secrets.token_hex(16)}"',
    ),
    Mutant(
        "a batch to confirm is forgotten when the store is away",
        "batch_api.runner",
        "            self._confirmed(self.to_confirm[0])\n            self.to_confirm.popleft()",
        "            self._confirmed(self.to_confirm.popleft())",
    ),
    Mutant(
        "a file of results is written anew once they are deleted",
        "batch_api.results",
        "                    raise EndedMeanwhile",
        "                    pass",
    ),
    Mutant(
        "a stream that breaks off ends without an error event",
        "gateway.passing",
        '            await send({"type": "http.response.body", "body": event, "more_body": True})\n',
        "",
    ),
    Mutant(
        "an instance that has refused a request gets none from that gateway ever again",
        "gateway.gateway_instance",
        "if self._refused_at is not None and (sent_before >= self._refused_at[0] or made_s > self._refused_at[1]):",
        "if self._refused_at is not None and sent_before < 0:",
    ),
    Mutant(
        "an engine that is not taken over goes on",
        "agent.engine_set",
        "            process.kill()\n            return None\n        engine = Engine(model",
        "            return None\n        engine = Engine(model",
    ),
    Mutant(
        "a sleeping engine that is taken over counts as awake",
        "agent.engine_set",
        "engine.level, engine.parked, engine.adapters = note.level,",
        "engine.level, engine.parked, engine.adapters = 0,",
    ),
    Mutant(
        "lines of a batch that is not validated any more are accepted",
        "store.requests",
        "not session.change(sql.ACCEPTING, batch=batch, lines=lines):",
        "session.change(sql.ACCEPTING, batch=batch, lines=lines) < 0:",
    ),
)


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        if source.count(self.mutant.before) != 1:
            raise SystemExit(f"{self.path} has {source.count(self.mutant.before)} times:\n{self.mutant.before}")
        return compile(source.replace(self.mutant.before, self.mutant.after), self.path, "exec")


class _Finder:
    """Plants a fault into a module as it is loaded."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant, self._name = mutant, f"sloserve.fleet.{mutant.module}"

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        loader = _Loader(name, spec.origin)
        loader.mutant = self._mutant
        spec.loader = loader
        return spec


def _run_one(mutant: Mutant | None, seeds: range, cpu_s: float) -> dict[str, Any]:
    """Return the seed that finds a fault, and after how much CPU time."""
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))  # type: ignore[arg-type]
    from tests.fleet.faults.runs import outcome_of

    spent_s = 0.0
    for seed in seeds:
        outcome = outcome_of(seed, _HOURS)
        spent_s += outcome.cpu_s
        if outcome.broken:
            return {"seed": seed, "cpu_s": spent_s, "broken": outcome.broken[0]}
        if spent_s > cpu_s:
            break
    return {"seed": None, "cpu_s": spent_s, "broken": f"nothing in {seed - seeds.start + 1} seeds"}


def _in_child(mutant: Mutant | None, seeds: range, cpu_s: float) -> dict[str, Any]:
    """Return what :func:`_run_one` returns, from a process that has not loaded the product before."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writes, json.dumps(_run_one(mutant, seeds, cpu_s)).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe, within(f"seeds with {mutant}", 20.0 * cpu_s + 600.0):
        text = pipe.read()
        os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"seed": None, "cpu_s": 0.0, "broken": "it ended with an exception"}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fleet.faults.mutants", description="Plant faults, run seeds."
    )
    parser.add_argument("--only", default="", help="part of the name")
    parser.add_argument("--begin", type=int, default=0, help="leave out so many of the list")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cpu-s", type=float, default=120.0, help="CPU seconds for each")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.fleet.faults.mutants", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    for name in _LOADED_BEFORE:
        importlib.import_module(name)
    found, total_s, seeds = 0, 0.0, range(args.first, args.first + 10_000)
    print("| planted fault | found after | by | as |\n| --- | --- | --- | --- |", flush=True)
    chosen = [mutant for mutant in MUTANTS[args.begin :] if args.only in mutant.name]
    for mutant in chosen:
        result = _in_child(mutant, seeds, args.cpu_s)
        found, total_s = found + (result["seed"] is not None), total_s + result["cpu_s"]
        after = f"{result['cpu_s']:.0f} s" if result["seed"] is not None else f"not in {result['cpu_s']:.0f} s"
        broken = result["broken"].replace("|", "/")[:90]
        print(f"| {mutant.name} | {after} | seed {result['seed']} | {broken} |", flush=True)
    print(f"\n{found} of {len(chosen)} found, {total_s:.0f} s of CPU")


if __name__ == "__main__":
    main()
