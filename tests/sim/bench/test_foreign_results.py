"""Files of other load generators: figures, what counts as failed, and files that say too little.

The files here have the fields that vLLM 0.32.0, guidellm 0.8.1 and aiperf 0.13.0 write; values are made up.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError
from sloserve.core.slo import Targets
from sloserve.sim.bench.foreign_results import MeasuredRequest, read_runs

VLLM = {
    "duration": 2.0,
    "ttfts": [0.1, 0.9, 0.2, 0.0],
    "itls": [[0.1, 0.1], [0.1], [], []],
    "output_lens": [3, 2, 1, 0],
    "errors": ["", "", "", "Too Many Requests"],
}


def _guidellm(ttft_ms: float, itl_ms: float | None, e2e_s: float, tokens: int) -> dict[str, Any]:
    figures = {"time_to_first_token_ms": ttft_ms, "inter_token_latency_ms": itl_ms}
    return figures | {"request_latency": e2e_s, "output_tokens": tokens}


_SUCCESSFUL = [_guidellm(100.0, 100.0, 0.3, 3), _guidellm(900.0, 100.0, 1.0, 2), _guidellm(200.0, None, 0.2, 1)]
_REQUESTS = {"successful": _SUCCESSFUL, "errored": [], "incomplete": [{"request_latency": None}]}
GUIDELLM = {"benchmarks": [{"duration": 2.0, "requests": _REQUESTS}]}


def _aiperf(ttft_ms: float, itl_ms: float | None, e2e_ms: float, tokens: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {"time_to_first_token": {"value": ttft_ms, "unit": "ms"}}
    metrics["request_latency"] = {"value": e2e_ms, "unit": "ms"}
    metrics["output_sequence_length"] = {"value": tokens, "unit": "tokens"}
    if itl_ms is not None:
        metrics["inter_token_latency"] = {"value": itl_ms, "unit": "ms"}
    return {"metadata": {}, "metrics": metrics, "error": None}


AIPERF = [
    _aiperf(100.0, 100.0, 300.0, 3),
    _aiperf(900.0, 100.0, 1000.0, 2),
    _aiperf(200.0, None, 200.0, 1),
    {"metadata": {}, "metrics": {}, "error": {"code": 429}},
]
TEXTS = {
    "vllm bench serve": json.dumps(VLLM),
    "guidellm": json.dumps(GUIDELLM),
    "aiperf": "\n".join(map(json.dumps, AIPERF)),
}


@pytest.mark.parametrize("tool", TEXTS)
def test_each_tool_has_the_same_verdict_for_the_same_requests(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text(TEXTS[tool])
    (run,) = read_runs(path)
    assert run.tool == tool
    judged = run.judged(Targets(ttft_s=0.5, tpot_s=0.1, e2e_s=0.25))
    assert [one.met for one in judged] == [
        {"ttft": True, "tpot": True, "e2e": False},
        {"ttft": False, "tpot": True, "e2e": False},
        {"ttft": True, "tpot": True, "e2e": True},
        {"ttft": False, "tpot": False, "e2e": False},
    ]


def test_the_command_prints_the_verdict_and_fails_below_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(TEXTS["vllm bench serve"])
    arguments = ["judge", str(path), "--goodput", "ttft:500", "--at-least"]
    passed = CliRunner().invoke(app, [*arguments, "50"])
    assert passed.exit_code == 0
    assert passed.output.splitlines() == [
        "vllm bench serve: 4 requests, 3 completed",
        "  ttft         50.0 %   2 of 4",
        "  all targets  50.0 %   2 of 4",
        "  goodput     1.00 requests/s",
    ]
    assert CliRunner().invoke(app, [*arguments, "50.1"]).exit_code == 1
    (told,) = json.loads(CliRunner().invoke(app, [*arguments, "0", "--json"]).output)
    assert told["met"] == {"ttft": 2} and told["attainment"] == 0.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not in the format of its tool"),
        ("[]", "--save-detailed"),
        (json.dumps({"duration": 1.0, "mean_ttft_ms": 3.0}), "--save-detailed"),
        (json.dumps(VLLM | {"errors": [""]}), "is not in the format of its tool"),
        (json.dumps({"benchmarks": []}), "has no requests"),
        (json.dumps(VLLM | {"ttfts": ["0.1", 1, 1, 1]}), "is not in the format of its tool"),
        (json.dumps(VLLM | {"duration": "2"}), "'2' is not a number"),
        (json.dumps([{"metrics": {"request_latency": {"value": 1, "unit": "years"}}}]), "years"),
    ],
)
def test_a_file_without_figures_of_requests_is_refused(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_runs(path)


def _read(path: Path, text: str) -> list[MeasuredRequest]:
    path.write_text(text)
    (run,) = read_runs(path)
    return run.requests


@pytest.mark.parametrize("nan", [float("nan"), float("inf"), None])
def test_a_figure_of_vllm_that_is_not_known_costs_that_figure_alone(nan: float | None, tmp_path: Path) -> None:
    path = tmp_path / "result"
    failed = {"ttfts": [0.1, 0.9, 0.2, nan], "itls": [[0.1, 0.1], [0.1], [], [nan]]}
    assert _read(path, json.dumps(VLLM | failed)) == _read(path, json.dumps(VLLM))
    third = MeasuredRequest(True, 0.2, 0.0, 0.2)
    found = _read(path, json.dumps(VLLM | {"itls": [[0.1, nan], [0.1], [], []], "ttfts": [0.1, nan, 0.2, 0.0]}))
    assert found == [
        MeasuredRequest(True, 0.1, None, None),
        MeasuredRequest(True, None, None, None),
        third,
        MeasuredRequest(False),
    ]
    found = _read(path, json.dumps(VLLM | {"latencies": [nan, 1.0, 0.2, nan], "ttfts": [0.1, nan, 0.2, nan]}))
    assert found == [
        MeasuredRequest(True, 0.1, None, None),
        MeasuredRequest(True, None, None, 1.0),
        third,
        MeasuredRequest(False),
    ]


def test_a_figure_of_aiperf_that_is_not_known_costs_that_figure_alone(tmp_path: Path) -> None:
    record = json.dumps(_aiperf(100.0, 10.0, 300.0, 3))
    (one,) = _read(tmp_path / "result", f"[{record.replace('100.0', 'NaN')}]")
    assert one == MeasuredRequest(True, None, 0.01, 0.3)


def test_a_target_without_its_figure_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result"
    unstreamed = {"metadata": {}, "metrics": {"request_latency": {"value": 1.0, "unit": "sec"}}, "error": None}
    path.write_text(json.dumps(unstreamed) + "\n" + json.dumps(unstreamed))
    (run,) = read_runs(path)
    assert [one.good for one in run.judged(Targets(e2e_s=1.0))] == [True, True]
    with pytest.raises(ConfigError, match="request 1 of aiperf has no ttft"):
        run.judged(Targets(ttft_s=1.0))


def test_lines_end_with_line_feeds_alone_and_a_byte_order_mark_is_taken(tmp_path: Path) -> None:
    """aiperf writes what a server said as it is, U+2028 and U+0085 too."""
    path = tmp_path / "profile_export.jsonl"
    records = [_aiperf(100.0, 10.0, 300.0, 3) | {"error": said} for said in ("a\u2028b\x85c\u2029d", None)]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\r\n" for record in records)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    (run,) = read_runs(path)
    assert [one.completed for one in run.requests] == [False, True]


def test_a_figure_that_is_no_number_is_missing_and_the_verdict_is_json(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text(json.dumps(GUIDELLM).replace('"duration": 2.0', '"duration": NaN'))
    asked = CliRunner().invoke(app, ["judge", str(path), "--goodput", "ttft:500", "--json"])
    (told,) = json.loads(asked.stdout, parse_constant=pytest.fail)
    assert (told["attainment"], told["goodput_per_s"]) == (0.5, None)
    path.write_text(json.dumps(GUIDELLM).replace('"duration": 2.0', '"duration": 5e-324'))
    asked = CliRunner().invoke(app, ["judge", str(path), "--goodput", "ttft:500", "--json"])
    assert json.loads(asked.stdout, parse_constant=pytest.fail)[0]["goodput_per_s"] is None
    for odd in ("NaN", "Infinity", "9" * 400):
        path.write_text(
            json.dumps(GUIDELLM).replace('"time_to_first_token_ms": 100.0', f'"time_to_first_token_ms": {odd}')
        )
        (run,) = read_runs(path)
        with pytest.raises(ConfigError, match="request 1 of guidellm has no ttft"):
            run.judged(Targets(ttft_s=1.0))
