"""Tasks of requests in the front end: keys, deadlines, admission, outcomes, reports and predictions."""

import asyncio
import json
import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ShuttingDown
from sloserve.core.served import InEngine
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.core.tasks import MOST_TASKS, TaskCall
from sloserve.engine.metrics.task_table import IN_TIME, INCOMPLETE, LATE, NO_DEADLINE
from sloserve.vllm_plugin.server.engine_pages import EnginePages
from sloserve.vllm_plugin.server.observe import entering
from sloserve.vllm_plugin.server.request_tasks import server_secret
from sloserve.wire import context
from sloserve.wire.context import HTTPContext
from sloserve.wire.outcome import outcome
from sloserve.wire.xargs import CALL_KEY, TASK_KEYS, stated_call
from tests import bounded
from tests.vllm_plugin.server.fake_engine import T0, Malformed, Metrics, Refused, Server

ID = ("x-slo-task-id", "run-7")
INTERACTIVE = DEFAULT_CLASSES.names.index("interactive")


async def read(replies: Any) -> None:
    async for _ in replies:
        pass


def request(server: Server, *headers: tuple[str, str], body: dict[str, Any] | None = None, **asked: Any) -> HTTPContext:
    """Serve one HTTP request of one call of the engine."""
    http = server.http(*headers)
    if body is not None:
        http.read_body(json.dumps(body).encode())

    async def handler() -> None:
        await read(server.generate(**asked))

    server.handle(http, handler())
    return http


def engine_task(server: Server, at: int = -1) -> TaskCall:
    found = stated_call(server.stated[at])
    assert found is not None
    return found


def test_the_engine_gets_a_key_without_text_of_the_client(metrics: Metrics) -> None:
    server = Server()
    request(server, ID, ("x-slo-task-e2e-ms", "5000"), ("x-slo-task-calls", "3"))
    began_s = T0
    request(server, ID, ("x-slo-task-last", "1"))
    first, last = (engine_task(server, at) for at in (0, 1))
    assert first.due_s == pytest.approx(began_s + 5.0) and last.due_s == pytest.approx(first.due_s)
    assert (first.calls, first.last, last.calls, last.last) == (3, False, 3, True)
    assert first.key == last.key and len(first.key) == 32
    for stated in server.stated:
        assert "run-7" not in json.dumps(stated) and not set(TASK_KEYS) & set(stated)
    assert metrics.tasks.started == [(INTERACTIVE, None)]
    (ended,) = metrics.tasks.ended
    assert (ended.outcome, ended.task.calls) == (IN_TIME, 2)


def test_requests_without_a_task_are_as_before(metrics: Metrics) -> None:
    server = Server()
    http = request(server)
    assert CALL_KEY not in server.stated[0] and http.task is None
    assert metrics.tasks.started == [] and len(server.front_end._tasks.known) == 0


def test_two_tenants_with_the_same_id_have_two_tasks(metrics: Metrics) -> None:
    server = Server()
    for tenant in ("acme", "other"):
        request(server, ID, ("x-tenant-id", tenant), ("x-slo-task-e2e-ms", "5000"))
        server.clock.advance_to(server.clock.now_s() + 1.0)
    request(server, ID)
    keys = [engine_task(server, at).key for at in range(3)]
    assert len(set(keys)) == 3
    assert metrics.tasks.started == [(INTERACTIVE, "acme"), (INTERACTIVE, "other"), (INTERACTIVE, None)]


def _secret(pipe: Any) -> None:
    pipe.send(server_secret())


@pytest.mark.slow
def test_processes_that_one_process_has_started_share_a_secret() -> None:
    context, found = multiprocessing.get_context("fork"), []
    for _ in range(2):
        ours, theirs = context.Pipe()
        child = context.Process(target=_secret, args=(theirs,))
        child.start()
        with bounded.within("a secret"):
            found.append(ours.recv())
        child.join(30.0)
    assert found == [server_secret()] * 2
    assert server_secret() != bytes(multiprocessing.current_process().authkey)


