"""The view of a server: all its ranks, each class's phases and attainment, and rows that JSON can hold."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.attainment_window import AttainmentWindow
from sloserve.core.clock import ManualClock
from sloserve.core.judged_window import PredictionWindow
from sloserve.core.latency_window import LatencyWindow
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import PREDICTED, Quantiles
from sloserve.core.promise_window import PromiseWindow
from sloserve.engine.metrics.engine_page import Layout, PageWriter
from sloserve.engine.metrics.live_headlines import headlines
from sloserve.engine.metrics.live_page import MOST_ROWS, NEAR, ROW, Frame, LiveWriter
from sloserve.engine.metrics.live_view import COLUMNS, LiveView
from sloserve.engine.metrics.process_page import Board
from sloserve.engine.metrics.task_page import TaskPage, TaskPages
from sloserve.engine.metrics.task_table import EndedTask, TaskTable
from sloserve.engine.why import NEXT_STEP, SAYS, Cause, RequestPhase, Why


class Unheard:
    """Counts nothing."""

    def task_started(self, class_id: int, tenant: str | None) -> None: ...
    def task_late(self, class_id: int, tenant: str | None) -> None: ...
    def task_ended(self, ended: EndedTask) -> None: ...


CLASSES = ("urgent", "<img src=x onerror=alert(1)>")


def frame(rows: int, *, foreseen: bool = False) -> Frame:
    table = np.zeros((rows, len(ROW)))
    table[:, ROW.index("number")] = np.arange(1, rows + 1)
    table[:, ROW.index("due_s")] = np.where(np.arange(rows) % 2, 1e9 + np.arange(rows), np.nan)
    table[:, ROW.index("figure")] = np.nan
    counts = np.zeros((2, len(RequestPhase)), np.int64)
    counts[0, RequestPhase.DECODE] = rows
    known = np.stack((np.full(NEAR.size, 50.04), np.full(NEAR.size, 2.0))) if foreseen else None
    late, next_due_s = np.array([1, 0]), np.array([1e9 + 1.0, np.nan])
    head, missed = Cause(Why.BLOCKS, 12.0, 4.0), np.zeros(2, np.int64)
    return Frame(1e9, 0.5, rows, 4, 60, head, counts, late, missed, next_due_s, known, table)


class Server:
    """Engines of so many ranks in this process, and one API process."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self.clock = ManualClock()
        self.figures = [PageWriter(CLASSES, rank, folder) for rank in range(ranks)]
        self.live = [LiveWriter(len(CLASSES), rank, folder) for rank in range(ranks)]
        self.board = Board(len(CLASSES), 1)
        self.view = LiveView(lambda: "m", CLASSES, lambda: [self.board], self.clock, folder=folder)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(1, tmp_path)


def test_an_engine_without_a_frame_is_shown_as_idle(server: Server) -> None:
    server.figures[0].set_policies("edf", "sjf", None)
    view = server.view.read()
    (engine,) = view["engines"]
    assert (engine["policy"], engine["shadow"]["plans"], engine["live"], engine["kv"]) == ("edf", 0, 0, None)
    assert view["rows"] == {} and view["by_class"]["urgent"]["decode"] == 0
    assert view["by_class"]["urgent"]["attained"] == [[None, 0], [None, 0]]


def test_a_frame_is_shown_with_what_json_has_no_word_for_left_out(server: Server) -> None:
    server.view.read()
    server.live[0].write(frame(3, foreseen=True))
    view = json.loads(json.dumps(server.view.read(), allow_nan=False))
    assert list(view["rows"]) == ["0-1", "0-2", "0-3"]
    row = dict(zip(COLUMNS, view["rows"]["0-2"], strict=True))
    assert (row["due_s"], row["figure"], row["class_id"]) == (1e9 + 1, None, 0)
    urgent, other = (view["by_class"][name] for name in CLASSES)
    assert (urgent["decode"], urgent["late"], urgent["next_due_s"], other["next_due_s"]) == (3, 1, 1e9 + 1, None)
    (engine,) = view["engines"]
    assert engine["kv"]["used"] == 56 and set(engine["kv"]["foreseen"]["mean"]) == {50.0}
    assert engine["held_up"] == [Why.BLOCKS, 12, 4] and view["reasons"][Why.BLOCKS] == "blocks"


