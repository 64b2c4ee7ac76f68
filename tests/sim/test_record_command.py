"""``sloserve record``: what a recording holds, and a trace that ``simulate`` reads."""

import json
from pathlib import Path

import pytest

from sloserve.cli import root
from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import (
    FORMAT,
    FRONT_END,
    SATURATED,
    TENANT_LIMIT,
    Arrived,
    Event,
    FirstToken,
    RefusedRequest,
    RequestEnded,
    SegmentHead,
    Stepped,
)
from sloserve.engine.recording.segments import SegmentWriter
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment_options import SimulateOptions

SETTINGS = PluginSettings().as_config()
HEAD = SegmentHead(FORMAT, 100.0, {"kv_blocks": 9}, SETTINGS, "edf", None, 64, [])
A, B, C = b"a" * 8, b"b" * 8, b"c" * 8


def arrived(number: int, at_s: float, class_id: int, ttft_s: float | None, prompt: bytes, tenant: int = 0) -> Arrived:
    return Arrived(
        number, at_s, class_id, ttft_s, None, None, None, 200, 64, None, 0, tenant, 0, 0, None, None, False, prompt
    )


EVENTS: list[Event] = [
    arrived(1, 100.0, 1, 0.5, A + B, tenant=7),
    arrived(2, 101.0, 1, 0.2, A + C),
    arrived(3, 101.5, 2, None, b""),
    arrived(4, 102.0, 1, 0.5, A),
    FirstToken(1, 100.4),
    FirstToken(2, 101.6),
    FirstToken(3, 102.0),
    Stepped(101.0, 101.02, 9, 1, 3, 100, 81, 0, 4, 0, 5, 0),
    RequestEnded(1, 100.9, True, 6, 0, b""),
    RequestEnded(2, 102.1, True, 4, 1, b""),
    RequestEnded(3, 103.0, True, 2, 0, b""),
]


API_HEAD = SegmentHead(FORMAT, 100.0, {}, SETTINGS, "edf", None, 0, [], FRONT_END)


def refused(reason: str) -> RefusedRequest:
    return RefusedRequest(101.0, reason, None, None, None, None, None, None, None, None, 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, events in (("early-1-rank0", EVENTS[:1]), ("late-2-rank0", EVENTS)):
        writer = SegmentWriter(tmp_path / "recordings", name, 1 << 20)
        writer.write(events, lambda: HEAD)
        writer.close()
    writer = SegmentWriter(tmp_path / "recordings", "late-2-api0", 1 << 20)
    writer.write([refused(TENANT_LIMIT), refused(SATURATED), refused(TENANT_LIMIT)], lambda: API_HEAD)
    writer.close()
    return tmp_path / "recordings"


def run(*argv: object) -> None:
    root.app([str(one) for one in argv], standalone_mode=False)


@pytest.fixture(autouse=True)
def commands() -> None:
    root.import_commands()


def test_the_latest_recording_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("record", "show", "--folder", folder)
    out = capsys.readouterr().out
    assert "recording late-2-rank0\n" in out and "others: early-1-rank0" in out
    assert "in time: interactive 0.5\n" in out and "requests: 4\n" in out
    assert "refused: tenant-limit 2, rejected-saturated 1\n" in out and "lost events: 0\n" in out
    run("record", "show", "early-1-rank0", "--folder", folder, "--json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["requests"], shown["ended"], shown["in_time"]) == (1, 0, {})
    with pytest.raises(ConfigError, match="'nope': is not one of early-1-rank0, late-2-rank0"):
        run("record", "show", "nope", "--folder", folder)


def test_a_recording_becomes_a_trace_with_its_targets_and_shared_prompts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("record", "export", "--folder", folder, "--out", tmp_path / "out")
    said = capsys.readouterr().out
    assert "wrote 3 requests" in said and "1 unfinished or without output are left out" in said
    assert "--trace-block-tokens 64" in said
    options = SimulateOptions(
        policy="edf",
        engine="model",
        profile="h100-llama3-8b",
        trace=tmp_path / "out" / "trace.csv",
        trace_block_tokens=64,
        slo=str(tmp_path / "out" / "slo.yaml"),
        rate_scale=1.0,
        max_requests=3,
    )
    requests = build_experiment(options).requests(0)
    assert [one.arrival_s for one in requests] == [0.0, 1.0, 1.5]
    assert [one.output_tokens for one in requests] == [6, 4, 2]
    assert [one.slo.targets.ttft_s for one in requests] == [0.5, 0.2, None]
    assert [one.prefix_ids for one in requests] == [(0, 1), (0, 2), ()]
    assert [one.tenant for one in requests] == [f"{7:016x}", "", ""]
    with pytest.raises(ConfigError, match="cannot be written: File exists; give another --out"):
        run("record", "export", "--folder", folder, "--out", tmp_path / "out")
    with pytest.raises(ConfigError, match="no request that ended with an output"):
        run("record", "export", "early-1-rank0", "--folder", folder, "--out", tmp_path / "none")
