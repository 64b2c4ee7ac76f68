"""Recorded traffic as an experiment, and advice on it."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sloserve.cli import root
from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import FORMAT, HASH_BYTES, Arrived, Event, RequestEnded, SegmentHead
from sloserve.engine.recording.reading import find_recording
from sloserve.engine.recording.segments import SegmentWriter
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.recorded_experiment import experiment_of

SIZES = {"kv_blocks": 900, "block_size": 32, "max_num_seqs": 7, "max_num_batched_tokens": 1024, "max_model_len": 4096}
HEAD = SegmentHead(FORMAT, 100.0, SIZES, PluginSettings().as_config(), "edf", None, 64, [])
OPTIONS = SimulateOptions(policy="stock", engine="model", rate_scale=1.0, max_requests=40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    events: list[Event] = []
    for number in range(1, 121):
        at_s, prompt = 100.0 + 0.02 * number, bytes([number % 5]) * HASH_BYTES
        times = at_s, 1, 1.0 + number % 2, None, None, None
        events.append(Arrived(number, *times, 400 + number % 30, 64, None, 0, 0, 0, 0, None, None, False, prompt))
        events.append(RequestEnded(number, at_s + 1.0, True, 3 + number % 4, 0, b""))
    writer = SegmentWriter(tmp_path / "recordings", "one-1-rank0", 1 << 20)
    writer.write(events, lambda: HEAD)
    writer.close()
    return tmp_path / "recordings"


def test_the_experiment_has_the_recorded_requests_and_engine(folder: Path) -> None:
    name, recording = find_recording(folder, "latest")
    assert name == "one-1-rank0"
    experiment = experiment_of(recording, name, OPTIONS)
    assert (experiment.workload.name, experiment.workload.description) == (
        "recording one-1-rank0",
        "recording one-1-rank0, 120 requests",
    )
    engine = experiment.engine
    assert (engine.kv_blocks, engine.max_num_seqs, engine.max_model_len) == (1800, 7, 4096)
    assert engine.max_num_batched_tokens == 1024 and engine.enable_prefix_caching
    requests = experiment.requests(0)
    assert len(requests) == 40 and {one.slo.targets.ttft_s for one in requests} == {1.0, 2.0}
    assert {len(one.prefix_ids) for one in requests} == {1}
    given = experiment_of(recording, name, replace(OPTIONS, max_num_seqs=9))
    assert given.engine.max_num_seqs == 9 and given.engine.kv_blocks == 1800


def test_other_traffic_beside_a_recording_is_refused(folder: Path) -> None:
    name, recording = find_recording(folder, None)
    for wrong, shown in (({"workload": "voice"}, "--workload voice"), ({"slo": "default"}, "--slo default")):
        with pytest.raises(ConfigError, match=f"{shown}: is given beside --recording"):
            experiment_of(recording, name, replace(OPTIONS, **wrong))  # type: ignore[arg-type]


@pytest.mark.slow
def test_advice_on_a_recording_as_it_is_typed(folder: Path, tmp_path: Path) -> None:
    root.import_commands()
    flags = ["--recording", "latest", "--record-folder", str(folder), "--tune", "max_num_seqs=64", "--policy", "edf"]
    flags += ["--admission", "none", "--seeds", "3", "--max-requests", "30", "--budget", "30", "--no-confirm"]
    out = tmp_path / "advice.yaml"
    done = CliRunner().invoke(root.app, ["advise", *flags, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0 and "recording one-1-rank0, 120 requests" in done.output
    assert "recording one-1-rank0" in out.read_text()
