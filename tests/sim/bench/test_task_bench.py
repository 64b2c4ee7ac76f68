"""`sloserve bench --tasks` against a fake endpoint: calls follow their responses, and prompts repeat real outputs."""

import gc
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from starlette.responses import JSONResponse

from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.sim.bench.bench_options import BenchOptions
from sloserve.sim.bench.build_bench import build_bench
from sloserve.sim.bench.run import bench
from sloserve.sim.workloads.tasks import registry
from sloserve.sim.workloads.tasks.drawing import TaskDraws
from sloserve.sim.workloads.tasks.plan import BLOCK, OutputOf, PlannedCall, TaskPlan
from sloserve.sim.workloads.tasks.registry import TaskWorkload
from sloserve.sim.workloads.window import WHOLE, Window
from tests.client.fake_server import FakeServer, chunk, final, reply

pytestmark = pytest.mark.slow

RunBench = Callable[..., tuple[dict[str, Any], str]]
GENERATED = list(range(900, 900 + BLOCK))


def small_tasks(n: int, seed: int, scale: float = 1.0, window: Window = WHOLE) -> list[TaskPlan]:
    """Return tasks of four calls: a plan, two workers at the same time, and a call that joins."""
    draws = TaskDraws("test", seed, scale)
    system = draws.text(32, shared=True)
    plans = []
    for number in range(n):
        ask = draws.text(16)
        first = PlannedCall((system, ask), draws.output(BLOCK))
        one, two = (
            PlannedCall((system, ask, OutputOf(0), draws.text(16)), draws.output(BLOCK), (0,), 0.01) for _ in range(2)
        )
        last = PlannedCall((*one.prompt, OutputOf(1), OutputOf(2)), draws.output(BLOCK), (1, 2), 0.01)
        plans.append(TaskPlan(number, (first, one, two, last)))
    return plans


def with_ids(body: dict[str, Any]) -> list[Any]:
    """Return a response as vLLM's, with the ids of the tokens and the cached tokens of the prompt."""
    parts = reply(body)
    if not body.get("return_token_ids"):
        return parts
    ids = iter(GENERATED)
    for part in parts:
        if isinstance(part, dict) and part["choices"]:
            part["choices"][0]["token_ids"] = [next(ids)]
    parts[-2]["usage"]["prompt_tokens_details"] = {"cached_tokens": 32}
    return parts


@pytest.fixture
def run_bench(fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunBench:
    """Runs two tasks."""
    monkeypatch.setitem(registry.TASK_WORKLOADS, "small", TaskWorkload("small", "small tasks", small_tasks, 50.0))
    monkeypatch.setitem(sys.modules, "sloserve.sim.report.plots", SimpleNamespace(write_plots=lambda *_, **__: []))
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)

    def run(**flags: Any) -> tuple[dict[str, Any], str]:
        console = Console(file=StringIO(), width=200)
        given = {"url": f"a={fake.url}", "tasks": "small", "task_count": 2, "task_deadline": "30"}
        bench(build_bench(BenchOptions(**given | flags)), tmp_path / "out", SystemClock(), console=console)
        assert isinstance(console.file, StringIO)
        return json.loads((tmp_path / "out" / "result.json").read_text()), console.file.getvalue()

    return run


def by_task(fake: FakeServer) -> dict[str, list[tuple[dict[str, Any], dict[str, str]]]]:
    """Return the bodies and headers of each task's calls, as they came, without trial requests."""
    found = defaultdict(list)
    for body, headers in zip(fake.bodies, fake.headers, strict=True):
        if headers.get("x-slo-task-id", "trial").endswith("trial"):
            continue
        found[headers["x-slo-task-id"]].append((body, headers))
    return found


def test_prompts_of_token_ids_repeat_the_ids_of_real_outputs(run_bench: RunBench, fake: FakeServer) -> None:
    fake.script = lambda body, _: with_ids(body)
    result, shown = run_bench(task_hints="deadline,calls=2,last")
    (run,) = result["runs"]
    assert (run["tasks"], run["tasks_finished"], run["tasks_in_time"], run["requests"]) == (2, 1.0, 1.0, 8)
    assert run["prompt_hit_rate"] == pytest.approx(32 * 8 / run["total_input_tokens"])
    assert run["calls_per_task"] == 4.0 and 0.0 < run["tool_time_share"] < 1.0 and run["mean_task_s"] > 0.02
    assert "tasks/s" in shown and "in time" in shown and "2 tasks each" in shown
    tasks = by_task(fake)
    assert len(tasks) == 2
    for calls in tasks.values():
        first, *workers, last = (body["prompt"] for body, _ in calls)
        assert len(first) == 48 and len(workers) == 2 and workers[0] != workers[1]
        assert all(prompt[:64] == first + GENERATED and len(prompt) == 80 for prompt in workers)
        assert any(last == prompt + 2 * GENERATED for prompt in workers)
        stated = [[headers.get(f"x-slo-task-{key}") for key in ("e2e-ms", "calls", "last")] for _, headers in calls]
        assert stated == [["30000", "8", None]] * 3 + [["30000", "8", "1"]]
    assert len({tuple(calls[0][0]["prompt"][:32]) for calls in tasks.values()}) == 1, "the system prompt is shared"


def test_a_server_that_ignores_what_it_does_not_know_gets_text(run_bench: RunBench, fake: FakeServer) -> None:
    result, shown = run_bench(task_hints="id")
    (run,) = result["runs"]
    assert (run["tasks_finished"], run["tasks_in_time"], run["prompt_hit_rate"]) == (1.0, 1.0, None)
    assert "does not state cached tokens" in shown
    for calls in by_task(fake).values():
        first, *workers, last = (body["prompt"] for body, _ in calls)
        assert all(prompt.startswith(first + BLOCK * "a") for prompt in workers)
        assert any(last == prompt + 2 * BLOCK * "a" for prompt in workers)
        assert all("x-slo-task-e2e-ms" not in headers for _, headers in calls)


