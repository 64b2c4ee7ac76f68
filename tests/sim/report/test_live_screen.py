"""A view in a terminal: who is late, who is held up and why; names of others stay text."""

import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sloserve.core.in_words import due, duration, in_one_unit
from sloserve.engine.metrics.live_view import COLUMNS
from sloserve.engine.why import SAYS, RequestPhase, Why, sentence
from sloserve.sim.report.live_fleet import STATES
from sloserve.sim.report.live_requests import ShownRows, reason
from sloserve.sim.report.live_screen import latency, screen
from sloserve.sim.report.live_text import plain

EVIL = "[red]x[/red]\x1b[2J\x07<img onerror>"


def row(**what: Any) -> list[Any]:
    usual = {"class_id": 0, "phase": int(RequestPhase.DECODE), "since_s": 90.0, "arrival_s": 80.0, "due_s": None,
             "prompt_tokens": 7, "computed_tokens": 7, "output_tokens": 3, "preemptions": 0, "ahead": -1, "missed": 0,
             "why": 0, "figure": None, "of": None}  # fmt: skip
    return [(usual | what)[name] for name in COLUMNS]


def view(**what: Any) -> dict[str, Any]:
    counts = {phase.name.lower(): 0 for phase in RequestPhase}
    return {
        "at_s": 100.0,
        "model": EVIL,
        "classes": ["urgent"],
        "columns": list(COLUMNS),
        "phases": [phase.name.lower() for phase in RequestPhase],
        "says": [SAYS[why] for why in Why],
        "near": [0, 64],
        "headlines": ["urgent: 1 late, 1 of them waiting: all places are taken: 3 of 3 requests run"],
        "engines": [
            {"rank": 0, "policy": "edf", "shadow_policy": "sjf", "plans_off": None, "plan_s": 0.0012, "live": 2,
             "shadow": {"plans": 9, "errors": 0, "agreement": 0.5, "gain": 0.25}, "drawn": 2, "frame_s": 99.9,
             "held_up": [int(Why.BLOCKS), 12, 4],
             "kv": {"used": 30, "total": 60, "foreseen": {"mean": [30, 45], "sigma": [0, 6]}}},
        ],
        "by_class": {"urgent": {**counts, "waiting": 1, "late": 1, "next_due_s": 97.0, "state": "bad",
                                "attained": [[0.5, 4], [None, 0]],
                                "latency_s": {"ttft": [0.213, 1.74], "tpot": [0.0061, 0.042], "e2e": None}}},
        "rows": {},
    } | what  # fmt: skip