def test_a_late_class_says_what_most_of_its_late_requests_do_and_why(server: Server) -> None:
    server.view.read()
    made = frame(7)
    made.rows[:, ROW.index("due_s")] = 1e9 - 1.0 - np.arange(7)
    made.rows[6, ROW.index("due_s")] = 1e9 + 1.0  # in time
    made.rows[:, ROW.index("phase")] = RequestPhase.WAITING
    made.rows[4:, ROW.index("phase")] = RequestPhase.DECODE
    server.live[0].write(made)
    # Those in the queue wait for the first of it.
    why = "it needs 12 KV blocks, and 4 are free"
    view = server.view.read()
    assert view["headlines"] == [f"urgent: 1 late, 4 of them waiting: {why}"]
    assert view["advice"] == [NEXT_STEP[Why.BLOCKS]]
    made.rows[3, ROW.index("why")] = Why.BLOCKED  # late for the longest of them
    server.live[0].write(made)
    (headline,) = server.view.read()["headlines"]
    assert headline.endswith(f"4 of them waiting: {SAYS[Why.BLOCKED]}")


def test_a_request_that_became_late_since_the_frame_counts_as_late(server: Server) -> None:
    server.view.read()
    server.live[0].write(frame(7))  # deadlines of the first class 1, 3 and 5 s after the frame; one of them is late
    server.clock.set_wall(1e9 + 3.5)
    view = server.view.read()
    assert view["by_class"]["urgent"]["late"] == 3
    assert view["headlines"] == ["urgent: 3 late, 2 of them waiting: it needs 12 KV blocks, and 4 are free"]


def test_the_alarm_follows_the_share_in_time_and_not_who_is_late_now(server: Server) -> None:
    server.view.read()
    made = frame(7)
    made.rows[4:, ROW.index("class_id")] = 1
    made.rows[:, ROW.index("due_s")] = 1e9 - 1.0
    made.late[:] = 4, 3
    server.live[0].write(made)
    view = server.view.read()
    assert [one["state"] for one in view["by_class"].values()] == ["late", "late"] and view["alarms"] == [False] * 2
    windows = [AttainmentWindow(server.board.ended[i]) for i in range(2)]
    for number in range(50):
        windows[0].record({"ttft": number != 7}, Outcome.COMPLETED, 580.0)
        windows[1].record({"ttft": number % 2 == 0}, Outcome.COMPLETED, 580.0)
    server.clock.advance_to(server.clock.now_s() + 600.0)
    server.view.read()
    server.live[0].write(replace(made, at_monotonic_s=600.5))
    view = server.view.read()
    assert {name: one["state"] for name, one in view["by_class"].items()} == {CLASSES[0]: "late", CLASSES[1]: "bad"}
    assert [line.partition(":")[0] for line in view["headlines"]] == [CLASSES[1], CLASSES[0]]
    assert view["alarms"] == [True, False]
    # A class that misses its targets is named although none of its requests is late now.
    server.live[0].write(replace(made, at_monotonic_s=601.0, late=np.zeros(2), rows=made.rows[:0]))
    later = server.view.read()
    assert [one["state"] for one in later["by_class"].values()] == ["fine", "bad"] and later["alarms"] == [True]
    # The cause is then the target that most of them missed, and what the queue waits for.
    held_up = "25 missed TTFT; the first of the queue waits: it needs 12 KV blocks, and 4 are free"
    how = f"{CLASSES[1]}: 50% of 50 in time within 60 s, 50% of 50 in time within 10 min"
    assert later["headlines"] == [f"{how}: {held_up}"] and later["causes"] == [held_up]
    assert later["advice"] == [NEXT_STEP[Why.BLOCKS]]
    assert later["by_class"][CLASSES[1]]["burn"] == [10.0, 10.0]
    # Once nothing waits, an operator had the target alone, and no next step.
    server.live[0].write(replace(made, at_monotonic_s=601.5, late=np.zeros(2), rows=made.rows[:0], head=Cause()))
    over = server.view.read()
    assert over["causes"] == ["25 missed TTFT; no request waits now"] and "if that load comes back" in over["advice"][0]
    # Of a pace that is missed the steps are the cause; a place in the queue would make it worse.
    for _ in range(26):
        windows[1].record({"tpot": False}, Outcome.COMPLETED, 581.0)
    server.live[0].write(replace(made, at_monotonic_s=602.0, late=np.zeros(2), rows=made.rows[:0]))
    paced = server.view.read()
    assert paced["causes"] == ["26 missed TPOT"] and "step_budget" in paced["advice"][0]


