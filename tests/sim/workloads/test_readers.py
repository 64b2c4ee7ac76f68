"""Readers: three formats, one Trace; a malformed file gives one message with file, line, column, value and limits."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.readers import read_trace, table
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT
from sloserve.sim.workloads.trace import Trace, make_trace
from sloserve.sim.workloads.workload_registry import to_requests, trace_workload

CSV = "arrival_s,prompt_tokens,output_tokens,task\n0.5,374,44,conv\n4.0,396,109,code\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 3000, "input_length": 1024, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 4500, "input_length": 600, "output_length": 26, "hash_ids": [46, 57]}\n'
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def columns(trace: Trace) -> tuple[list[float], list[int], list[int]]:
    return trace.arrival_s.round(6).tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()


def test_csv(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.csv", CSV))
    assert columns(trace) == ([0.0, 3.5], [374, 396], [44, 109])
    assert (trace.name, trace.task, trace.prefix_ids) == ("t", ["conv", "code"], None)


def test_csv_with_hash_ids_gzipped_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    text = "arrival_s,prompt_tokens,output_tokens,task,hash_ids\n0,1000,5,chat,0 7\n1,513,5,chat,0 9\n2,9,1,chat,\n"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_trace(path).prefix_ids == [(0, 7), (0, 9), ()]


def test_csv_columns_in_any_order_and_unknown_ones_ignored(tmp_path: Path) -> None:
    text = "\ufeffnote,output_tokens,arrival_s,prompt_tokens\r\nx,2,0,30.0\r\n\r\ny,3,1e-3,4\r\n"
    trace = read_trace(write(tmp_path / "t.csv", text))
    assert columns(trace) == ([0.0, 0.001], [30, 4], [2, 3])
    assert trace.task == ["", ""]


def test_azure(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "AzureLLMInferenceTrace_conv.csv", AZURE))
    assert columns(trace) == ([0.0, 4.314579], [374, 396], [44, 109])
    assert trace.task == ["conv", "conv"]


def test_azure_with_utc_offsets(tmp_path: Path) -> None:
    rows = ["2024-05-10 00:00:00+00:00,5,1", "2024-05-10 00:00:01.5+00:00,6,1"]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows)
    assert columns(read_trace(write(tmp_path / "t.csv", text))) == ([0.0, 1.5], [5, 6], [1, 1])
    mixed = text + "\n2024-05-10 02:00:03+02:00,7,1\n2024-05-10T00:00:02Z,8,1\n"
    assert columns(read_trace(write(tmp_path / "m.csv", mixed)))[0] == [0.0, 1.5, 2.0, 3.0]


def test_mooncake(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "conversation_trace.jsonl", MOONCAKE))
    assert columns(trace) == ([0.0, 1.5], [1024, 600], [52, 26])
    assert trace.prefix_ids == [(46, 47), (46, 57)]
    assert trace.task == ["conversation", "conversation"]


def test_mooncake_without_hash_ids(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 5, "output_length": 2}
    assert read_trace(write(tmp_path / "t.jsonl", json.dumps(row))).prefix_ids is None


MILLISECONDS = {"timestamp": 0, "input_length": 5, "output_length": 2}


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt_tokens,output_tokens\n0,4,5\n1,0,5\n2,6,0\n3,7,8\n",
        AZURE.splitlines()[0]
        + "\n"
        + "".join(f"2023-11-16 18:15:4{i}.0,{p},{o}\n" for i, p, o in ((0, 4, 5), (1, 0, 5), (2, 6, 0), (3, 7, 8))),
        lines(*({"timestamp": 1000 * i, "input_length": p, "output_length": o, "hash_ids": [i] * bool(p)}
                for i, p, o in ((0, 4, 5), (1, 0, 5), (2, 6, 0), (3, 7, 8)))),
        lines(*({"chat_id": i, "timestamp": i, "input_length": p, "output_length": o}
                for i, p, o in ((0, 4, 5), (1, 0, 5), (2, 6, 0), (3, 7, 8)))),
        "Timestamp,Request tokens,Response tokens\n0,4,5\n1,0,5\n2,6,0\n3,7,8\n",
    ],
    ids=["csv", "azure", "mooncake", "bailian", "burstgpt"],
)  # fmt: skip
def test_rows_of_zero_tokens_are_left_out_with_one_warning(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "t", text)
    assert columns(read_trace(path)) == ([0.0, 3.0], [4, 7], [5, 8])
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: left out 2 of 4 requests, which have a prompt or an output of 0 tokens"
    ]


def test_a_trace_of_nothing_but_zero_tokens_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "arrival_s,prompt_tokens,output_tokens\n0,4,0\n")
    with pytest.raises(ConfigError, match="all 1 requests have a prompt or an output of 0 tokens"):
        read_trace(path)


BAILIAN = lines(
    *(
        {"chat_id": i, "parent_chat_id": -1, "timestamp": t, "input_length": p, "output_length": 9, "type": "text",
         "turn": 1, "hash_ids": list(range(-(-p // 16)))}
        for i, (t, p) in enumerate(((61.114, 14), (61.614, 521), (3600.0, 1600)))
    )
)  # fmt: skip


def test_bailian_has_seconds_and_blocks_of_16_tokens(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "qwen_traceA_blksz_16.jsonl", BAILIAN))
    assert columns(trace)[0] == [0.0, 0.5, 3538.886]
    assert (trace.block_tokens, trace.task) == (16, ["text"] * 3)
    assert trace.summary == "format bailian, times in seconds, prefix blocks of 16 tokens; 3,539 s, 0.000565 requests/s"
    assert [r.prefix_block_tokens for r in to_requests(trace, DEFAULT_ASSIGNMENT, 0)] == [16] * 3


def test_every_summary_states_format_unit_span_and_rate(tmp_path: Path) -> None:
    for text, expected in (
        (CSV, "format csv, times in seconds; 4 s, 0.286 requests/s"),
        (AZURE, "format azure, times in UTC dates; 4 s, 0.232 requests/s"),
        (MOONCAKE, "format mooncake, times in milliseconds, prefix blocks of 512 tokens; 2 s, 0.667 requests/s"),
        (CSV.splitlines()[0] + "\n1,1,1,a\n", "format csv, times in seconds; 0 s, all at once"),
    ):
        trace = read_trace(write(tmp_path / "t", text))
        assert trace.summary == expected
        assert trace_workload(trace).description == f"{len(trace)} requests of t ({expected})"


def test_ambiguous_units_are_refused_with_the_flag_to_give(tmp_path: Path) -> None:
    fractions = lines(MILLISECONDS, MILLISECONDS | {"timestamp": 61.114})
    fast = lines(*(MILLISECONDS | {"timestamp": second} for second in range(0, 60, 2) for _ in range(5)))
    for text, expected in ((fractions, "the values have fractions"), (fast, "150 requests would arrive at 2569 per s")):
        path = write(tmp_path / "t.jsonl", text)
        with pytest.raises(ConfigError, match=expected) as caught:
            read_trace(path)
        assert "--trace-format mooncake" in str(caught.value) and "--trace-format bailian" in str(caught.value)
        milliseconds, seconds = read_trace(path, "mooncake"), read_trace(path, "bailian")
        assert seconds.span_s == pytest.approx(1000 * milliseconds.span_s)


def test_the_rate_of_a_few_rows_says_nothing_of_their_unit(tmp_path: Path) -> None:
    text = lines(*(MILLISECONDS | {"timestamp": at} for at in (0, 0, 0, 1)))
    assert read_trace(write(tmp_path / "t.jsonl", text)).span_s == pytest.approx(0.001)


def test_dynamo_and_aiperf_state_delays_aliases_and_texts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = lines(
        {"session_id": "a", "created_time": 10.5, "input_tokens": 7, "output_tokens": 3, "hash_ids": None},
        {"session_id": "a", "delay": 2000, "timestamp": None, "input_length": 9, "output_length": 3},
        {"session_id": "a", "delay_ms": 500, "text_input": "x" * 40, "output_length": 3},
        {"timestamp": 3010.5, "texts": ["x" * 20, "x" * 19], "output_length": 3},
        {"timestamp": 4010.5, "messages": [{"role": "user", "content": [{"type": "text", "text": "xx"}]}],
         "output_length": 3},
    )  # fmt: skip
    trace = read_trace(write(tmp_path / "schedule.jsonl", text))
    assert columns(trace) == ([0.0, 2.0, 2.5, 3.0, 4.0], [7, 9, 10, 10, 1], [3] * 5)
    assert "2 requests state a delay after the previous response of their session" in caplog.text


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"delay": 5, "input_length": 1, "output_length": 1}, "column 'timestamp' is missing"),
        ({"timestamp": 1, "output_length": 1}, "column 'input_length' is missing"),
        ({"timestamp": 1, "text_input": "a"}, "column 'output_length' is missing"),
        ({"timestamp": 1, "text_input": 5, "output_length": 1}, "column 'text_input': 5 is not text"),
        ({"timestamp": 1, "messages": [[[[[["a"]]]]]], "output_length": 1}, "column 'messages': .* is not text"),
    ],
)
def test_an_incomplete_schedule_is_refused(row: dict[str, object], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f":1: {expected}"):
        read_trace(write(tmp_path / "t.jsonl", lines(row)))


def test_the_size_of_blocks_is_told_by_the_number_of_ids(tmp_path: Path) -> None:
    def trace(size: int, *prompts: int) -> Path:
        rows = ({"timestamp": 1, "input_length": p, "output_length": 1, "hash_ids": [5] * -(-p // size)}
                for p in prompts)  # fmt: skip
        return write(tmp_path / "t.jsonl", lines(*rows))

    assert read_trace(trace(512, 100, 1700)).block_tokens == 512
    assert read_trace(trace(64, 100, 1700)).block_tokens == 64
    # Fewer ids than blocks may stand for the part that prompts share.
    assert read_trace(trace(1024, 100, 1700)).block_tokens == 512
    assert read_trace(trace(2048, 700, 1100, 9000)).block_tokens == 512
    with pytest.raises(ConfigError, match="blocks of 64, 128 tokens; give the number with --trace-block-tokens"):
        read_trace(trace(128, 160))
    assert read_trace(trace(2048, 2000), prefix_block_tokens=2048).block_tokens == 2048
    with pytest.raises(ConfigError, match="t.jsonl:1: column 'hash_ids': '10 ids' is not possible for 100 prompt"):
        read_trace(trace(10, 100), prefix_block_tokens=16)


def test_ids_of_64_bits_are_numbered_anew(tmp_path: Path) -> None:
    rows = (MILLISECONDS | {"input_length": 1000, "hash_ids": ids} for ids in ([2**64 - 1, 7], [2**64 - 1, 8]))
    assert read_trace(write(tmp_path / "t.jsonl", lines(*rows))).prefix_ids == [(0, 1), (0, 2)]


def test_unsorted_rows_are_sorted_and_ties_keep_their_order(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,task\n9,1,1,d\n7,2,1,b\n5,3,1,a\n7,4,1,c\n"
    trace = read_trace(write(tmp_path / "t.csv", text))
    assert trace.task == ["a", "b", "c", "d"]
    assert trace.arrival_s.tolist() == [0.0, 2.0, 2.0, 4.0]


def test_rows_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "CHUNK_ROWS", 3)
    body = "".join(f"{i},{i + 1},{i + 2},t,{i}\n" for i in range(10))
    path = write(tmp_path / "t.csv", "arrival_s,prompt_tokens,output_tokens,task,hash_ids\n" + body)
    trace = read_trace(path)
    assert trace.prompt_tokens.tolist() == list(range(1, 11))
    assert trace.prefix_ids == [(i,) for i in range(10)]
    write(path, path.read_text() + "10,oops,1,t,\n")
    with pytest.raises(ConfigError, match=r"t\.csv:12: column 'prompt_tokens': 'oops'"):
        read_trace(path)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("0,abc,5,t", "prompt_tokens", "'abc'"),
        ("0,-3,5,t", "prompt_tokens", "'-3'"),
        ("0,3,-1,t", "output_tokens", "'-1'"),
        ("0,3,nan,t", "output_tokens", "'nan'"),
        ("0,3,1_000,t", "output_tokens", "'1_000'"),
        ("0,\u0661,1,t", "prompt_tokens", "'\u0661'"),
        ("1_0,3,1,t", "arrival_s", "'1_0'"),
        ("0,3,,t", "output_tokens", "''"),
        ("0,3.5,4,t", "prompt_tokens", "'3.5'"),
        ("0,3,99999999999999999999999,t", "output_tokens", "'99999999999999999999999'"),
        ("-1,3,4,t", "arrival_s", "'-1'"),
        ("nan,3,4,t", "arrival_s", "'nan'"),
        ("inf,3,4,t", "arrival_s", "'inf'"),
        ("1e12,3,4,t", "arrival_s", "'1e12'"),
    ],
)
def test_malformed_csv_cell(tmp_path: Path, row: str, column: str, value: str) -> None:
    path = write(tmp_path / "bad.csv", CSV + row + "\n5,1,1,t\n")
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:4: column {column!r}: {value} is not a ")
    assert "\n" not in message


@pytest.mark.parametrize("stamp", ["yesterday", "", "NaT", "2023-13-01 00:00:00", "12345", "2023-11-16 18:15:46.68x"])
def test_malformed_azure_timestamp(tmp_path: Path, stamp: str) -> None:
    path = write(tmp_path / "bad.csv", AZURE + f"{stamp},1,1\n")
    with pytest.raises(ConfigError, match=r":4: column 'TIMESTAMP': .* is not a date and time like"):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"timestamp": -1}, "column 'timestamp': -1 is not a number of milliseconds"),
        ({"timestamp": float("nan")}, "column 'timestamp': nan is not"),
        ({"timestamp": True}, "column 'timestamp': True is not"),
        ({"input_length": -1}, "column 'input_length': -1 is not a whole number of tokens from 0"),
        ({"session_id": [1]}, "column 'session_id': [1] is not text or a whole number"),
        ({"input_length": "12"}, "column 'input_length': '12' is not"),
        ({"output_length": 2.5}, "column 'output_length': 2.5 is not"),
        ({"output_length": None}, "column 'output_length': None is not"),
        ({"hash_ids": "1 2"}, "column 'hash_ids': '1 2' is not a list"),
        ({"hash_ids": [1, -2]}, "column 'hash_ids': [1, -2] is not a list"),
        ({"hash_ids": [1, 2, 3]}, "column 'hash_ids': '3 ids' is not possible for 1024 prompt tokens"),
    ],
)
def test_malformed_mooncake_value(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    row = {"timestamp": 1, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]} | change
    path = write(tmp_path / "bad.jsonl", MOONCAKE + json.dumps(row) + "\n")
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:3: {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b,c\n1,2,3\n", ":1: 'a,b,c' is no known trace header"),
        ("arrival_s,prompt_tokens\n0,1\n", ":1: column 'output_tokens' is missing; the header has: arrival_s, prompt"),
        ("TIMESTAMP,ContextTokens\n", ":1: column 'GeneratedTokens' is missing"),
        ("prompt_tokens,output_tokens\n1,1\n", ": states no arrivals (column 'arrival_s'); give --rps"),
        ("arrival_s,prompt_tokens,output_tokens\n", "trace has no requests"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1\n", ":2: row has 2 columns, the header has 3"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1,1\n", ":2: row has 4 columns, the header has 3"),
        ('{"timestamp": 1, "input_length": 2}\n', ":1: column 'output_length' is missing"),
        ('{"timestamp": 1, \n', ":1:17: is not JSON"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 2}\n[1]\n', ":2: is not a JSON object"),
        ("arrival_s,prompt_tokens,output_tokens,hash_ids\n0,9,1,1 x\n", ":2: column 'hash_ids': '1 x' is not"),
        ("arrival_s,prompt_tokens,output_tokens,hash_ids\n0,9,1,1 2\n", ":2: column 'hash_ids': '2 ids' is not"),
    ],
)
def test_malformed_file(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "bad", text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.csv", CSV + f"0,{'x' * 10_000},1,t\n")
    with pytest.raises(ConfigError, match=r"xxx\.\.\.xxx") as caught:
        read_trace(path)
    assert len(str(caught.value)) < len(str(path)) + 250


def test_unreadable_files(tmp_path: Path) -> None:
    for name, content, expected in (
        ("binary.csv", b"\xff\xfe\x00\x01", "is not UTF-8 text"),
        ("cut.csv.gz", gzip.compress(CSV.encode())[:-12], "is a damaged gzip file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=expected):
            read_trace(tmp_path / name)
    for missing in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_trace(missing)


def test_format_can_be_forced_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", CSV)
    assert len(read_trace(path, "csv")) == 2
    with pytest.raises(ConfigError, match="column 'TIMESTAMP' is missing"):
        read_trace(path, "azure")
    with pytest.raises(ConfigError, match="unknown trace format 'parquet'; known: csv, azure, mooncake"):
        read_trace(path, "parquet")


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 10**7), st.integers(1, 10**7)), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, int, int]]) -> None:
    path = tmp_path_factory.getbasetemp() / "roundtrip.csv"
    write(path, "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{a!r},{p},{o}\n" for a, p, o in rows))
    trace = read_trace(path)
    ordered = sorted(rows, key=lambda row: row[0])
    assert trace.prompt_tokens.tolist() == [p for _, p, _ in ordered]
    assert trace.output_tokens.tolist() == [o for _, _, o in ordered]
    assert trace.arrival_s.tolist() == [a - ordered[0][0] for a, _, _ in ordered]


def ten() -> Trace:
    arrivals = [0, 1, 3, 6, 10, 15, 21, 28, 36, 45]
    return make_trace(
        "ten", "test", arrivals, range(1, 11), range(1, 11), list("abcdefghij"), [(i,) for i in range(10)]
    )


def test_head_and_window_rebase() -> None:
    trace = ten()
    assert trace.head(3).arrival_s.tolist() == [0.0, 1.0, 3.0]
    starts = set()
    for seed in range(60):
        window = trace.window(seed, 4)
        start = "abcdefghij".index(window.task[0])
        starts.add(start)
        assert window.task == list("abcdefghij"[start : start + 4])
        assert window.prefix_ids == [(i,) for i in range(start, start + 4)]
        assert np.array_equal(window.arrival_s, trace.arrival_s[start : start + 4] - trace.arrival_s[start])
        assert np.array_equal(window.arrival_s, trace.window(seed, 4).arrival_s)
    assert starts == set(range(7))
    assert len(trace.window(5, 1000)) == len(trace.head(1000)) == 10
    with pytest.raises(ConfigError, match="0 requests asked for"):
        trace.window(0, 0)


def test_scaling_multiplies_every_gap_by_one_constant() -> None:
    trace = ten()
    scaled = trace.at_rate(3.0)
    assert scaled.rate_per_s == pytest.approx(3.0)
    assert np.allclose(scaled.arrival_s / scaled.span_s, trace.arrival_s / trace.span_s)
    assert trace.faster(2.0).arrival_s.tolist() == (trace.arrival_s / 2.0).tolist()
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="is a positive number"):
            trace.faster(bad)
    with pytest.raises(ConfigError, match="arrive at once"):
        trace.head(1).at_rate(1.0)


DATA = Path(os.environ.get("SLOSERVE_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "prompt_mean", "output_mean", "span_s", "rate_per_s"),
    [  # as the data folder's README states them
        ("azure2023_code_first_two_thirds", 7148, 2028, 27, 2291, 3.12),
        ("azure2023_conv_first_two_thirds", 13828, 1203, 201, 2334, 5.92),
        ("mooncake_conversation_first_half", 5606, 12935, 346, 1767, 3.17),
        ("vidur_arxiv_lengths", 18838, 2580, 295, None, None),
        ("servegen_mlarge_day2_10h", 30063, 779, 204, 3600, 8.35),
        ("servegen_mlarge_day2_19h", 29619, 937, 138, 3600, 8.23),
    ],
)
def test_public_traces(
    name: str, rows: int, prompt_mean: int, output_mean: int, span_s: int | None, rate_per_s: float | None
) -> None:
    path = DATA / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    trace = read_trace(path, draw_arrivals=span_s is None)
    prompts, outputs = trace.prompt_tokens, trace.output_tokens
    if span_s is not None:
        assert round(trace.span_s) == span_s
        assert trace.rate_per_s == pytest.approx(rate_per_s, abs=0.006)
        assert (trace.prefix_ids is not None) == name.startswith("mooncake")
        assert len(set(trace.task)) >= 1 and all(trace.task)
    assert len(prompts) == rows
    assert (round(prompts.mean()), round(outputs.mean())) == (prompt_mean, output_mean)


def test_a_trace_is_found_by_its_name_in_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    data.mkdir()
    monkeypatch.chdir(here)
    write(data / "conv.csv", CSV)
    monkeypatch.delenv("SLOSERVE_DATA", raising=False)
    with pytest.raises(ConfigError, match=f"^no trace conv.csv: not in {here}, and SLOSERVE_DATA, .* is not set$"):
        read_trace("conv.csv")
    monkeypatch.setenv("SLOSERVE_DATA", str(data))
    assert read_trace("conv.csv").name == read_trace("conv").name == "conv"
    with pytest.raises(ConfigError, match=f"^no trace cov: not in {here}, nor in SLOSERVE_DATA={data}$"):
        read_trace("cov")
    write(here / "conv.csv", "arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    assert len(read_trace("conv.csv").arrival_s) == 1  # a file at the path itself is first