def test_names_cannot_be_put_together_to_be_another_tenants(metrics: Metrics) -> None:
    tasks = Server().front_end._tasks.known
    texts = ["", "a", "a\0b", "1:a", "\0", "3:abc"]
    hashes = {tasks._hash(kind, name, tenant) for kind in texts for name in texts for tenant in (None, *texts)}
    assert len(hashes) == len(texts) ** 2 * (len(texts) + 1)


def test_a_client_cannot_write_the_key_itself(metrics: Metrics) -> None:
    server = Server()
    server.extra_args = {CALL_KEY: ["stolen", None, None, False]}
    server.accept(None, {"prompt_token_ids": [0]})
    assert server.sent is None or CALL_KEY not in server.sent


def test_a_deadline_in_iso_form_is_a_time_of_the_hosts_clock(metrics: Metrics) -> None:
    server = Server()
    request(server, ID, ("x-slo-task-deadline", "1970-01-12T13:46:45.500Z"))
    assert engine_task(server).due_s == pytest.approx(T0 + 5.5)
    assert metrics.tasks.late == []
    server.clock.advance_to(T0 + 6.0)
    request(server, ID)
    assert metrics.tasks.late == [(INTERACTIVE, None)] and metrics.tasks.ended == []


def test_setting_the_hosts_clock_moves_no_deadline_that_counts_from_the_first_call(metrics: Metrics) -> None:
    server = Server()
    request(server, ID, ("x-slo-task-e2e-ms", "5000"))
    server.clock.set_wall(server.clock.now_s() + 3600.0)
    request(server, ID, ("x-slo-task-last", "1"))
    assert metrics.tasks.late == []
    due_s = engine_task(server).due_s
    assert due_s is not None and due_s - server.clock.now_s() == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [([], NO_DEADLINE), ([("x-slo-task-e2e-ms", "1000")], IN_TIME), ([("x-slo-task-e2e-ms", "5")], LATE)],
)
def test_the_outcome_of_a_task_is_counted_once(metrics: Metrics, headers: list[tuple[str, str]], outcome: str) -> None:
    server = Server()
    request(server, ID, *headers, ("x-slo-task-last", "yes"), tokens=3)
    (ended,) = metrics.tasks.ended
    assert ended.outcome == outcome and len(metrics.tasks.late) == (outcome == LATE)