def shown(view: dict[str, Any], most: int = 10, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(screen(view, most, width))
    return out.getvalue()


def test_a_late_request_and_why_it_waits_are_the_first_row() -> None:
    rows = {
        "0-1": row(),
        "0-2": row(phase=int(RequestPhase.WAITING), due_s=97.0, ahead=0, output_tokens=0),
        "0-3": row(phase=int(RequestPhase.PREEMPTED), due_s=190.0, why=int(Why.PLAN), figure=2, of=93.0),
    }
    text = shown(view(rows=rows))
    lines = [line.split() for line in text.splitlines()]
    keys = [line[0] for line in lines if line and line[0].startswith("0-")]
    assert keys == ["0-2", "0-3", "0-1"]
    assert (
        all(late in text for late in ("3.00 late", " 3.0 late", " 90.0 "))
        and "-" not in re.sub(r"0-[0-9]", "", text)
        and "preempted for request 2, which is due 93 s earlier" in text
    )
    assert "the first in the queue waits: it needs 12 KV blocks, and 4 are free" in text
    assert text.index("urgent: 1 late, 1 of them waiting: all places") < text.index("rank 0")
    said_already = view(headlines=["urgent: 1 late: it needs 12 KV blocks, and 4 are free"])
    assert shown(said_already).count("and 4 are free") == 1
    assert "50%; running requests hold 75% ± 10% in 64 steps" in text and "50%" in text.split("met 1m")[1]


def test_each_class_has_the_latency_of_its_latest_requests() -> None:
    header, urgent = (
        next(line for line in shown(view()).splitlines() if word in line) for word in ("TTFT,", "3.00 late")
    )
    assert re.search(r"due, s +TTFT, s +TPOT, ms +e2e, s", header)
    assert "0.21, 1.74" in urgent and "6.1, 42.0" in urgent
    assert "median, 99th percentile" in shown(view())


def test_a_column_has_one_unit() -> None:
    assert in_one_unit([None, 0.0061, 0.213]) == ("ms", ["", "6", "213"])
    assert in_one_unit([0.0061, 1.74]) == ("s", ["0.01", "1.74"])
    assert in_one_unit([8.4, -31.9]) == ("s", ["8.4", "-31.9"])
    assert in_one_unit([30.0, 600.0]) == ("s", ["30.0", "600.0"]) and in_one_unit([60.0, 1200.0]) == (
        "min",
        ["1.0", "20.0"],
    )
    assert in_one_unit([7200.0]) == ("h", ["2.00"])
    assert in_one_unit([0.0, None]) == ("s", ["0.00", ""]) and in_one_unit([]) == ("s", [])
    slow_and_fast = [[0.213, 1.74], None, [8.4, 31.9]]
    assert latency("ttft", slow_and_fast) == ("TTFT, s", ["0.2, 1.7", "", "8.4, 31.9"])


@pytest.mark.parametrize("width", [80, 200])
def test_no_figure_of_a_class_is_cut_on_a_narrow_or_a_wide_screen(width: int) -> None:
    name = "interactive"
    text = shown(view(by_class={name: view()["by_class"]["urgent"]}), width=width)
    table = text[text.index("class") : text.index("no request is live")]
    assert table.count(name) == 2
    assert all(
        word in table for word in ("0.21, 1.74", "6.1, 42.0", "3.00 late", "50%", "preempted", "in prefill", "decoding")
    )


def test_a_narrow_screen_says_why_before_all_else_and_cuts_no_figure() -> None:
    rows = {"0-117": row(phase=int(RequestPhase.PREEMPTED), due_s=97.0, why=int(Why.PLAN), figure=1234, of=7.5)}
    name = "a class whose name takes a long time to say"
    late = view(classes=[name], by_class={name: view()["by_class"]["urgent"]}, rows=rows, model="m")
    lines = shown(late, width=80).splitlines()
    assert lines[0].startswith("urgent: 1 late") and all(len(line) <= 80 for line in lines)
    (wanted,) = (line for line in lines if line.startswith("0-117"))
    assert all(word in wanted for word in ("a class who…", "preempted", "3.00 behind"))
    assert "preempted for request 1234" in " ".join(lines) and sum("a class who…" in line for line in lines) == 3


def tenant(name: str, **what: Any) -> dict[str, Any]:
    usual = {"weight": 2.0, "running": 3, "waiting": 17, "served": 0.714, "fair": 0.5, "debt_s": 4.26,
             "attained": [[0.5, 4], [0.75, 8]], "state": "bad"}  # fmt: skip
    return {"name": name, **usual, **what}


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 140])
def test_promises_and_predictions_off_their_bands_are_said(width: int) -> None:
    one = view()["by_class"]["urgent"]
    figure = {"judged": 2000, "within": [0.49, 0.85, 0.96], "band": [0.0335, 0.0201, 0.007], "off": [False, True, True]}
    promises = {"kept": 1371, "broken": 29, "withdrawn": 4, "broken_share": 0.0207, "allowed_share": 0.01, "off": True}
    by_class = {EVIL: {**one, "predicted": {"ttft": figure, "e2e": None}, "promises": promises}}
    text = " ".join(shown(view(by_class=by_class, levels=[0.5, 0.9, 0.99]), width=width).split())
    assert "1,371 kept, 29 broken, 4 withdrawn; 2.1% broken, 1.0% allowed" in text and "\x1b[31m" not in text
    # Of each latency the share that is farthest outside its band, all of a class in one line.
    assert "are off: TTFT (96.0% within p99)" in text and "predictions for" in text
    withdrawn = {**promises, "kept": 0, "broken": 0, "broken_share": None, "allowed_share": None, "off": False}
    good = {**figure, "off": [False] * 3}
    by_class = {"urgent": {**one, "predicted": {"ttft": good}, "promises": withdrawn}}
    text = shown(view(by_class=by_class, levels=[0.5, 0.9, 0.99]), width=width)
    assert "promises to urgent: 0 kept, 0 broken, 4 withdrawn\n" in text and "is off" not in text
    assert "promises" not in shown(view(), width=width), "an older server, or a class without promises"


