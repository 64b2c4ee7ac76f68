"""Files that vLLM's bench reads, as traces: lengths, arrivals where there are any, and one message for a bad one."""

import json
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.readers.token_counter import estimated, token_counter
from sloserve.sim.workloads.workload_registry import asked_workload

TURNS = [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 9}, {"from": "human", "value": "more"}]
SHAREGPT = json.dumps([{"id": "x_0", "conversations": TURNS}, {"id": "y", "conversations": [*reversed(TURNS[:2])]}])
CUSTOM = '{"prompt": "What is the capital of India?", "output_tokens": 10}\n{"output_tokens": 3, "prompt": ""}\n'
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
def test_sharegpt_has_the_lengths_of_first_prompts_and_replies_and_arrivals_at_the_rate_asked_for(
    tmp_path: Path,
) -> None:
    trace = read_trace(write(tmp_path / "ShareGPT_V3.json", SHAREGPT), draw_arrivals=True)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 3], [3, 10])
    assert (trace.name, trace.task) == ("ShareGPT_V3", ["sharegpt", "sharegpt"])
    many = write(tmp_path / "many.json", json.dumps(json.loads(SHAREGPT) * 1_000))
    gaps = np.diff(read_trace(many, draw_arrivals=True).arrival_s)
    assert gaps.mean() == pytest.approx(1.0, rel=0.05) and gaps.std() == pytest.approx(1.0, rel=0.1)


def test_custom_and_what_is_spread_over_lines(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "c.jsonl", CUSTOM), draw_arrivals=True)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([8, 1], [10, 3])
    spread = json.dumps(json.loads(SHAREGPT), indent=2)
    assert read_trace(write(tmp_path / "s.json", spread), draw_arrivals=True).prompt_tokens.tolist() == [10, 3]


def test_burstgpt_has_arrivals_of_its_own_and_leaves_out_what_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = read_trace(write(tmp_path / "BurstGPT_1.csv", BURSTGPT))
    assert trace.arrival_s.tolist() == [0.0, 113.0]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([472, 417], [18, 276])
    assert trace.task == ["conversation", "api"]
    assert "left out 1 of 3 requests" in caplog.text


def test_a_conversation_without_a_reply_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = [*json.loads(SHAREGPT), {"conversations": TURNS[:1]}, {"conversations": []}]
    assert read_trace(write(tmp_path / "s.json", json.dumps(entries)), draw_arrivals=True).prompt_tokens.size == 2
    assert "left out 2 of 4 requests" in caplog.text


def test_sharegpt_is_read_as_json_lines_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = [*json.loads(SHAREGPT), {"conversations": TURNS[:1]}]
    path = write(tmp_path / "sharegpt.jsonl", "\n".join(map(json.dumps, entries)))
    trace = read_trace(path, draw_arrivals=True)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 3], [3, 10])
    assert "left out 1 of 3 requests" in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[", ": is not JSON: Expecting value"),
        ("[]", "has no requests"),
        ("[5]", ": entry 0 has no list of conversations"),
        ('[{"conversations": [{"from": "human"}]}]', ": entry 0: a turn has no text under 'value'"),
        ('[{"conversations": ["a", "b"]}]', ": entry 0: a turn has no text under 'value'"),
        ('{"prompt": "a"}', ":1: column 'output_tokens' is missing; the row has: prompt"),
        (CUSTOM + '{"prompt": 5, "output_tokens": 1}', ":3: column 'prompt': 5 is not text"),
        (CUSTOM + '{"prompt": "", "output_tokens": true}', ":3: column 'output_tokens': True is not a whole number"),
        (CUSTOM + "[1]", ":3: is not a JSON object with prompt, output_tokens"),
        (CUSTOM + "{", ":3:2: is not JSON"),
        (BURSTGPT + "1,M,-1,5,4,API log\n", ":5: column 'Request tokens': '-1' is not a whole number of tokens from 0"),
        (CUSTOM + '{"prompt": "", "output_tokens": -1}', ":3: column 'output_tokens': -1 is not a whole number"),
        ('{"conversations": []}\n{"id": 1}', ":2 has no list of conversations"),
        ("Request tokens,Response tokens\n1,1\n", ":1: column 'Timestamp' is missing"),
    ],
)
def test_a_malformed_file(text: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad", text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path, draw_arrivals=True)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_arrivals_are_drawn_only_where_a_rate_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", CUSTOM)
    with pytest.raises(ConfigError, match=r"c\.jsonl: states no arrivals \(column 'arrival_s'\); give --rps"):
        asked_workload(SimulateOptions(trace=path))
    assert asked_workload(SimulateOptions(trace=path, rps="4")).name == "c"
    assert asked_workload(SimulateOptions(trace=path, load="0.7")).name == "c"
    with pytest.raises(ConfigError, match="--tokenizer counts the texts of a --trace"):
        asked_workload(SimulateOptions(workload="voice", tokenizer=tmp_path))


def test_tokens_are_estimated_by_bytes() -> None:
    assert estimated(["", "abc", "abcde", "日本語"]) == [1, 1, 2, 3]


@pytest.mark.slow
def test_a_tokenizer_counts_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert token_counter(path)(["a b c", ""]) == [3, 1]
    with pytest.raises(ConfigError, match=r"--tokenizer .*no\.json: is no tokenizer\.json that can be read"):
        token_counter(tmp_path / "no.json")
