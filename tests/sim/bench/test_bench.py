"""`sloserve bench` end to end against a fake endpoint: what is sent, what is counted, what is written."""

import ast
import csv
import gc
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from starlette.responses import JSONResponse

from sloserve import cli
from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.sim.bench.bench_options import BenchOptions
from sloserve.sim.bench.build_bench import build_bench
from sloserve.sim.bench.run import bench
from tests.client.fake_server import FakeServer, reply, serving

RunBench = Callable[..., tuple[dict[str, Any], str]]

TRACE = "arrival_s,prompt_tokens,output_tokens,task\n" + "".join(
    f"{0.004 * i},{20 + i},{2 + i % 3},{'conv' if i % 2 else 'summarization'}\n" for i in range(12)
)
SLOS = """
classes:
  interactive: {ttft_ms: 5000, tpot_ms: 1000}
  batch: {e2e_ms: 60000}
by_task: {conv: interactive, summarization: batch}
"""


@pytest.fixture
def run_bench(fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunBench:
    """Runs with a small trace; the plots, which take a second and are tested with the simulator, only where asked."""
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "slo.yaml").write_text(SLOS)

    def run(*, plots: bool = False, **flags: Any) -> tuple[dict[str, Any], str]:
        if not plots:
            none = SimpleNamespace(write_plots=lambda *_, **__: [])
            monkeypatch.setitem(sys.modules, "sloserve.sim.report.plots", none)
        monkeypatch.setattr(gc, "collect", lambda: 0)  # of all that pytest holds, it would take longest
        monkeypatch.setattr(gc, "unfreeze", lambda: None)  # so would every later one
        console = Console(file=StringIO(), width=200)
        flags = {"url": f"a={fake.url}", "trace": tmp_path / "trace.csv", "slo": str(tmp_path / "slo.yaml")} | flags
        bench(build_bench(BenchOptions(**flags)), tmp_path / "out", SystemClock(), token_log=True, console=console)
        assert isinstance(console.file, StringIO)
        return json.loads((tmp_path / "out" / "result.json").read_text()), console.file.getvalue()

    return run


def flat(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "out").glob("vllm-a-*rps-0.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_a_trace_is_replayed_and_reported_as_a_simulation_is(
    run_bench: RunBench, fake: FakeServer, tmp_path: Path
) -> None:
    result, shown = run_bench(plots=True)
    (run,) = result["runs"]
    assert (run["requests"], run["completed"], run["failed"], run["rejected"]) == (12, 12, 0, 0)
    assert (run["slo_attainment"], run["slo_attainment_by_class"]) == (1.0, {"batch": 1.0, "interactive": 1.0})
    assert run["rps"] == pytest.approx(250.0) and run["preemptions_per_request"] is None
    assert 0.0 < run["median_ttft_ms"] <= run["p99_ttft_ms"] <= run["p99_e2el_ms"] < 5000.0
    lengths = {len(body["prompt"]): body["max_tokens"] for body, _ in fake.runs}
    assert lengths == {20 + i: 2 + i % 3 for i in range(12)}
    assert {body["vllm_xargs"]["slo_class"] for body, _ in fake.runs} == {"interactive", "batch"}
    rows = list(csv.DictReader((tmp_path / "out" / "requests.csv").read_text().splitlines()))
    assert [row["prompt_tokens"] for row in rows] == [str(20 + i) for i in range(12)]
    assert {row["outcome"] for row in rows} == {"completed"}
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"result.json", "tokens.csv.gz", "attainment.png", "latency_cdf.png", "qoe.png"} < files
    assert "trace against a" in shown and "late in sending" in shown


@pytest.mark.slow
def test_both_accounts_of_a_run_agree_on_counts(run_bench: RunBench, tmp_path: Path) -> None:
    (run,) = run_bench()[0]["runs"]
    record = flat(tmp_path)
    for key in ("completed", "failed", "total_input_tokens", "total_output_tokens", "duration", "median_itl_ms"):
        assert record[key] == run[key]
    assert record["total_output_tokens"] == sum(2 + i % 3 for i in range(12))
    assert record["total_input_tokens"] == sum(20 + i for i in range(12))
    assert record["mean_ttft_ms"] <= run["mean_ttft_ms"], "from the sending is no longer than from when it was due"


