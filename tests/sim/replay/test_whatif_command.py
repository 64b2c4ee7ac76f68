"""``sloserve whatif``: the replay's own error first, then what else might have run."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from sloserve.cli import root
from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import Arrived, RefusedRequest
from sloserve.engine.recording.reading import Recording, recordings
from sloserve.sim.replay.engine_of import fitted_steps
from sloserve.sim.replay.joined import beside, joined
from sloserve.sim.replay.whatif import Question, answer
from sloserve.sim.workloads.named_slos import find_slos
from sloserve.wire.held import Held
from tests.sim.replay.played import CLASSES, EPOCH_S, played, workload, written


@pytest.fixture(autouse=True)
def commands() -> None:
    root.import_commands()


@pytest.fixture(scope="module")
def recording() -> Recording:
    return played(workload(150, rps=17.0))[0]


def run(*argv: object) -> int:
    return int(root.app([str(one) for one in argv], standalone_mode=False) or 0)


@pytest.mark.slow
def test_others_are_compared_with_what_ran(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(recording, tmp_path)
    assert run("whatif", "--folder", folder, "--policy", "edf,stock", "--seeds", 2, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trusted"] and abs(found["error"]["points"]) <= 3.0
    edf, stock = found["others"]
    assert (edf["run"], stock["run"]) == ("edf", "stock")
    assert edf["gain_points"][1] > 0.0  # fcfs ran, and was late
    assert stock["gain_points"] == [0.0, 0.0, 0.0]  # fcfs is stock's order
    assert edf["output_tokens"] == found["recorded"]["output_tokens"]
    assert run("whatif", "--folder", folder, "--policy", "edf", "--seeds", 1) == 0
    text = capsys.readouterr().out
    assert "fcfs, replayed" in text and "error of the replay of what ran" in text and "not modelled" in text


@pytest.mark.slow
def test_a_replay_that_is_far_off_is_not_trusted(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here every first token was recorded two seconds late, which no step accounts for."""
    late = replace(recording, first_token_s={number: at_s + 2.0 for number, at_s in recording.first_token_s.items()})
    folder = written(late, tmp_path)
    assert run("whatif", "--folder", folder, "--policy", "edf", "--seeds", 1) == 3
    text = capsys.readouterr().out
    assert "not to be trusted" in text and "\n  edf " not in text
    assert run("whatif", "--folder", folder, "--policy", "edf", "--seeds", 1, "--anyway") == 3
    assert "\n  edf " in capsys.readouterr().out


@pytest.mark.slow
def test_flags_and_targets_can_be_changed(recording: Recording, tmp_path: Path) -> None:
    base = answer([recording], Question(options=(("max_num_seqs", 32),), seeds=1))
    (wider,) = base.rows
    assert wider.name == "fcfs@max_num_seqs=32" and wider.gain is not None and wider.gain.low > 0.0
    file = tmp_path / "slo.yaml"
    lax = {"interactive": {"rank": 1, "ttft_ms": 60_000}, "batch": {"rank": 2}}
    file.write_text(yaml.safe_dump({"classes": lax, "by_task": {}, "default": "interactive"}), encoding="utf-8")
    found = answer([recording], Question(slos=find_slos(str(file)).table, seeds=1))
    (same,) = found.rows
    assert same.name == "fcfs" and same.in_time is not None and same.in_time.value == 100.0
    assert found.error.is_trusted  # judged by the recorded targets


@pytest.mark.slow
def test_more_replicas_would_have_shortened_the_wait_at_a_gateway() -> None:
    """A gateway held what the engine had no place for: its recording shows short queues and targets that had shrunk.

    Without the time that requests were held, a second replica would seem to gain nothing.
    """
    whole = played(workload(150, rps=17.0))[0]
    held = replace(whole, arrived={number: _held(one, whole) for number, one in whole.arrived.items()})
    question = Question(policies=("fcfs",), replicas=(2,), seeds=1)
    (expected,), (found,) = answer([whole], question).rows, answer([held], question).rows
    assert expected.in_time is not None and found.in_time is not None
    assert expected.in_time.value > 90.0
    assert found.in_time.value == pytest.approx(expected.in_time.value, abs=2.0)
    assert answer([held], question).error.is_trusted
    unknown = {number: msgspec.structs.replace(one, held=None) for number, one in held.arrived.items()}
    (unaware,) = answer([replace(held, arrived=unknown)], question, anyway=True).rows
    assert unaware.in_time is not None and unaware.in_time.value < expected.in_time.value - 10.0