def test_requests_that_missed_a_deadline_raise_the_alarm_before_they_end(server: Server) -> None:
    server.view.read()
    made = frame(12)
    made.rows[:, ROW.index("due_s")] = 1e9 + 60.0
    made.rows[:9, ROW.index("missed")] = 1.0
    made.rows[:, ROW.index("phase")] = RequestPhase.DECODE
    made.missed[0] = 9
    made.late[:] = 0
    server.live[0].write(made)
    view = server.view.read()
    assert view["by_class"]["urgent"]["burn"] == [20.0, 20.0] and view["by_class"]["urgent"]["state"] == "bad"
    assert view["headlines"] == ["urgent: 9 with a missed deadline, 9 of them decoding"]


def test_attainment_is_of_one_and_of_ten_minutes(server: Server) -> None:
    window = AttainmentWindow(server.board.ended[0])
    for at_s, met in ((10.0, False), (400.0, True), (580.0, True), (590.0, False)):
        window.record({"ttft": met, "e2e": True}, Outcome.COMPLETED, at_s)
    server.clock.advance_to(server.clock.now_s() + 600.0)
    assert server.view.read()["by_class"]["urgent"]["attained"] == [[0.5, 2], [0.5, 4]]


def test_latency_is_of_the_last_minute_by_class_and_over_all_api_processes(tmp_path: Path) -> None:
    server, other = Server(1, tmp_path), Board(len(CLASSES), 1)
    view = LiveView(lambda: "m", CLASSES, lambda: [server.board, other], server.clock, folder=tmp_path)
    LatencyWindow(server.board.latency[0, 0]).record(9.0, 10.0)
    for board, latencies_s in ((server.board, range(1, 51)), (other, range(51, 101))):
        windows = [LatencyWindow(stamps) for stamps in board.latency[0]]
        for ms in latencies_s:
            windows[0].record(ms / 1e3, 580.0)
            windows[2].record(ms * 1e3, 580.0)
    server.clock.advance_to(server.clock.now_s() + 600.0)
    by_class = view.read()["by_class"]
    assert by_class["urgent"]["latency_s"] == {"ttft": [0.05, 0.099], "tpot": None, "e2e": [50_000.0, 86_400.0]}
    assert by_class[CLASSES[1]]["latency_s"] == {"ttft": None, "tpot": None, "e2e": None}


def test_predictions_and_promises_are_shown_by_class_and_over_all_api_processes(tmp_path: Path) -> None:
    server = Server(1, tmp_path)
    other = Board(len(CLASSES), 1)
    server.view = LiveView(lambda: "m", CLASSES, lambda: [server.board, other], server.clock, folder=tmp_path)
    windows = [PredictionWindow(board.predicted[0, PREDICTED.index("ttft")]) for board in (server.board, other)]
    for i in range(500):
        windows[i % 2].record(Quantiles(1.0, 2.0, 4.0), 0.5 if i % 2 else 1.5, float(i))
    PromiseWindow(other.promises[0]).record("withdrawn", 0.9, 1.0)
    window = PromiseWindow(server.board.promises[0])
    for outcome in ("kept", "kept", "kept", "broken"):
        window.record(outcome, 0.9, 1.0)
    view = server.view.read()
    urgent, second = view["by_class"].values()
    assert view["levels"] == [0.5, 0.9, 0.99]
    assert urgent["predicted"] == {
        "ttft": {
            "judged": 500,
            "within": [0.5, 1.0, 1.0],
            "band": [0.0671, 0.0402, 0.0133],
            "off": [False, True, False],
            "width": [pytest.approx(2.0, rel=0.06), pytest.approx(4.0, rel=0.06)],
        },
        "tpot": None,
        "e2e": None,
    }
    assert urgent["promises"] == {
        "kept": 3,
        "broken": 1,
        "withdrawn": 1,
        "off": False,
        "broken_share": 0.25,
        "allowed_share": pytest.approx(0.1, abs=1e-3),
    }
    assert second["promises"] is None and second["predicted"]["ttft"] is None


def test_what_a_plan_took_is_that_of_the_latest_plans(server: Server) -> None:
    values = server.figures[0].values
    values[Layout.at["plans"]], values[Layout.at["plan_seconds_sum"]] = 10, 0.01
    assert server.view.read()["engines"][0]["plan_s"] == 0.001
    values[Layout.at["plans"]], values[Layout.at["plan_seconds_sum"]] = 12, 0.02
    assert [server.view.read()["engines"][0]["plan_s"] for _ in range(2)] == [0.005, 0.005]