@pytest.mark.slow
def test_tenants_are_sent_and_reported(run_bench: RunBench, fake: FakeServer) -> None:
    result, shown = run_bench(tenants="acme,globex=3", profile="h100-llama3-8b")
    (run,) = result["runs"]
    sent = [headers["x-tenant-id"] for _, headers in fake.runs]
    assert {name: of["requests"] for name, of in run["by_tenant"].items()} == {
        name: sent.count(name) for name in ("acme", "globex")
    }
    assert run["jain_attainment"] == 1.0 and run["jain_service_per_weight"] is None and run["jain_slowdown"] <= 1.0
    assert all(of["mean_slowdown"] > 0.0 and of["tokens"] > 0 for of in run["by_tenant"].values())
    assert "by tenant" in shown and "Jain's index" in shown


NOT_OURS = {"rtfx", "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
            "generated_texts", "errors"}  # fmt: skip
"""Audio, and lists with an entry per request: `requests.csv` and `tokens.csv.gz` hold those."""


@pytest.mark.slow
def test_the_flat_record_has_the_keys_of_vllm_bench_serve(run_bench: RunBench, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(spec.origin).with_name("benchmarks") / "serve.py"
    keys = set(_written_keys(ast.parse(source.read_text())))
    assert {"total_output_tokens", "backend"} <= keys
    spreads = {f"{part}_{name}_ms" for part in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl")}
    run_bench()
    assert keys - NOT_OURS | spreads <= set(flat(tmp_path))


def _written_keys(tree: ast.AST) -> Iterator[str]:
    """Constant keys of the dictionary of generation results, and of those that ``main_async`` adds in any case."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            yield from keys if "total_output_tokens" in keys else ()
        elif isinstance(node, ast.AsyncFunctionDef) and node.name == "main_async":
            for statement in node.body:
                for target in statement.targets if isinstance(statement, ast.Assign) else ():
                    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                        yield target.slice.value


@pytest.mark.slow
def test_slos_by_name_are_those_of_a_simulation(run_bench: RunBench, fake: FakeServer) -> None:
    result, shown = run_bench(slo="reading")
    assert result["workload"]["slos"] == "built-in SLOs 'reading'"
    sent = [body["vllm_xargs"] for body, _ in fake.runs]
    assert {(args["slo_class"], args["slo_ttft_ms"]) for args in sent} == {("reading", 1000.0)}
    assert len({args["slo_tds"] for args in sent}) > 1 and all(3.0 < args["slo_tds"] < 7.0 for args in sent)
    (run,) = result["runs"]
    assert 0.0 <= run["qoe_p10"] <= run["qoe_p50"] <= run["qoe_p90"] <= 1.0 and "p10" in shown


@pytest.mark.slow
def test_goodput_replaces_what_is_counted_not_what_is_sent(run_bench: RunBench, fake: FakeServer) -> None:
    (run,) = run_bench(goodput=["ttft:0.001"], goodput_class=["batch=e2el:60000"])[0]["runs"]
    assert run["slo_attainment_by_class"] == {"batch": 1.0, "interactive": 0.0}
    assert run["request_goodput"] == pytest.approx(6 / run["duration"])
    sent = [body["vllm_xargs"] for body, _ in fake.runs]
    assert {args["slo_ttft_ms"] for args in sent if args["slo_class"] == "interactive"} == {5000.0}


@pytest.mark.slow
def test_rejections_count_in_one_attainment_and_not_in_the_other(run_bench: RunBench, fake: FakeServer) -> None:
    def script(body: dict[str, Any], request: Any) -> Any:
        if len(fake.bodies) % 4 == 0:
            headers = {"retry-after": "3", "x-slo-dropped-reason": "rejected-saturated"}
            return JSONResponse({"error": {"message": "queue full"}}, 429, headers)
        return reply(body)

    fake.script = script
    result, shown = run_bench()
    (run,) = result["runs"]
    assert (run["rejected"], run["completed"], run["failed"]) == (3, 9, 3)
    assert (run["slo_attainment"], run["slo_attainment_admitted"]) == (0.75, 1.0)
    assert run["rejected_by_reason"] == {"rejected-saturated": 3} and run["retry_after_s_mean"] == 3.0
    assert run["errors"] == {"429: queue full": 3}
    assert "3 of 12 requests were rejected, 0 more not completed" in shown


@pytest.mark.slow
def test_an_endpoint_that_dies_is_reported_not_raised(run_bench: RunBench, fake: FakeServer) -> None:
    fake.script = lambda body, _: reply(body) if len(fake.bodies) < 7 else [{"error": {"message": "engine died"}}]
    (run,) = run_bench()[0]["runs"]
    assert (run["completed"], run["rejected"], run["failed"]) == (5, 0, 7)
    assert run["slo_attainment"] == run["slo_attainment_admitted"] == pytest.approx(5 / 12)


@pytest.mark.slow
def test_what_a_hostile_server_says_costs_only_its_requests(run_bench: RunBench, fake: FakeServer) -> None:
    hostile = ["[" * 9999, {"choices": [1]}, {"error": "[/red]\x1b[2J"}, {"error": "\\ud800"}, {"usage": [1]}]

    def script(body: dict[str, Any], request: Any) -> Any:
        bad = hostile[len(fake.bodies) % 6 - 1] if len(fake.bodies) % 6 else None
        return reply(body) if bad is None or len(fake.bodies) == 1 else [bad]

    fake.script = script
    result, shown = run_bench()
    (run,) = result["runs"]
    assert (run["completed"], run["failed"]) == (2, 10)
    assert "[/red] [2J" in shown and "\x1b" not in shown


@pytest.mark.slow
def test_two_endpoints_get_the_same_requests_in_turn(run_bench: RunBench, fake: FakeServer) -> None:
    order: list[str] = []
    with ExitStack() as stack:
        other = stack.enter_context(serving(FakeServer()))
        for server, name in ((fake, "a"), (other, "b")):

            def script(body: dict[str, Any], _: Any, name: str = name) -> list[Any]:
                order.append(name)
                return reply(body)

            server.script = script
        result, shown = run_bench(compare=f"b={other.url}", seeds=3)
    assert "".join(order[2:]) == "a" * 12 + "b" * 24 + "a" * 24 + "b" * 12, "the first turn alternates"
    assert sorted(map(json.dumps, fake.bodies)) == sorted(map(json.dumps, other.bodies))
    assert [(run["policy"], run["seed"]) for run in result["runs"]] == [
        ("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)
    ]  # fmt: skip
    found = {c["metric"]: c for c in result["comparisons"]}
    assert (found["slo_attainment"]["pairs"], found["slo_attainment"]["verdict"]) == (3, "tie")
    assert "b against a" in shown and "TTFT p50, ms" in shown


@pytest.mark.slow
def test_prompts_differ_between_seeds_and_not_between_benches(run_bench: RunBench, fake: FakeServer) -> None:
    run_bench(seeds=2, max_requests=3)
    first = sorted(json.dumps(body["prompt"]) for body, _ in fake.runs)
    fake.bodies.clear()
    fake.headers.clear()
    run_bench(seeds=2, max_requests=3)
    assert sorted(json.dumps(body["prompt"]) for body, _ in fake.runs) == first
    assert len(set(first)) == 6


@pytest.mark.slow
def test_slos_travel_in_headers_or_not_at_all(run_bench: RunBench, fake: FakeServer) -> None:
    from sloserve.wire.headers import FIELDS

    run_bench(send_slo="headers", max_requests=2)
    stated = [{key: value for key, value in headers.items() if key in FIELDS} for _, headers in fake.runs]
    assert sorted(stated, key=len) == [
        {"x-slo-class": "batch", "x-slo-e2e-ms": "60000"},
        {"x-slo-class": "interactive", "x-slo-ttft-ms": "5000", "x-slo-tpot-ms": "1000"},
    ]
    assert all("vllm_xargs" not in body for body in fake.bodies)
    fake.headers.clear()
    run_bench(send_slo="none", max_requests=2)
    assert not any(key.startswith("x-slo") for headers in fake.headers for key in headers)


@pytest.mark.slow
def test_the_servers_verdicts_stand_beside_ours(run_bench: RunBench, fake: FakeServer) -> None:
    def script(body: dict[str, Any], request: Any) -> list[Any]:
        assert request.headers["x-slo-report"] == "1"
        interactive = body["vllm_xargs"]["slo_class"] == "interactive"
        met = {"ttft": False, "tpot": True} if interactive else {"e2e": True}
        return reply(body, slo={"met": met, "achieved": {"ttft_ms": 5000.0}, "evictions": 1})

    fake.script = script
    result, shown = run_bench(report=True)
    (run,) = result["runs"]
    told = run["server_slo"]
    assert (told["reports"], told["disagreements"], told["evictions"]) == (12, 6, 12)
    assert 4000.0 < told["max_difference_ms"] < 5000.0
    assert run["preemptions_per_request"] == 1.0
    assert "the server's verdict differs on 6 of 12 requests" in shown


@pytest.mark.slow
def test_long_requests_are_cut_and_that_is_said(run_bench: RunBench, fake: FakeServer) -> None:
    result, shown = run_bench(max_prompt_tokens=25, max_output_tokens=3)
    assert max(len(body["prompt"]) for body, _ in fake.runs) == 25
    assert max(body["max_tokens"] for body, _ in fake.runs) == 3
    assert result["runs"][0]["capped_requests"] == 8
    assert "8 of 12 requests were cut" in shown


@pytest.mark.slow
def test_warm_up_requests_are_sent_and_not_counted(run_bench: RunBench, fake: FakeServer) -> None:
    (run,) = run_bench(warmup=3)[0]["runs"]
    assert run["requests"] == 12 and len(fake.bodies) == 1 + 3 + 12
    assert sorted(len(body["prompt"]) for body in fake.bodies[1:4]) == [20, 21, 22]
    warm, counted = (
        next(b for b in bodies if len(b["prompt"]) == 20) for bodies in (fake.bodies[1:4], fake.bodies[4:])
    )
    assert warm["prompt"] != counted["prompt"], "a warm-up must not put the run's prompts into the prefix cache"


@pytest.mark.slow
def test_chats_are_words(run_bench: RunBench, fake: FakeServer) -> None:
    result, _ = run_bench(endpoint="chat")
    counts = sorted(len(body["messages"][0]["content"].split()) for body in fake.bodies[3:])
    assert counts == [20 + i for i in range(12)], "the fake endpoint counts a token a word"
    assert (result["settings"]["api"], result["settings"]["prompt"]) == ("chat", "text")


def test_a_trace_longer_than_the_context_is_refused_before_the_run(run_bench: RunBench, fake: FakeServer) -> None:
    fake.models = [{"id": "fake", "max_model_len": 30}]
    with pytest.raises(ConfigError, match="longer than the model's context of 30 tokens"):
        run_bench()
    assert not fake.bodies


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"trace": None}, "give one of --workload NAME"),
        ({"rps": "2", "rate_scale": 2.0}, "give one of --rps and --rate-scale"),
        ({"rps": "2,x"}, "--rps: '2,x' is not a comma-separated list"),
        ({"rps": "0"}, "--rps: '0' is not a list of different numbers above 0"),
        ({"seeds": 0}, "--seeds: 0 is not a whole number >= 1"),
        ({"max_concurrency": 0}, "--max-concurrency: 0 is not"),
        ({"ramp": -1.0}, "--ramp: -1.0 is not"),
        ({"timeout": 0.0}, "--timeout: 0.0 is not"),
        ({"endpoint": "responses"}, "--endpoint: 'responses' is not one of completions, chat"),
        ({"endpoint": "chat", "prompt": "tokens"}, "--prompt tokens: the chat API takes text only"),
        ({"prompt": "words"}, "--prompt: 'words' is not one of tokens, text"),
        ({"send_slo": "body"}, "--send-slo: 'body' is not one of xargs, headers, none"),
        ({"slo": "readers"}, "--slo: 'readers' is not one of default, reading"),
        ({"goodput": ["ttfb:5"]}, "--goodput: 'ttfb' is not a known key"),
        ({"url": "a=ftp://x"}, "--url: 'ftp://x' is not an http:// or https:// address"),
        ({"compare": "b=ftp://x"}, "--compare: 'ftp://x' is not an http:// or https:// address"),
        ({"compare": "http://[::1"}, "--compare: 'http://[::1' is not an http:// or https:// address: "),
        ({"url": "http://h:1", "compare": "http://h:1"}, "--compare: both endpoints are called 'h:1'"),
    ],
)
def test_flags_that_make_no_sense(flags: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    with pytest.raises(ConfigError) as caught:
        build_bench(BenchOptions(**{"url": "http://h:1", "trace": tmp_path / "t.csv"} | flags))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--goodput", "ttft:500", "tpot:5", "--url", "http://127.0.0.1:9"], "cannot reach http://127.0.0.1:9"),
        (["--url", "http://127.0.0.1:9", "ttft:500"], "unexpected argument 'ttft:500'"),
    ],
)
def test_the_command_line_takes_vllms_form_of_goodput(
    argv: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    argv = ["sloserve", "bench", "--workload", "alpaca-poisson", "--max-requests", "2", "--out", str(tmp_path), *argv]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as exited:
        cli.main()
    captured = capsys.readouterr().err
    assert exited.value.code == 2 and message in captured and captured.startswith("sloserve: ")
