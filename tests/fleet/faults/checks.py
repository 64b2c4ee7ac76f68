"""What must hold of a world that has settled: nothing lost, nothing twice, nothing stuck, nothing left over."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from sloserve.fleet.store.records import ENDED_STATES, OPEN_STATES, Batch, BatchState
from tests.bounded import within
from tests.fleet.faults.users import COMPLETIONS, Line, SentBatch

if TYPE_CHECKING:
    from tests.fleet.faults.world import World

KNOWN: Final[dict[str, str]] = {}
"""Faults of the product that are known, by the name of the check that finds them. An entry goes when its mend is in."""

Found = Iterator[tuple[str, str]]
_GIVEN_UP: Final = "no engine finished this request, however often it was tried"
_POISON: Final = "the engine died while it served this request and nothing else"
_LEFT_IN_THE_STORE: Final = {
    "results": "SELECT count(*) FROM request_result",
    "claims": "SELECT count(*) FROM claim",
    "progress": "SELECT count(*) FROM request_progress",
    "open requests": "SELECT count(*) FROM request WHERE state IN ('queued', 'claimed')",
    "bodies": "SELECT count(*) FROM request_body",
    "requests of no batch": "SELECT count(*) FROM request WHERE batch NOT IN (SELECT id FROM batch)",
    "claimed requests": "SELECT count(*) FROM request WHERE claim IS NOT NULL",
}


def violations(world: "World", known: "dict[str, str] | None" = None) -> list[str]:
    """Return what does not hold, without what is known."""
    known = KNOWN if known is None else known
    found: list[tuple[str, str]] = [*_halves(world), *_planner(world)]
    world.wait_and_tidy(3_700.0)  # unconfirmed batches are given up
    for check in (_processes, _batches, _streams, _store, _files):
        found += check(world)
    world.wait_and_tidy(32 * 86_400.0)
    found += _forgotten(world)
    found += [("while it ran", text) for text in world.violations]
    for kind, _ in found:
        world.counts[f"known: {kind}"] += kind in known
    return [f"{kind}: {text}" for kind, text in dict.fromkeys(found) if kind not in known]


def _processes(world: "World") -> Found:
    for process in world.kernel.processes:
        for fault in process.faults:
            yield "fault of a process", f"{process.name}: {fault}"
    for member in world.members:
        if not member.process.is_alive:
            yield "member", f"{member.process.name} has ended, and did not come back"
        for process in member.before:
            if process.is_alive:
                yield "member", f"{process.name} goes on beside {member.process.name}"
    awake = Counter[str]()
    for engine in [one for one in world.ground.engines if one.process.is_alive]:
        awake[engine.owner.place] += not engine.engine.is_sleeping
        if not engine.owner.is_alive:
            yield "left engine", f"{engine.process.name} goes on without an agent"
    for agent in world.agents:
        if awake[agent.place] > len(agent.host.instances):
            yield "left engine", f"{agent.place} has {awake[agent.place]} engines that are awake"


def _batches(world: "World") -> Found:
    asked = world.users.ledger.of_number()
    kept: dict[str, Batch] = {}
    for tenant in {batch.tenant for batch in asked.values()}:
        after = None
        while page := world.store.batches.list(tenant, after, 50):
            kept |= {str((one.metadata or {}).get("number")): one for one in page}
            after = page[-1].id
    for number, sent in asked.items():
        batch = kept.get(number)
        if batch is None:
            if sent.status == 200:
                yield "lost batch", f"{sent.id} was answered with 200, and does not exist"
            continue
        if sent.id is not None and batch.id != sent.id:
            yield "lost batch", f"{batch.id} has the number of {sent.id}"
        yield from _batch(world, sent, batch)


def _batch(world: "World", sent: SentBatch, batch: Batch) -> Found:
    state, counts = batch.state, world.store.requests.counts(batch.id)
    name = f"{batch.id} ({sent.status}, {state.value})"
    if state not in ENDED_STATES:
        what = "unconfirmed" if state is BatchState.UNCONFIRMED else "stuck"
        yield what, f"{name}: {counts}"
        return
    never_ran = state is BatchState.CANCELLED and BatchState.CANCELLING.value not in batch.stamps
    if sent.status is not None and sent.status != 200:
        if not never_ran or counts:
            yield "refused and run", f"{name}: {counts}"
        return
    if never_ran:  # it was never confirmed
        if sent.status == 200:
            kind = "lost batch" if sent.gateway.is_alive else "confirmed too late"
            if sent.gateway.is_alive or not _was_said_to_be_lost(world, batch):
                yield kind, f"{name}: asked of {sent.gateway.name}"
        if counts:
            yield "runs for nobody", f"{name}: {counts}"
        return
    if sent.cancel_accepted and state is not BatchState.CANCELLED:
        yield "lost cancel", name
    if state is BatchState.CANCELLED and not sent.cancel_asked:
        yield "cancelled by nobody", name
    if state is BatchState.FAILED:
        if not sent.file.delete_asked:
            yield "failed", f"{name}: {batch.errors}"
        if counts:
            yield "runs for nobody", f"{name}: {counts}"
        return
    if state is BatchState.EXPIRED and sent.window == "24h" and not world.counts["store clock jump"]:
        yield "expired", name
    yield from _results(world, sent, batch, name)


def _was_said_to_be_lost(world: "World", batch: Batch) -> bool:
    """Return whether a gateway logged that the batch is lost with it: neither store nor disk took the confirmation."""
    return any(f"batch {batch.id} is lost if" in text for _, text in world.events)


def _results(world: "World", sent: SentBatch, batch: Batch, name: str) -> Found:
    lines = {line.custom_id: line for line in sent.file.lines}
    rows: list[tuple[str, dict[str, Any]]] = []
    for id, kind in ((batch.output_file, "output"), (batch.error_file, "error")):
        if id is None:
            continue
        file = world.folder.open(id)
        if file is None or world.store.batches.file(batch.tenant, id) is None:
            yield "file", f"{name}: its {kind} file has no bytes, or no row"
            continue
        with file:
            rows += [(kind, json.loads(row)) for row in file.read().splitlines()]
    times = Counter(row["custom_id"] for _, row in rows)
    twice = [id for id, count in times.items() if count > 1]
    if twice:
        yield "two results", f"{name}: {twice}"
    lost = [id for id in lines if id not in times]
    was_validated = BatchState.IN_PROGRESS.value in batch.stamps
    # A batch that is cancelled before any of its lines was accepted has no lines; else its file has the others.
    is_early = batch.state is BatchState.CANCELLED and not was_validated
    if lost and not (is_early and (sent.file.delete_asked or not (batch.lines or rows))):
        yield "lost lines", f"{name}: {len(lost)} of {len(lines)}: {lost[:3]}"
    if strange := times.keys() - lines.keys():
        yield "strange lines", f"{name}: {strange}"
    whole = sum(kind == "output" for kind, _ in rows)
    if (batch.completed, batch.completed + batch.failed, batch.lines) != (whole, len(rows), len(rows)):
        counted = f"{batch.completed} + {batch.failed} of {batch.lines}"
        yield "counts", f"{name}: {counted}, and its files have {whole} of {len(rows)}"
    for kind, row in rows:
        if row["custom_id"] in lines:
            yield from _row(world, sent, batch, kind, row, lines[row["custom_id"]])


def _row(world: "World", sent: SentBatch, batch: Batch, kind: str, row: dict[str, Any], line: Line) -> Found:
    name, error = f"{batch.id} {line.custom_id} ({row['id']})", row["error"]
    if line.is_poison and world.ran[row["id"]] > 12 + 2 * world.blamed[row["id"]]:
        yield "poison", f"{name} was sent to {world.ran[row['id']]} engines"
    if error is None:
        choice = row["response"]["body"]["choices"][0] if row["response"]["status_code"] == 200 else {}
        text = choice.get("text") if "text" in choice else choice.get("message", {}).get("content")
        if text != line.expected(sent.file.route) or kind != "output":
            yield "wrong result", f"{name}: {text!r} is not {line.expected(sent.file.route)!r}: {row['response']}"
        if line.is_poison:
            yield "wrong result", f"{name} kills engines, and has a result"
        return
    code, message = error["code"], error["message"]
    if code == "batch_cancelled":
        is_right = batch.state is BatchState.CANCELLED
    elif code == "batch_expired":
        is_right = sent.window != "24h" or bool(world.counts["store clock jump"])
    elif message == _POISON:
        is_right = line.is_poison or row["id"] in world.blamed
    elif message == _GIVEN_UP:
        is_right = line.is_poison or world.blamed[row["id"]] >= 2
    else:
        is_right = False
    if not is_right:
        yield "wrong error", f"{name}: {code}: {message}; it began {world.ran[row['id']]} times"


def _streams(world: "World") -> Found:
    gave_up = sum("engines broke off with one request" in text for _, text in world.events)
    for sent in world.users.ledger.streams:
        name, expected = f"stream {sent.line.custom_id}", reply_of(sent.line)
        if sent.outcome is None:
            yield "stream", f"{name} of {sent.gateway.name} has not ended; {sent.status}, {sent.text!r}"
        elif not expected.startswith(sent.text):
            yield "stream", f"{name} says {sent.text!r}, not {expected!r}"
        elif sent.outcome == "whole" and sent.text != expected:
            yield "stream", f"{name} ends with {sent.text!r}, not {expected!r}"
        elif sent.outcome == "cut short" or (sent.outcome == "broken" and sent.gateway.is_alive):
            yield "stream", f"{name} of {sent.gateway.name} is {sent.outcome} after {sent.text!r}"
        elif sent.outcome == "status 500" and (gave_up := gave_up - 1) < 0:
            yield "stream", f"{name} of {sent.gateway.name}: {sent.outcome}"
    for task in world.last_streams:
        with within("the outcome of a stream that has ended"):
            last = task.result() if task.done() else None
        if last is None or last.outcome != "whole":
            yield "unhealthy", f"a stream after the faults: {None if last is None else last.outcome}"


def reply_of(line: Line) -> str:
    """Return what any engine says to a stream with this line's prompt."""
    return line.expected(COMPLETIONS)