def test_a_server_that_refuses_fields_of_vllm_gets_none_of_them(run_bench: RunBench, fake: FakeServer) -> None:
    refused = ("return_token_ids", "continuous_usage_stats")
    fake.script = lambda body, _: (
        JSONResponse({"error": {"message": "unknown field"}}, 400)
        if any(name in json.dumps(body) for name in refused)
        else reply(body)
    )
    result, _ = run_bench(send_slo="none")
    assert result["runs"][0]["tasks_finished"] == 1.0
    assert not any(name.startswith("x-slo-task") for headers in fake.headers for name in headers)
    fake.script = lambda body, _: reply(body)
    with pytest.raises(ConfigError, match="does not state the ids of its outputs' tokens"):
        run_bench(prompt="tokens")


def test_a_server_that_refuses_the_headers_of_tasks_is_measured_without_them(
    run_bench: RunBench, fake: FakeServer
) -> None:
    """An older sloserve server refuses every header of its own that it does not know."""
    fake.script = lambda body, request: (
        JSONResponse({"error": {"message": "not a known SLO header"}}, 400)
        if "x-slo-task-id" in request.headers
        else with_ids(body)
    )
    result, shown = run_bench()
    assert result["runs"][0]["tasks_finished"] == 1.0
    assert "the endpoint refuses x-slo-task-id" in shown
    assert sum("x-slo-task-id" in headers for headers in fake.headers) == 1, "of the trial"


def test_a_chat_has_real_outputs_as_messages_of_the_assistant(run_bench: RunBench, fake: FakeServer) -> None:
    def script(body: dict[str, Any], _: Any) -> list[Any]:
        n = body["max_completion_tokens"]
        deltas = [{"index": 0, "delta": {"content": "o"}, "finish_reason": None} for _ in range(n)]
        deltas[-1]["finish_reason"] = "length"
        return [*({"choices": [delta]} for delta in deltas), final(body, n), "[DONE]"]

    fake.script = script
    run_bench(endpoint="chat")
    for calls in by_task(fake).values():
        first, *_, last = ([(m["role"], m["content"]) for m in body["messages"]] for body, _ in calls)
        assert [role for role, _ in first] == ["user"]
        assert [role for role, _ in last] == ["user", "assistant", "user", "assistant", "user"]
        assert last[0] == first[0] and last[1][1] == last[3][1] == last[4][1] == BLOCK * "o"


def test_a_task_of_which_one_call_fails_ends_unfinished_and_the_others_go_on(
    run_bench: RunBench, fake: FakeServer, tmp_path: Path
) -> None:
    def script(body: dict[str, Any], _: Any) -> Any:
        is_second_call = len(fake.bodies) > 3 and len(body["prompt"]) == 80
        if is_second_call and not failed:
            failed.append(fake.headers[-1]["x-slo-task-id"])
            return JSONResponse({"error": {"message": "out of memory"}}, 500)
        return with_ids(body)

    failed: list[str] = []
    fake.script = script
    result, shown = run_bench()
    (run,) = result["runs"]
    assert (run["tasks_finished"], run["tasks_in_time"]) == (0.5, 0.5) and len(failed) == 1
    lengths = {key: [len(body["prompt"]) for body, _ in calls] for key, calls in by_task(fake).items()}
    assert len(lengths.pop(failed[0])) <= 3, "the call that joins is not sent"
    assert list(lengths.values()) == [[48, 80, 80, 112]]
    assert "out of memory" in shown
    rows = (tmp_path / "out" / "tasks.csv").read_text().splitlines()
    assert sorted(row.split(",")[7] != "" for row in rows[1:]) == [False, True]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_prompt_tokens": 5}, "--max-prompt-tokens does not go with --tasks; --task-scale"),
        ({"ramp": 3.0}, "--ramp does not go with --tasks"),
        ({"rps": "3"}, "--rps does not go with --tasks"),
        ({"task_deadline": "2x+5"}, "--task-deadline: '2x.5' is a multiple of the latency on an idle engine"),
    ],
)
def test_options_that_do_not_go_with_tasks_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_bench(BenchOptions(url="http://127.0.0.1:1", tasks="react", **flags))


def test_without_a_profile_tasks_have_no_deadline_unless_one_is_given(run_bench: RunBench, fake: FakeServer) -> None:
    fake.script = lambda body, _: with_ids(body)
    result, shown = run_bench(task_deadline=None)
    assert result["runs"][0]["tasks_in_time"] is None
    assert "tasks have no deadline; --task-deadline SECONDS sets one" in shown
    result, _ = run_bench(task_deadline=None, profile="h100-llama3-8b")
    assert result["runs"][0]["tasks_in_time"] == 1.0


def test_tasks_that_do_not_fit_the_context_are_refused_with_the_remedy(run_bench: RunBench, fake: FakeServer) -> None:
    fake.models = [{"id": "fake", "max_model_len": 100}]
    with pytest.raises(ConfigError, match=r"2 of 8 requests are longer .* give --task-scale below 1"):
        run_bench()


def test_an_endless_output_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from sloserve.client import stream

    monkeypatch.setattr(stream, "MOST_OUTPUT_CHARS", 3)
    reader = stream.StreamReader(keep_output=True)
    for _ in range(9):
        reader.feed(json.dumps(chunk("ab")), 0.0)
    assert reader.output_text == "abab" and reader.output_ids is None