@pytest.mark.parametrize("width", [80, 140])
def test_tenants_are_shown_with_their_share_and_debt(width: int) -> None:
    rows = [tenant(EVIL), tenant("b", debt_s=-4.26, attained=[[None, 0], [1.0, 2]], state="fine")]
    text = shown(view(tenants=rows, more_tenants=7), width=width)
    header, first, second, more = text[text.index("tenant") :].splitlines()[:4]
    assert header.split() == "tenant met 1m 10m weight running waiting service share debt, s".split()
    assert first.split()[-8:] == ["50%", "75%", "2", "3", "17", "71%", "50%", "+4.26"] and "\x1b" not in first
    assert second.split() == ["b", "100%", "2", "3", "17", "71%", "50%", "-4.26"] and more == "7 more tenants"


def test_no_table_of_tenants_is_shown_without_tenants() -> None:
    assert "tenant" not in shown(view(tenants=[], more_tenants=0)) + shown(view())


def task(name: str, **what: Any) -> dict[str, Any]:
    usual = {"class": "urgent", "calls": 3, "expected": 12, "open": 1, "began_s": 60.0, "due_s": 105.0}
    usual |= {"tools_s": 10.0, "engine_s": 3.14}
    return {"name": name, **usual, **what}


@pytest.mark.parametrize("width", [80, 140])
def test_open_tasks_are_shown_with_what_is_left_of_their_time(width: int) -> None:
    odd = task(EVIL, **{"class": EVIL}, due_s=95.0, began_s=101.0)
    rows = [odd, task("b", expected=None, open=0, due_s=None), *(task(str(i)) for i in range(9))]
    lines = shown(view(tasks=rows, open_tasks=40), width=width).splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("task"))
    assert lines[at].split() == "task class due in, s calls open for, s tools engine, s".split()
    assert "\x1b" not in lines[at + 1] and "5.00 late" in lines[at + 1]
    assert lines[at + 2].split() == ["b", "urgent", "3", "0", "40.0", "25%", "3.14"]
    assert lines[at + 3].split() == ["0", "urgent", "5.00", "3", "of", "12", "1", "40.0", "25%", "3.14"]
    assert lines[at + 6] == "35 more tasks" and all(len(line) <= width for line in lines)


def test_no_table_of_tasks_is_shown_without_tasks() -> None:
    assert "task" not in shown(view(tasks=[], open_tasks=0)) + shown(view())


def test_rows_that_have_no_room_are_counted() -> None:
    text = shown(view(rows={f"0-{i}": row() for i in range(9)}), most=4)
    assert "5 more rows" in text and "no request is live" in shown(view())


def test_names_are_text_whatever_they_hold() -> None:
    text = shown(view())
    assert "\x1b" not in text and "\x07" not in text and "[red]x[/red]" in text and "<img onerror>" in text
    assert len(plain("x" * 500)) == 60


@pytest.mark.parametrize("why", Why)
def test_each_reason_is_a_sentence_with_its_figures(why: Why) -> None:
    said = reason(view(), [int(why), 7, 2.5])
    names_first = "{figure}" in SAYS[why] or "{number}" in SAYS[why]
    assert "{" not in said and ("7" in said) == names_first