def _store(world: "World") -> Found:
    with world.inner.reading() as session:
        for what, sql in _LEFT_IN_THE_STORE.items():
            if count := session.rows(sql)[0][0]:
                yield "runs for nobody" if _all_for_nobody(session, what) else "left in the store", f"{count} {what}"
        if stuck := session.rows(f"SELECT id, state FROM batch WHERE state IN ({_OPEN})"):
            yield "stuck", f"{stuck}"
        sums, used = session.rows(_BYTES), session.rows(_USED)
        members = session.rows("SELECT id FROM agent WHERE beat_s < store_now() - 7300")
    for tenant, counted, there in sums:
        if counted != there:
            yield "bytes", f"{tenant}: {counted} bytes are counted, and {there} are there"
    for tenant, counted, done, ended in used:
        if not done <= counted <= ended:
            yield "use", f"{tenant}: {counted} lines are counted, {done} are done, and {ended} have ended"
    if members:
        yield "left in the store", f"members of long ago: {members}"


_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_STATES)
_BYTES: Final = """
    SELECT t.tenant, t.bytes, (SELECT coalesce(sum(CASE WHEN f.bytes < 4096 THEN 4096 ELSE f.bytes END), 0)
        FROM file f WHERE f.tenant = t.tenant) FROM tenant_files t"""
