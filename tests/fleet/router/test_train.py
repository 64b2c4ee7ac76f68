"""A short training: deterministic, written where it was asked, judged beside simpler rules."""

import json
import sys
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.router.train_command import train_and_report
from sloserve.fleet.router.training_settings import TrainingSettings

ROUTER = """
models: [small, large]
quality: {hard: {small: 0.5, large: 1.0}, easy: {small: 0.9, large: 1.0}}
token_ms: 40
system:
  speed: {small: {base_ms: 5, seq_ms: 1}, large: {base_ms: 25, seq_ms: 5}}
  devices: 2
  output_tokens: 32
  rates: [0.5, 16]
"""


@pytest.mark.slow
def test_a_short_training_beats_either_model_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out, plots = tmp_path / "router.yaml", tmp_path / "p.safetensors", tmp_path / "plots"
    file.write_text(ROUTER)
    train_and_report(file, out, TrainingSettings(steps=12_000), evaluate=None, plots=plots)
    first = out.read_bytes()
    printed = capsys.readouterr().out
    changing = {cells[0]: cells[-1] for line in printed.splitlines() if len(cells := line.split()) == 10}
    assert float(changing["policy"]) > max(float(changing["small"]), float(changing["large"])) + 0.02
    assert (plots / "rates.png").stat().st_size > 10_000 and (plots / "changing.png").stat().st_size > 10_000
    train_and_report(file, out, TrainingSettings(steps=12_000), evaluate=None, plots=None)
    assert out.read_bytes() == first
    again = capsys.readouterr().out
    train_and_report(file, tmp_path / "none", TrainingSettings(steps=1), evaluate=out, plots=None)
    assert capsys.readouterr().out in again and not (tmp_path / "none").exists()
    train_and_report(file, tmp_path / "none", TrainingSettings(steps=1), evaluate=out, plots=None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert {name: f"{quality:.3f}" for name, quality in found["changing"].items()} == {
        name: changing[name] for name in found["changing"]
    }
    assert len(found["rates_per_s"]) == len(found["quality"]["greedy"]) and set(found["windows"]) == set(changing) - {
        "rule"
    }


def test_a_folder_that_is_not_there_is_said_before_the_training(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(ROUTER)
    with pytest.raises(ConfigError, match="--out: no folder"):
        train_and_report(file, tmp_path / "no" / "p", TrainingSettings(steps=10), evaluate=None, plots=None)


def test_training_without_torch_names_the_extra_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(ROUTER)
    for name in ("train", "learner"):
        monkeypatch.delitem(sys.modules, f"sloserve.fleet.router.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ConfigError, match=r"training needs torch .*; it comes with vLLM, or pip install -e '\.\[router\]'"
    ):
        train_and_report(file, tmp_path / "p", TrainingSettings(steps=10), evaluate=None, plots=None)