def test_durations() -> None:
    assert [duration(s) for s in (None, 0.04, -3.2, 59.0, 600.0, 9000.0)] == [
        "", "0.0 s", "0.0 s", "59 s", "10 min", "2.5 h",
    ]  # fmt: skip
    assert [due(s) for s in (None, 0.0, 3.2, -0.04, -3.2, -600.0)] == [
        "", "0.0 s", "3.2 s", "0.0 s late", "3.2 s late", "10 min late",
    ]  # fmt: skip


def looks(view: dict[str, Any], word: str) -> set[str]:
    """Return the styles of the cells with ``word``."""
    lines = Console(width=200).render(screen(view, 10, 200))
    return {str(part.style) for part in lines if word in part.text and part.style}


@pytest.mark.slow
def test_a_class_is_coloured_by_its_own_requests() -> None:
    counts = view()["by_class"]["urgent"]
    by_class = {
        "chat": counts | {"state": "late", "late": 2, "attained": [[0.98, 50], [None, 0]]},
        "jobs": counts | {"state": "bad", "late": 0, "next_due_s": 99.6, "attained": [[0.52, 50], [None, 0]]},
        "rest": counts | {"state": "fine", "late": 0, "next_due_s": 105.0, "attained": [[1.0, 5], [None, 0]]},
    }
    headlines = {"headlines": ["xjobs: 3 late", "xchat: 2 late"], "alarms": [True, False]}
    made = view(classes=list(by_class), by_class=by_class, **headlines)
    assert [looks(made, word) for word in ("jobs", "chat", "rest", "xjobs", "xchat")] == [
        {"bold red"}, {"yellow"}, set(), {"bold red"}, {"yellow"},
    ]  # fmt: skip
    (jobs,) = (
        line.split() for line in shown(made, width=200).splitlines() if line.startswith("jobs") and "52%" in line
    )
    assert jobs[1:4] == ["52%", "0", "0.00"], "none is late, so the next deadline is not in the past"


def test_the_next_step_stands_below_what_is_wrong() -> None:
    advice = {
        "headlines": ["urgent: 1 late", "lax: 2 late"],
        "alarms": [True, False],
        "advice": ["Add a replica.", None],
    }
    first, second, third, *_ = shown(view(**advice)).splitlines()
    assert (first, second, third) == ("urgent: 1 late", "next step: Add a replica.", "lax: 2 late")


def test_the_load_stands_in_one_line_and_what_is_not_known_is_left_out() -> None:
    known = {"requests_per_s": 5.43, "refused_per_s": 0, "output_tokens_per_s": 2818, "running": 190, "waiting": 792}
    load = {**known, "prefix_hit_share": 0.25, "accepted_share": None, "step_s": 0.0401, "gpu_busy": 0.98}
    said = "5.4 requests ended/s, 2,818 output tokens/s, 190 running, 792 queued, prefix hits 25%, a step takes 40.1 ms"
    assert f"{said}, GPU 98%" in shown(view(load=load), width=200)
    assert "3 refused/s" in shown(view(load={"refused_per_s": 3}), width=200)
    server = {"version": "0.1.0", "vllm": "0.32.0", "started_s": -10_700.0}
    assert "sloserve 0.1.0, vLLM 0.32.0, up 3.0 h" in shown(view(server=server))


def test_the_last_change_of_the_policy_says_who_made_it() -> None:
    (engine,) = view()["engines"]
    change = {"id": "a", "at_s": 40.0, "by": f"anna{EVIL} from 10.0.0.7", "before": "fcfs"}
    text = shown(view(engines=[engine | {"policy_change": change}]), width=200)
    assert (
        "the policy was changed from fcfs 60 s ago by anna" in text and "from 10.0.0.7" in text and "\x1b" not in text
    )