_USED: Final = """
    SELECT tenant, (SELECT coalesce(sum(u.batch_lines), 0) FROM tenant_usage u WHERE u.tenant = r.tenant),
        sum(state = 'done'), count(*) FROM request r WHERE state NOT IN ('queued', 'claimed') GROUP BY tenant"""
_NOT_FOR_NOBODY: Final = """
    SELECT count(*) FROM request r JOIN batch b ON b.id = r.batch
    WHERE r.state IN ('queued', 'claimed') AND b.state NOT IN ('cancelled', 'failed')"""
_RESULTS_FOR_SOMEBODY: Final = """
    SELECT count(*) FROM request_result s JOIN request r ON r.id = s.id JOIN batch b ON b.id = r.batch
    WHERE b.state NOT IN ('cancelled', 'failed')"""


def _all_for_nobody(session: Any, what: str) -> bool:
    """Return whether what is left belongs to lines of batches that have been cancelled or have failed."""
    if what == "results":
        return bool(session.rows(_RESULTS_FOR_SOMEBODY)[0][0] == 0)
    if what in ("open requests", "bodies"):
        return bool(session.rows(_NOT_FOR_NOBODY)[0][0] == 0)
    return False


def _files(world: "World") -> Found:
    """Return files without a row, and rows without a file; what a crash left may stay until it is surely old."""
    with world.inner.reading() as session:
        rows = {str(id) for (id,) in session.rows("SELECT id FROM file WHERE purpose <> 'reserved'")}
    names = _names(world)
    deleted = {file.id for file in world.users.ledger.files if file.delete_asked}
    if missing := rows - names - deleted:
        yield "file", f"rows without bytes: {sorted(missing)[:3]}"
    more = {name for name in names - rows if not name.endswith(".part")}
    unknown = sum(file.id is None or file.delete_asked for file in world.users.ledger.files)
    if len(more) > unknown:
        yield "file", f"{len(more)} files have no row, and {unknown} uploads have not come to a good end"


def _names(world: "World") -> set[str]:
    return {path.name for path in (world.path / "files").iterdir()} - {"fleet-mark"}


def _halves(world: "World") -> Found:
    if halves := sorted(name for name in _names(world) if name.endswith(".part")):
        yield "half files", f"{halves[:3]}"


def _forgotten(world: "World") -> Found:
    """Return what is left a month later: input files alone stay."""
    with world.inner.reading() as session:
        for table in ("request", "batch", "claim", "request_body", "request_result", "request_progress"):
            if count := session.rows(f"SELECT count(*) FROM {table}")[0][0]:
                yield "left after a month", f"{count} rows of {table}"
        files = {str(id) for (id,) in session.rows("SELECT id FROM file")}
    sent = {file.id for file in world.users.ledger.files}
    unknown = sum(file.id is None for file in world.users.ledger.files)
    more = _names(world) - files
    if len(files - sent) > unknown or more:
        yield "left after a month", f"files: {sorted(files - sent)[:3]}, without a row: {sorted(more)[:3]}"


def _planner(world: "World") -> Found:
    stored = world.store.members.plan()
    if stored is None:
        yield "no plan", "there never was one"
        return
    age_s = world.store.now_s() - float(stored.plan["made_s"])
    if age_s > 30.0 + 10.0 * (world.knobs.pace + world.knobs.search_s):
        yield "no plan", f"the plan in force is {age_s:.0f} s old"