def _held(one: Arrived, recording: Recording) -> Arrived:
    """Return a request as its engine knows it if a gateway held it until the engine had a place."""
    begun_s = recording.admitted[one.number].at_s
    held_s = begun_s - one.at_s
    left = {name: getattr(one, name) and max(getattr(one, name) - held_s, 0.001) for name in ("ttft_s", "e2e_s")}
    held = Held(held_s, one.ttft_s, one.e2e_s)
    return msgspec.structs.replace(one, at_s=begun_s, reached_s=begun_s, held=held, **left)


@pytest.mark.slow
def test_refusals_that_several_recordings_state_are_counted_once() -> None:
    one, other = (played(workload(20, rps=12.0, seed=seed))[0] for seed in (1, 2))
    same = RefusedRequest(EPOCH_S + 1.0, "rejected-saturated", 0, 0.5, None, None, None, 9, None, None, 0)
    own = msgspec.structs.replace(same, at_s=EPOCH_S + 0.5)
    found = joined([replace(one, refused=[same]), replace(other, refused=[own, same])])
    assert found.refused == [own, same]


@pytest.mark.slow
def test_recordings_of_several_engines_are_joined_to_try_other_numbers() -> None:
    """Two engines with the same traffic each: one replica for all of it is late, three are not."""
    one = played(workload(100, rps=12.0, seed=1))[0]
    other = played(workload(100, rps=12.0, seed=2))[0]
    both = joined([one, other])
    assert len(both.arrived) == 200 and len(both.ended) == 200
    assert list(both.arrived.values()) == sorted(both.arrived.values(), key=lambda request: request.at_s)
    fitted = fitted_steps(one, other)
    assert fitted.end_s.size == len(one.steps) + len(other.steps) and (np.diff(fitted.end_s) >= 0.0).all()
    found = answer([one, other], Question(replicas=(1, 3), seeds=1))
    fewer, more = found.rows
    assert (fewer.replicas, more.replicas) == (1, 3) and found.replicas == 2
    assert fewer.gain is not None and more.gain is not None
    assert fewer.gain.high < 0.0 <= more.gain.value


@pytest.mark.slow
def test_the_plot_is_written(recording: Recording, tmp_path: Path) -> None:
    folder, plot = written(recording, tmp_path), tmp_path / "whatif.png"
    assert run("whatif", "--folder", folder, "--policy", "edf", "--seeds", 1, "--plot", plot) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="cannot be written"):
        run("whatif", "--folder", folder, "--policy", "edf", "--seeds", 1, "--plot", tmp_path / "none" / "a.png")


@pytest.mark.slow
@pytest.mark.whole
def test_the_answer_does_not_depend_on_the_number_of_processes(recording: Recording) -> None:
    question = Question(policies=("edf",), seeds=2)
    alone, shared = (answer([recording], question, jobs=jobs).figures() for jobs in (1, 2))
    assert alone == shared


@pytest.mark.slow
def test_mistakes_are_said(recording: Recording, tmp_path: Path) -> None:
    folder = written(recording, tmp_path)
    for flags, said in [
        (("--last", "10"), "--last: '10' is not a time as 90s"),
        (("--last", "-1m"), "--last: -60.0 s is not a time above 0"),
        (("--set", "max_num_seqs"), "is not a flag and its value"),
        (("--set", "kv=3"), "engine option 'kv'"),
        (("--replicas", "0"), "--replicas: 0 is not a whole number >= 1"),
        (("--replicas", "x"), "--replicas: 'x' is not a whole number, nor"),
        (("--engine", "x"), "--engine: 'x' is not one of"),
        (("--seeds", "0"), "--seeds: 0 is not a whole number >= 1"),
        (("--policy", "fcfs"), "policy fcfs is what ran"),
        (("--policy", "edf:length=oracle"), "sees the lengths of outputs"),
    ]:
        with pytest.raises(ConfigError, match=said):
            run("whatif", "--folder", folder, *flags)
    with pytest.raises(ConfigError, match="there is no recording"):
        run("whatif", "--folder", tmp_path / "none")


def test_recordings_beside_one_are_of_the_same_engine_and_time(recording: Recording, tmp_path: Path) -> None:
    """One that holds nothing yet, of a server that has just begun, is no mistake."""
    for name in ("run-1-rank0", "run-1-rank1"):
        written(recording, tmp_path, name)
    (tmp_path / "run-2-rank0-000000.slorec").touch()
    assert len(beside(recordings(tmp_path), recording)) == 2


@pytest.mark.slow
def test_classes_without_targets_cannot_be_judged() -> None:
    recording, _ = played(workload(60, rps=10.0))
    for number, request in recording.arrived.items():
        recording.arrived[number] = msgspec.structs.replace(request, ttft_s=None, tpot_s=None, e2e_s=None)
    found = answer([recording], Question(policies=("edf",), seeds=1))
    assert found.error.points is None and not found.error.is_trusted and not found.rows
    assert CLASSES.names == ("interactive", "batch")