def test_a_call_that_fails_leaves_the_task_incomplete(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.server.observe.refusals", lambda: (LookupError, (ValueError,)))
    server = Server()
    with pytest.raises(RuntimeError):
        request(server, ID, ("x-slo-task-last", "1"), fails=RuntimeError("engine"))
    assert [one.outcome for one in metrics.tasks.ended] == [INCOMPLETE]


def test_a_list_of_prompts_is_one_call(metrics: Metrics) -> None:
    server = Server()
    http = server.http(ID, ("x-slo-task-last", "1"))

    async def handler() -> None:
        for replies in [server.generate() for _ in range(4)]:
            await read(replies)

    server.handle(http, handler())
    (ended,) = metrics.tasks.ended
    assert ended.task.calls == 1
    assert len({engine_task(server, at).key for at in range(4)}) == 1


def test_several_calls_of_the_engine_for_one_request_are_one_task(metrics: Metrics) -> None:
    """A beam search, a response with tools, a recording: what follows the first call belongs to it."""
    server = Server()

    async def handler() -> None:
        for _ in range(3):
            await read(server.generate())

    server.handle(server.http(("x-slo-e2e-ms", "900")), handler())
    server.handle(server.http(), handler())
    keys = [None if (call := stated_call(stated)) is None else call.key for stated in server.stated]
    assert keys[0] is keys[3] is None, "nothing says that another call follows"
    assert keys[1] == keys[2] and keys[4] == keys[5] and keys[1] != keys[4]
    assert engine_task(server, 1).due_s == pytest.approx(T0 + 0.9) and engine_task(server, 5).due_s is None
    assert metrics.tasks.started == [] and len(metrics.served) == 2


def test_a_beam_search_is_a_task_from_its_first_call_on(metrics: Metrics) -> None:
    server = Server()

    async def handler() -> None:
        for _ in range(3):
            await read(server.generate())

    http = server.http(("x-slo-e2e-ms", "900"))
    http.read_body(b'{"use_beam_search": true}')
    server.handle(http, handler())
    assert len({engine_task(server, at) for at in range(3)}) == 1
    assert engine_task(server).due_s == pytest.approx(T0 + 0.9)
    assert metrics.tasks.started == [] and http.task is None


def test_several_calls_of_the_engine_are_one_call_of_a_task_that_is_stated(metrics: Metrics) -> None:
    server = Server()

    async def handler() -> None:
        for _ in range(3):
            await read(server.generate())

    server.handle(server.http(ID, ("x-slo-task-last", "1")), handler())
    assert len({engine_task(server, at).key for at in range(3)}) == 1
    assert [one.task.calls for one in metrics.tasks.ended] == [1]


def full(server: Server) -> None:
    """Let one request wait, so that a class with a cap of 1 is full."""
    server.accept(server.http(), {"prompt_token_ids": [0] * 10})


@pytest.mark.parametrize("alias", [False, True])
def test_calls_of_a_task_in_progress_are_never_refused_for_what_waits(metrics: Metrics, alias: bool) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    named = ("x-session-id", "run-7") if alias else ID
    request(server, named)
    full(server)
    with pytest.raises(Refused):
        request(server, ("x-slo-task-id", "new"))
    request(server, named)
    with pytest.raises(Refused):
        request(server, ("x-session-id", "new"))
    assert len(metrics.served) == 4 and [served.outcome.value for served in metrics.served].count("rejected") == 2
    assert len(metrics.tasks.started) == 1, "a task of which no call was let in has not begun"


def test_an_alias_that_many_requests_share_is_refused_as_they_would_be(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    shared = ("x-session-id", "everybody")
    server.accept(server.http(shared), {"prompt_token_ids": [0] * 10})
    with pytest.raises(Refused):
        server.accept(server.http(shared), {"prompt_token_ids": [0] * 10})
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    request(server, shared)
    full(server)
    server.accept(server.http(shared), {"prompt_token_ids": [0] * 10})
    with pytest.raises(Refused):
        server.accept(server.http(shared), {"prompt_token_ids": [0] * 10})


def test_all_calls_at_once_of_a_stated_task_are_let_in(metrics: Metrics) -> None:
    """Sub-agents come in bursts."""
    server = Server(admission={"mode": "cap", "max_waiting": 1})
    for _ in range(5):
        server.accept(server.http(ID), {"prompt_token_ids": [0] * 10})
    assert metrics.reasons == []


def test_a_list_that_begins_a_task_is_admitted_as_a_list(metrics: Metrics) -> None:
    server = Server(admission={"mode": "cap", "max_waiting": 2})
    full(server)
    http = server.http(ID)
    server.accept(http, {"prompt_token_ids": [0]})
    with pytest.raises(Refused):
        server.accept(http, {"prompt_token_ids": [0]})
    assert len(server.front_end._tasks.known) == 0
    assert metrics.tasks.started == [] and metrics.tasks.ended == []


def test_a_stopping_server_refuses_calls_of_running_tasks_too(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(drain: Any) -> None:
        raise ShuttingDown("the server is stopping", 5)

    server = Server()
    request(server, ID)
    monkeypatch.setattr(type(server.front_end.drain), "check_open", stopping)
    with pytest.raises(Refused):
        request(server, ID)


@pytest.mark.slow
def test_the_first_call_of_a_task_has_to_end_before_the_deadline(metrics: Metrics) -> None:
    server = Server(admission={"mode": "predict"})
    for _ in range(30):
        server.serve(server.http(), prompt=100, tokens=20)
    with pytest.raises(Refused, match="at best this takes"):
        request(server, ID, ("x-slo-task-e2e-ms", "20"), prompt=100)
    request(server, ID, ("x-slo-task-e2e-ms", "5000"), prompt=100)
    server.clock.advance_to(server.clock.now_s() + 6.0)
    request(server, ID, prompt=100)
    assert metrics.tasks.late == [(INTERACTIVE, None)], "it runs on"
    past = ("x-slo-task-deadline", "1970-01-01T00:00:00Z")
    with pytest.raises(Refused):
        request(server, ("x-slo-task-id", "past"), past, prompt=100)
    far = ("x-slo-task-deadline", "9999-12-31T23:59:59Z")
    request(server, ("x-slo-task-id", "far"), far, prompt=100)


def test_a_malformed_task_is_a_400(metrics: Metrics) -> None:
    with pytest.raises(Malformed, match="x-slo-task-calls"):
        request(Server(), ID, ("x-slo-task-calls", "0"))


def test_xargs_name_a_task_without_our_middleware(metrics: Metrics) -> None:
    server = Server()
    server.extra_args = {"slo_task_id": "a", "slo_task_e2e_ms": 2000, "other": 1}
    server.accept(None, {"prompt_token_ids": [0]})
    sent = server.sent or {}
    call = stated_call(sent)
    assert call is not None and call.due_s == pytest.approx(T0 + 2.0) and sent["other"] == 1
    assert not set(TASK_KEYS) & set(sent)


def test_the_session_that_vllm_read_names_a_task_without_our_middleware(metrics: Metrics) -> None:
    server, found = Server(), []
    for session in ("s", "s", None):
        params = SimpleNamespace(extra_args=None, max_tokens=None, n=1, output_kind=SimpleNamespace(name="DELTA"))
        server.front_end.accept({"prompt_token_ids": [0]}, params, 0, session, "cmpl-1")
        found.append(stated_call(params.extra_args))
    assert found[0] is not None and found[0] == found[1] and found[2] is None


def test_a_chain_of_responses_is_one_task(metrics: Metrics) -> None:
    """Each response has an id of its own, and the next request names it."""
    server = Server()

    def respond(request_id: str, previous: str | None, tenant: str = "acme") -> TaskCall | None:
        http = server.http(("x-tenant-id", tenant))
        http.read_body(json.dumps({"input": "x", "previous_response_id": previous}).encode())
        server.request_id = request_id

        async def handler() -> None:
            await read(server.generate())

        server.handle(http, handler())
        return stated_call(server.stated[-1])

    assert respond("resp_1_0", None) is None, "nobody knows yet that it will be continued"
    second, third = respond("resp_2_0", "resp_1"), respond("resp_3", "resp_2")
    fork = respond("resp_4", "resp_1")
    assert second is not None and third is not None and fork is not None
    assert second.key == third.key == fork.key
    theirs = respond("resp_5", "resp_2", tenant="other")
    assert theirs is not None and theirs.key != second.key
    assert len(server.front_end._tasks.known._roots) == 4
    for i in range(MOST_TASKS + 10):
        server.front_end._tasks.known.link(f"resp_x{i}", "root", None)
    assert len(server.front_end._tasks.known._roots) == MOST_TASKS


def test_the_report_has_the_figures_of_the_task(metrics: Metrics) -> None:
    server = Server()
    request(server, ID, ("x-slo-task-e2e-ms", "5000"))
    server.clock.advance_to(server.clock.now_s() + 2.0)
    http = request(server, ID, tokens=6)
    assert http.task is not None
    report = http.task.report([])
    assert report is not None
    assert report["calls"] == 2 and report["tools_ms"] == pytest.approx(2000.0, abs=1.0)
    assert report["elapsed_ms"] == pytest.approx(2000.0 + 10.0 + 60.0, abs=30.0)
    assert report["due_in_ms"] == pytest.approx(5000.0 - report["elapsed_ms"])
    other = request(server, ("x-slo-task-id", "no deadline"))
    assert other.task is not None and "due_in_ms" not in (other.task.report([]) or {})


def test_what_the_calls_of_a_task_used_of_the_engine_adds_up(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    used = InEngine(engine_s=0.25, kv_s=0.125)
    monkeypatch.setattr(EnginePages, "ended", lambda *_: used)
    server, reports = Server(), []

    async def handler(http: HTTPContext) -> None:
        async for _ in server.generate(tokens=2):
            call = entering.get()
            assert call is not None
            call.engine_request_id = "named by the engine"
        assert http.task is not None
        reports.append(http.task.report(http.outcomes))

    for _ in range(2):
        http = server.http(ID)
        server.handle(http, handler(http))
    assert [(report["engine_ms"], report["kv_ms"]) for report in reports if report] == [(250.0, 125.0), (500.0, 250.0)]
    assert http.task is not None and (http.task.report([]) or {})["engine_ms"] == 500.0
    assert [outcome(one)["engine_ms"] for one in http.outcomes] == [250.0]


def test_tasks_end_by_age_in_the_servers_own_loop(metrics: Metrics) -> None:
    server = Server(task_idle_s=0.02)

    async def run() -> None:
        http = server.http(ID)
        token = context.current.set(http)
        await read(server.generate())
        http.answer_ends(begun=True)
        context.current.reset(token)
        server.clock.advance_to(server.clock.now_s() + 1.0)
        while not metrics.tasks.ended:
            await asyncio.sleep(0)

    bounded.run(run())
    assert [one.outcome for one in metrics.tasks.ended] == [NO_DEADLINE]
    assert len(server.front_end._tasks.known) == 0


def task_of(server: Server, name: str, calls: int, tool_s: float = 1.0) -> list[HTTPContext]:
    found = []
    for number in range(1, calls + 1):
        last = [("x-slo-task-last", "1")] if number == calls else []
        found.append(request(server, ("x-slo-task-id", name), *last, tokens=11))
        server.clock.advance_to(server.clock.now_s() + tool_s)
    return found


@pytest.mark.slow
def test_the_end_of_a_task_is_predicted_once_enough_tasks_have_ended(metrics: Metrics) -> None:
    server = Server()
    for number in range(8):
        for http in task_of(server, f"cold{number}", 3):
            assert http.task is not None and (http.task.predicted is None or number > 0)
    for number in range(12):
        task_of(server, f"warm{number}", 3)
    first, second, third = task_of(server, "known", 3)
    for http, calls in ((first, 1), (second, 2), (third, 3)):
        assert http.task is not None
        predicted = http.task.predicted
        assert predicted is not None, calls
        assert predicted.median_s == pytest.approx(2.0 + 3 * 0.11, rel=0.1)
        assert predicted.p90_s >= predicted.median_s


@pytest.mark.slow
def test_tenants_learn_nothing_from_each_other(metrics: Metrics) -> None:
    server = Server()
    for number in range(30):
        request(server, ("x-slo-task-id", f"t{number}"), ("x-slo-task-last", "1"), ("x-tenant-id", "acme"))
    known = request(server, ID, ("x-tenant-id", "acme"))
    unknown = request(server, ID, ("x-tenant-id", "other"))
    assert known.task is not None and known.task.predicted is not None
    assert unknown.task is not None and unknown.task.predicted is None


def test_a_full_table_serves_calls_without_a_task_of_their_own(metrics: Metrics) -> None:
    server = Server(max_tasks=1)
    server.accept(server.http(ID), {"prompt_token_ids": [0]})
    http = server.http(("x-slo-task-id", "b"), ("x-slo-task-e2e-ms", "1000"))
    server.accept(http, {"prompt_token_ids": [0]})
    call = stated_call(server.sent or {})
    assert call is not None and call.due_s == pytest.approx(T0 + 1.0)
    assert http.task is not None and http.task.report([]) is None and http.task.predicted is None
