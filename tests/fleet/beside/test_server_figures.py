"""What is read of vLLM's metrics, and what reports say of a server by it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.fleet.beside.server_figures import MOST_LINES, ServerFigures, Totals, read_figures
from sloserve.fleet.beside.server_reports import BOUNDLESS, ServerReports
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS
from tests.fleet.beside.played_server import metrics_page


def test_a_page_of_vllm_is_read() -> None:
    found = read_figures(metrics_page("chat", running=3, waiting=2, used=0.25, ended=10))
    totals = Totals(10, 8_000, 10, 1_000, 8_000, 2_000)
    assert found == ServerFigures("chat", 3, 2, 0.25 * 16_000, totals)


def test_a_server_with_several_engines_has_their_sums() -> None:
    found = read_figures(metrics_page(running=3, used=0.5, engines=4))
    assert found is not None
    assert (found.running, found.context_tokens, found.totals.outputs) == (12, 32_000.0, 40)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>",
        "vllm:num_requests_running 3.0\n",
        'vllm:num_requests_running{model_name="m"} many\n',
        'vllm:num_requests_running{model_name="m"} NaN\n',
        'vllm:num_requests_running{model_name="m"} -1\n',
        'other:num_requests_running{model_name="m"} 1\n',
    ],
)
def test_what_says_nothing_of_requests_is_no_figure(page: str) -> None:
    assert read_figures(page) is None


@given(st.text(max_size=200))
def test_no_page_raises(text: str) -> None:
    read_figures(text)
    read_figures(f'vllm:num_requests_running{{model_name="m"}} 1\nvllm:num_requests_waiting{{{text}\n')


def test_a_page_without_end_costs_no_more() -> None:
    line = 'vllm:num_requests_running{model_name="m"} 1\n'
    found = read_figures(line * (10 * MOST_LINES))
    assert found is not None and found.running == MOST_LINES


def test_a_report_expects_what_ended_requests_were_like() -> None:
    reports = ServerReports("a", "server", 8)
    report = reports.report(ServerFigures("m", 4, 2, 5_000.0, Totals(10, 8_000, 10, 1_000, 8_000, 2_000)), 0, "m")
    running = report.running
    assert (running.requests, running.prefill_tokens, running.context_tokens) == (6, 2 * 800 * 0.75, 5_000.0)
    assert running.output_tokens == 2 * 100 + 4 * 50 and report.room == 2 and report.active == "m"


def test_requests_on_their_way_count_before_the_server_counts_them() -> None:
    reports = ServerReports("a", "server", 8)
    assert reports.report(ServerFigures("m"), 5, "m").running.requests == 5
    assert reports.report(ServerFigures("m", 7), 5, "m").room == 1


def test_a_server_of_unknown_size_has_room_and_a_new_one_usual_requests() -> None:
    report = ServerReports("a", "server", None).report(ServerFigures("m", 1, 9), 0, "m")
    assert report.room == BOUNDLESS and report.running.output_tokens == 9.5 * USUAL_OUTPUT_TOKENS


def test_means_follow_what_ends_and_a_restart_is_no_negative_number() -> None:
    reports = ServerReports("a", "server", None)
    for totals in (Totals(10, 100, 10, 1_000), Totals(20, 200, 20, 4_000), Totals(1, 10, 1, 50)):
        reports.report(ServerFigures("m", totals=totals), 0, "m")
        assert reports.output_tokens > 0.0
    assert 90.0 < reports.output_tokens < 130.0