def overloaded(**what: Any) -> dict[str, Any]:
    rows = {
        "0-1": row(
            phase=int(RequestPhase.WAITING), due_s=80.0, missed=1, ahead=2, why=int(Why.GIVEN_UP), figure=2, of=16
        ),
        "0-2": row(due_s=100.1, output_tokens=1234),
        "0-3": row(phase=int(RequestPhase.WAITING), due_s=110.0, ahead=0),
        "0-4": row(phase=int(RequestPhase.WAITING), due_s=130.0, ahead=7, arrival_s=10.0, why=int(Why.QUEUE), figure=7),
        "0-5": row(phase=int(RequestPhase.PREFILL), due_s=None, prompt_tokens=4000, computed_tokens=1500, class_id=1),
    }
    one = view()["by_class"]["urgent"]
    return view(rows=rows, classes=["urgent", "lax"], by_class={"urgent": one, "lax": one}, **what)


def keys(made: dict[str, Any], choice: ShownRows) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200, highlight=False, color_system=None).print(screen(made, 10, 200, choice))
    return [line.split()[0] for line in out.getvalue().splitlines() if line.startswith("0-")]


@pytest.mark.slow
def test_requests_that_can_still_be_in_time_come_first_and_the_others_are_a_count() -> None:
    text = shown(overloaded(), width=200)
    assert keys(overloaded(), ShownRows()) == ["0-3", "0-4", "0-2", "0-5"]
    assert "1 request has missed a deadline and cannot be in time any more (urgent 1)" in text
    assert keys(overloaded(), ShownRows(late=True)) == ["0-3", "0-4", "0-2", "0-5", "0-1"]


def test_each_row_says_why_it_is_where_it_is() -> None:
    text = shown(overloaded(), width=200)
    assert "1,234 tokens are out" in text and "1,500 of 4,000 prompt tokens are computed" in text
    assert "requests ahead of it: 7" in text and "the next step admits it" in text
    assert all(word not in text for word in (" prefill  0", "decode ")), "phases are in words"


@pytest.mark.slow
def test_requests_are_sorted_and_filtered_as_chosen() -> None:
    made = overloaded()
    assert keys(made, ShownRows(sort="deadline")) == ["0-2", "0-3", "0-4", "0-5"]
    assert keys(made, ShownRows(sort="class"))[0] == "0-5" and keys(made, ShownRows(sort="age"))[0] == "0-4"
    assert keys(made, ShownRows(sort="phase"))[0] == "0-2"
    assert keys(made, ShownRows(filter="LAX")) == ["0-5"] and keys(made, ShownRows(filter="0-3")) == ["0-3"]
    assert keys(made, ShownRows(filter="nothing like it")) == []


def test_the_page_says_durations_and_sentences_as_the_terminal_does() -> None:
    """The page's own functions, run by node; skipped without node or the page's packages."""
    page = Path(__file__).parents[3] / "clients" / "page"
    if shutil.which("node") is None or not (page / "node_modules" / "esbuild").exists():
        pytest.skip("needs node and `npm ci` in clients/page")
    seconds = [None, 0.0, 0.04, 3.21, 9.96, 59.0, 119.4, 600.0, 9000.0, -0.4, -3.21, -600.0]
    figures = [None, 0, 7, 1234, 7.53, 1234.5]
    script = """
        import { buildSync } from "esbuild";
        const built = buildSync({ entryPoints: ["src/dom.ts"], bundle: true, format: "esm", write: false });
        const page = await import("data:text/javascript," + encodeURIComponent(built.outputFiles[0].text));
        const { seconds, figures, says, columns } = JSON.parse(process.argv[1]);
        const all = says.flatMap((one) => figures.map((figure) => page.sentence(one, figure, figure)));
        const times = [seconds.map(page.duration), seconds.map(page.due), all, columns.map(page.inOneUnit)];
        console.log(JSON.stringify(times));
    """
    says = [SAYS[why] for why in Why]
    columns = [seconds, [0.0061, 0.213], [8.4, -31.9, None], [0.999], [30.0, 600.0], [7200.0], [9.996, 99.96], []]
    asked = json.dumps({"seconds": seconds, "figures": figures, "says": says, "columns": columns})
    command = ["node", "--input-type=module", "-e", script, asked]
    told = json.loads(subprocess.run(command, cwd=page, check=True, capture_output=True, text=True, timeout=120).stdout)
    sentences = [sentence(one, figure, figure) for one in says for figure in figures]
    units = [list(in_one_unit(column)) for column in columns]
    assert told == [[duration(s) for s in seconds], [due(s) for s in seconds], sentences, units]
    states = (page / "src" / "states.ts").read_text()
    assert all(f'{state}: "{says}"' in states for state, says in STATES.items())


