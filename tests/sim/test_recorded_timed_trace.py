"""A recording as a timed trace: rows as AIPerf documents them, which vLLM's own class and our reader load."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from sloserve.cli import root
from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import FORMAT, HASH_BYTES, Arrived, Event, RequestEnded, SegmentHead
from sloserve.engine.recording.segments import SegmentWriter
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment_options import SimulateOptions

STRETCH = 64
HEAD = SegmentHead(FORMAT, 100.0, {}, PluginSettings().as_config(), "edf", None, STRETCH, [])
PROMPTS = {1: (130, "ab"), 2: (128, "ac"), 3: (20, ""), 4: (64 * 5, "abd"), 5: (70, "a")}
"""Tokens of the prompts and their hashes: of whole stretches, and of fewer than there are in the fourth."""


def make_recording(folder: Path) -> None:
    """Write a recording of these prompts, of which the last has not ended."""
    events: list[Event] = []
    for number, (tokens, hashes) in PROMPTS.items():
        prompt = b"".join(one.encode() * HASH_BYTES for one in hashes)
        at_s = 100.0 + number / 4
        events.append(
            Arrived(number, at_s, 1, 0.5, None, None, None, tokens, 64, None, 0, 0, 0, 0, None, None, False, prompt)
        )
        if number != 5:
            events.append(RequestEnded(number, at_s + 1.0, True, 3 * number, 0, b""))
    writer = SegmentWriter(folder, "one-1-rank0", 1 << 20)
    writer.write(events, lambda: HEAD)
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_recording(tmp_path / "recordings")
    return tmp_path / "recordings"


def exported(folder: Path, form: str, capsys: pytest.CaptureFixture[str]) -> tuple[Path, list[str]]:
    """Return the written file, and the command that is printed for it."""
    root.import_commands()
    out = folder.parent / form
    argv = ["record", "export", "--format", form, "--folder", str(folder), "--out", str(out)]
    root.app(argv, standalone_mode=False)
    wrote, command = capsys.readouterr().out.splitlines()
    assert wrote == f"wrote 4 requests to {out / 'trace.jsonl'}; 1 unfinished or without output are left out"
    return out / "trace.jsonl", shlex.split(command.removeprefix("try: "))


@pytest.mark.parametrize("form", ["aiperf", "vllm"])
def test_rows_have_the_documented_fields_and_a_hash_for_each_block(
    folder: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, command = exported(folder, form, capsys)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        assert set(row) == {"timestamp", "input_length", "output_length", "hash_ids"}
        assert all(isinstance(value, int) for key, value in row.items() if key != "hash_ids")
        assert len(row["hash_ids"]) == -(-row["input_length"] // STRETCH)
    assert [row["timestamp"] for row in rows] == [0, 250, 500, 750]
    assert [row["output_length"] for row in rows] == [3, 6, 9, 12]
    first, second, third, fourth = (row["hash_ids"] for row in rows)
    assert first[0] == second[0] == fourth[0] and first[1] == fourth[1] != second[1]
    own = [first[2], third[0], *fourth[2:]]
    assert len(set(own)) == len(own) and not set(own) & {*first[:2], *second}
    assert (
        command[command.index("--isl-block-size" if form == "aiperf" else "--timed-trace-chunk-hash-size") + 1] == "64"
    )
    assert str(path) in command


def test_our_own_reader_of_such_traces_reads_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = exported(folder, "aiperf", capsys)
    given = {"trace": path, "trace_block_tokens": STRETCH, "trace_format": "mooncake", "rate_scale": 1.0}
    options = SimulateOptions(policy="edf", engine="model", profile="h100-llama3-8b", max_requests=4, **given)
    requests = build_experiment(options).requests(0)
    assert [one.arrival_s for one in requests] == [0.0, 0.25, 0.5, 0.75]
    assert [(one.prompt_tokens, one.output_tokens) for one in requests] == [(130, 3), (128, 6), (20, 9), (320, 12)]


def test_a_recording_without_an_output_is_refused(folder: Path, tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "empty", "one-1-rank0", 1 << 20)
    writer.write([HEAD], lambda: HEAD)
    writer.close()
    argv = ["record", "export", "--format", "vllm", "--folder", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]
    with pytest.raises(ConfigError, match="no request that ended with an output"):
        root.app(argv, standalone_mode=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_s_own_class_loads_it_by_the_printed_flags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vllm.benchmarks.datasets.datasets import TimedTrace, add_dataset_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    path, command = exported(folder, "vllm", capsys)
    parser = FlexibleArgumentParser()
    add_dataset_parser(parser)
    args, _ = parser.parse_known_args(command[3:])
    assert (args.dataset_name, args.dataset_path, args.num_prompts) == ("timed_trace", str(path), 4)
    tokenizer = SimpleNamespace(get_vocab=lambda: {f"t{i}": i for i in range(5000)}, all_special_ids=[0])
    found = TimedTrace(**vars(args)).sample(tokenizer, args.num_prompts)
    assert [(one.prompt_len, one.expected_output_len) for one in found] == [
        (tokens, 3 * number) for number, (tokens, _) in PROMPTS.items() if number != 5
    ]
    assert [one.timestamp for one in found] == pytest.approx([0.0, 0.25, 0.5, 0.75])
    first, second, _, fourth = (one.prompt for one in found)
    assert first[:64] == second[:64] == fourth[:64] and first[:128] == fourth[:128] and first[64:128] != second[64:128]