def test_ranks_share_the_rows_that_are_drawn(tmp_path: Path) -> None:
    server = Server(2, tmp_path)
    server.view.read()
    for page in server.live:
        page.write(frame(MOST_ROWS))
    view = server.view.read()
    drawn = [sum(key.startswith(f"{rank}-") for key in view["rows"]) for rank in range(2)]
    assert drawn == [engine["drawn"] for engine in view["engines"]] == [MOST_ROWS // 2] * 2
    assert view["by_class"]["urgent"]["decode"] == 2 * MOST_ROWS
    due = [row[COLUMNS.index("due_s")] for row in view["rows"].values()]
    assert None not in due  # those without a deadline give way


def test_the_open_tasks_that_are_due_first_are_shown(tmp_path: Path) -> None:
    clock, page = ManualClock(1000.0), TaskPage(64)
    pages = TaskPages(page, clock)
    table = TaskTable(pages, 600.0, Unheard())
    clock.advance_to(1100.0)
    for number in range(1, 31):
        table.call_begins(
            number << 32, 10.0 + number, class_id=number % 2, tenant=None, e2e_s=200.0 - number, hint=number or None
        )
    view = LiveView(
        lambda: "m",
        CLASSES,
        list,
        clock,
        folder=tmp_path,
        tasks=lambda most: pages.open_tasks(clock.monotonic_s(), 600.0, most),
    ).read()
    assert view["open_tasks"] == 30 and len(view["tasks"]) == 20
    assert view["tasks"][0] == {
        "name": "00000001",
        "class": CLASSES[1],
        "calls": 1,
        "expected": 1,
        "open": 1,
        "began_s": 1011.0,
        "due_s": 1210.0,
        "tools_s": 0.0,
        "called": False,
        "engine_s": 0.0,
        "kv_s": 0.0,
    }
    json.dumps(view, allow_nan=False)


def test_a_task_of_which_all_expected_calls_have_ended_comes_last(tmp_path: Path) -> None:
    clock, page = ManualClock(1000.0), TaskPage(64)
    pages = TaskPages(page, clock)
    table = TaskTable(pages, 600.0, Unheard())
    for number, hint in ((1, 1), (2, 2)):
        call = table.call_begins(number << 32, 0.0, class_id=0, tenant=None, e2e_s=100.0 + number, hint=hint)
        assert call is not None
        table.call_ends(call, 0.0, completed=True)
    view = LiveView(
        lambda: "m",
        CLASSES,
        list,
        clock,
        folder=tmp_path,
        tasks=lambda most: pages.open_tasks(clock.monotonic_s(), 600.0, most),
    ).read()
    assert [(one["name"], one["called"]) for one in view["tasks"]] == [("00000002", False), ("00000001", True)]


def test_the_cause_names_the_tenant_that_fills_the_queue() -> None:
    made = frame(7)
    made.rows[:, ROW.index("due_s")] = 1e9 - 1.0
    made.rows[:, ROW.index("phase")] = RequestPhase.WAITING
    made.rows[:, ROW.index("why")] = Why.GIVEN_UP
    figures = {"state": "bad", "burn": [9.0, 9.0], "late": 7, "missed": 7, "attained": [[0.5, 4]] * 2}
    figures["not_served"] = [0, 0]
    tenants = [{"name": "acme", "waiting": 11}, {"name": "globex", "waiting": 30}]

    def cause(*tenants: dict[str, object]) -> str:
        (found,) = headlines([made], {"urgent": figures}, {"urgent": {}}, tenants, 1e9)["causes"]
        return str(found)

    # What holds up the first of the queue is the cause, and not that a request has become late.
    held_up = "it needs 12 KV blocks, and 4 are free, and requests that can still be in time go first"
    assert cause(*tenants) == f"{held_up}; tenant globex sent 30 of the 41 waiting requests"
    assert cause() == cause(*[{**one, "waiting": 15} for one in tenants]) == held_up
    assert cause({"name": "none", "waiting": 30}) == cause({"name": "globex", "waiting": 9}) == held_up
    # A plan that preempts names a request, which says nothing about the class.
    made.rows[:, ROW.index("phase")], made.rows[:, ROW.index("why")] = RequestPhase.PREEMPTED, Why.PLAN
    gave_way = (
        "the plan gave their places to others; the first of the queue waits: it needs 12 KV blocks, and 4 are free"
    )
    assert cause() == gave_way
    assert cause({"name": "globex", "waiting": 30}, {"name": "acme", "waiting": 0}).endswith(
        "; tenant globex sent all 30 waiting requests"
    )
    made.rows[:, ROW.index("why")] = Why.UNSEEN
    assert cause() == gave_way.replace(
        "the plan gave their places to others", "they were preempted before anyone watched"
    )
