"""Boards: several API processes over one folder count as one would that had answered every request."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sloserve.core.clock import ManualClock
from sloserve.core.errors import QueueFull
from sloserve.core.finished import Latency
from sloserve.core.judged_window import MAX_PREDICTIONS
from sloserve.core.latency_window import quantiles_s
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.collectors import FrontEndMetrics, TenantLabels
from sloserve.engine.metrics.process_page import LATENCIES, REFRESH_S, Board, Boards
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket

NAMES = DEFAULT_CLASSES.names
GAUGES = (
    "sloserve:slo_attainment_ratio",
    "sloserve:prediction_coverage_ratio",
    "sloserve:prediction_width_ratio",
    "sloserve:predictions_judged",
)
T0 = 1_700_000_000.0


def boards(folder: Path, clock: ManualClock, processes: int = 2, tenants: int = 0) -> list[Boards]:
    """Those of so many API processes of one server."""
    return [Boards(Board.published(NAMES, tenants, i, folder), clock, folder) for i in range(processes)]


def gauges(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        if family.name in GAUGES
        for sample in family.samples
    }


served = st.builds(
    lambda name, targets, outcome, ttft_s, told_s: ServedRequest(
        DEFAULT_CLASSES.slo(name, Targets(**targets)),
        outcome,
        latency=Latency(ttft_s, 0.1, ttft_s + 1.0) if outcome is Outcome.COMPLETED else None,
        output_tokens=11,
        predicted=told_s and Predicted(Quantiles(told_s, 2 * told_s, 2 * told_s), None),
    ),
    st.sampled_from(["interactive", "batch"]),
    st.dictionaries(st.sampled_from(["ttft_s", "e2e_s"]), st.just(1.0)),
    st.sampled_from([Outcome.COMPLETED, Outcome.REJECTED, Outcome.ABORTED]),
    st.sampled_from([0.5, 1.5]),
    st.sampled_from([None, 0.4, 0.5, 2.0]),
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 1), served, st.sampled_from([0.0, 0.5, 100.0])), max_size=30))
def test_whoever_is_scraped_shows_what_one_process_would(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, ServedRequest, float]]
) -> None:
    folder, clock = tmp_path_factory.mktemp("pages"), ManualClock(T0)
    seen = [*boards(folder, clock), Boards(Board(len(NAMES), 0), clock)]
    registries = [CollectorRegistry() for _ in seen]
    metrics = [FrontEndMetrics(NAMES, (), b, clock, list, registry=r) for b, r in zip(seen, registries, strict=True)]
    for process, request, elapsed_s in history:
        clock.advance_to(clock.now_s() + elapsed_s)
        metrics[process].record(request)
        metrics[2].record(request)
    first, second, alone = map(gauges, registries)
    assert first == second == alone


def test_latencies_are_of_completed_requests_and_tpot_of_those_with_several_tokens() -> None:
    clock, registry = ManualClock(T0), CollectorRegistry()
    board = Board(len(NAMES), 0)
    metrics = FrontEndMetrics(NAMES, (), Boards(board, clock), clock, list, registry=registry)
    slo = DEFAULT_CLASSES.slo("batch", Targets())
    for outcome, tokens, tpot_s in ((Outcome.COMPLETED, 11, 0.1), (Outcome.COMPLETED, 1, 0.0), (Outcome.ABORTED, 5, 9)):
        latency = Latency(0.5, tpot_s, 1.5) if outcome is Outcome.COMPLETED else None
        metrics.record(ServedRequest(slo, outcome, latency=latency, output_tokens=tokens))
    batch = board.latency[NAMES.index("batch")]
    found = {figure: quantiles_s([batch[i]], clock.monotonic_s()) for i, figure in enumerate(LATENCIES)}
    assert found == {"ttft": [0.5, 0.5], "tpot": [0.1, 0.1], "e2e": [1.5, 1.5]}


@pytest.mark.slow
def test_the_latest_of_all_processes_count_not_the_latest_of_each(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    first, second = boards(tmp_path, clock)
    registry = CollectorRegistry()
    metrics = [
        FrontEndMetrics(NAMES, (), b, clock, list, registry=r)
        for b, r in ((first, CollectorRegistry()), (second, registry))
    ]
    for process, told_s in ((0, 0.1), (1, 2.0)):  # the first kept nothing, the second everything
        for _ in range(MAX_PREDICTIONS):
            clock.advance_to(clock.now_s() + 0.01)
            told = Predicted(Quantiles(told_s, told_s, told_s), None)
            slo = DEFAULT_CLASSES.slo("batch", Targets())
            metrics[process].record(ServedRequest(slo, Outcome.COMPLETED, latency=Latency(1, 0, 1), predicted=told))
    found = gauges(registry)
    assert {value for (name, _), value in found.items() if name.endswith("coverage_ratio")} == {1.0}
    assert {value for (name, _), value in found.items() if name.endswith("judged")} == {MAX_PREDICTIONS}


def new(clock: ManualClock) -> ArrivingRequest:
    return ArrivingRequest(DEFAULT_CLASSES.slo("batch", Targets()), clock.now_s())


def admissions(seen: list[Boards], cap: int) -> list[Admission]:
    caps = dict.fromkeys(NAMES, cap)
    return [Admission(NAMES, lambda place: place.request != "emitted", caps=caps, elsewhere=b) for b in seen]


def ask(admission: Admission, clock: ManualClock) -> Ticket | None:
    one = new(clock)
    try:
        return admission.admit(one, admission.forecast(one, clock.now_s()), None, clock.now_s())
    except QueueFull:
        return None


@given(
    cap=st.integers(1, 4),
    history=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ask", "ask", "started", "left"])), max_size=40),
)
def test_a_cap_is_that_of_all_processes_together(
    tmp_path_factory: pytest.TempPathFactory, cap: int, history: list[tuple[int, str]]
) -> None:
    clock = ManualClock(T0)
    each = admissions(boards(tmp_path_factory.mktemp("pages"), clock, processes=3), cap)
    held: list[list[Ticket]] = [[], [], []]
    for process, action in history:
        waiting = sum(map(len, held))
        assert sum(a.waiting("batch") for a in each) == waiting <= cap
        if action == "ask":
            ticket = ask(each[process], clock)
            assert (ticket is None) == (waiting == cap)
            held[process] += [ticket] if ticket else []
        elif held[process]:
            ticket = held[process].pop(0)
            ticket.started(clock.now_s()) if action == "started" else ticket.ended(None, 0, clock.now_s())


def test_two_that_ask_for_the_last_place_in_the_same_instant_never_both_get_it(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    first, second = boards(tmp_path, clock)
    each = admissions([first, second], cap=1)
    between: list[Ticket | None] = []

    class Interrupted(Boards):
        """The other process asks after this one has booked, before it has counted."""

        def waiting(self, class_id: int) -> int:
            if self.own.waiting.any() and not between:
                between.append(ask(each[1], clock))
            return super().waiting(class_id)

    (racing,) = admissions([Interrupted(first.own, clock, tmp_path)], cap=1)
    assert (ask(racing, clock) is None) + (between[0] is None) >= 1
    assert racing.waiting("batch") + each[1].waiting("batch") <= 1
    assert ask(each[1], clock) is None or between[0] is None


def test_who_waits_in_another_process_is_not_nobody(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    first, second = admissions(boards(tmp_path, clock), cap=9)
    assert second.forecast(new(clock), T0).alone
    ticket = ask(first, clock)
    assert ticket is not None and ticket.forecast.alone
    forecast = second.forecast(new(clock), T0)
    assert not forecast.alone and forecast.ahead == 0  # the prediction itself is of its own queue
    ticket.started(T0)
    assert second.forecast(new(clock), T0).alone


def test_a_tenant_has_its_label_in_all_processes_and_all_have_one_limit(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    first, second = (TenantLabels(["named"], b) for b in boards(tmp_path, clock, tenants=3))
    assert [first.of("a"), second.of("b")] == ["a", "b"]
    assert [second.of("a"), first.of("b"), first.of("named")] == ["a", "b", "named"]
    assert [first.of("c"), second.of("c")] == ["other", "other"]


def test_a_process_that_is_no_more_is_not_counted_and_its_page_is_swept(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    first, second = boards(tmp_path, clock)
    second.set_waiting(0, 5)
    assert first.waiting(0) == 5
    path = second.own.memory.path  # type: ignore[union-attr]
    pid, started, parent, rest = path.name.split("-", 3)
    path.rename(tmp_path / f"{pid}-{int(started) + 1}-{parent}-{rest}")  # a process of that number, but an earlier one
    assert first.waiting(0) == 5
    clock.advance_to(T0 + REFRESH_S)
    assert first.waiting(0) == 0
    page_folder.sweep(tmp_path)
    assert [file.rank for file in page_folder.page_files(tmp_path, page_folder.API)] == [0]


def test_another_servers_boards_are_not_counted(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    first, second = boards(tmp_path, clock)
    second.set_waiting(0, 5)
    path = second.own.memory.path  # type: ignore[union-attr]
    started = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    path.rename(tmp_path / f"1-{started}-0-1-0.api")
    assert list(first.others) == []
    assert os.stat(first.own.memory.path).st_mode & 0o077 == 0  # type: ignore[union-attr]