def test_a_fleet_shows_what_waits_and_who_is_lost() -> None:
    fleet = {
        "fleet": True, "at_s": 100.0, "held": 3, "plan": {"late_s": 0.0, "needed": 2},
        "counts": {"models": 1, "groups": 1, "instances": 2},
        "columns": ["host", "phase", "model", "since_s", "ready_in_s", "running", "streams", "room", "parked", "age_s"],
        "models": {EVIL: {"state": "coming", "serving": 0, "ready_in_s": 4.0}},
        "groups": [{"model": EVIL, "class": "urgent", "held": 3, "oldest_s": 2.0, "first_due_in_s": -1.0,
                    "rate_per_s": 1.5, "queues": []}],
        "by_class": {"urgent": {"attained": [[0.625, 8], [None, 0]]}},
        "headlines": [f"urgent of {EVIL}: 3 held, the first 1.0 s late: no instance serves it"],
        "hosts": {"a": {"instances": 1, "lost": 1}, "b": {"instances": 1, "lost": 0}},
        "switches": [{"at_s": 90.0, "instance": "b/0", "leaving": None, "coming": EVIL, "seconds": 3.5}],
        "rows": {"a/0": ["a", "lost", None, 50.0, None, 0, 0, 0, 0, None],
                 "b/0": ["b", "swapping", EVIL, 99.0, 4.0, 0, 0, 0, 1, 0.1]},
    }  # fmt: skip
    text = shown(fleet)
    assert (
        text.startswith("urgent of [red]x")
        and "no instance serves it" in text
        and "the first 1.0 s late" in text
        and "1.00 late" in text
        and "in 3.5 s, 10 s ago" in text
    )
    assert "62%" in text.split("met 1m")[1]
    assert (
        "switching models" in text
        and "swapping" not in text
        and "silent" in text
        and "\x1b" not in text
        and "1 more instances" in shown(fleet, most=1)
    )


def test_a_next_token_that_is_overdue_is_behind_and_not_late() -> None:
    text = shown(view(rows={"0-1": row(due_s=63.0), "0-2": row(due_s=63.0, output_tokens=0)}), width=200)
    assert "37.0 behind" in text and "37.0 late" in text


def test_the_count_of_late_requests_has_those_that_are_not_drawn() -> None:
    late = overloaded()
    late["by_class"] = {
        name: {**one, "missed": missed} for (name, one), missed in zip(late["by_class"].items(), (1234, 0), strict=True)
    }
    assert "1,234 requests have missed a deadline and cannot be in time any more (urgent 1,234)" in shown(
        late, width=200
    )


def test_requests_come_before_tenants_tasks_and_predictions_which_a_low_terminal_cuts() -> None:
    called = {"name": "3fa9", "class": "urgent", "calls": 2, "expected": 2, "open": 0, "began_s": 9.0, "due_s": 90.0,
              "tools_s": 1.0, "called": True}  # fmt: skip
    tenants = {"tenants": [tenant("acme"), tenant("globex")], "more_tenants": 0}
    text = shown(overloaded(**tenants, tasks=[called], open_tasks=1), width=120)
    places = [text.index(word) for word in ("met 1m", "0-3 ", "acme", "3fa9")]
    assert places == sorted(places) and "10.0 late" not in text and "called" in text


def test_where_no_class_is_late_the_requests_that_missed_their_targets_are_counted() -> None:
    said = "No alarm. Missed targets within 10 min: urgent 1 of 1."
    assert said in shown(view(headlines=[], calm=said))
    assert said not in shown(view(calm=said)), "a late class says more"
