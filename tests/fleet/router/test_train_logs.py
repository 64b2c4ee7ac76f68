"""What is learned from a log of choices. The module that trains loads torch."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.router.choice_records import VERSION, ChoiceLine, LoggedChoices, RunLine
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.logs_command import train_from_logs
from sloserve.fleet.router.network import Network, load_network
from sloserve.fleet.router.train_logs import discounts_of, require_enough, split, train
from sloserve.fleet.router.training_settings import TrainingSettings
from tests.fleet.router.test_off_policy import INPUTS, logged

pytestmark = pytest.mark.slow

ROUTER = """
models: [small, large]
quality: {hard: {small: 0.5, large: 1.0}}
"""


def test_what_comes_after_the_last_choice_of_a_run_is_not_known() -> None:
    choices = replace(logged(6, 1.0, 1.0), run=np.array([0, 0, 0, 1, 1, 1]), at_s=np.arange(6) * 0.5)
    found = discounts_of(choices, TrainingSettings())
    np.testing.assert_allclose(found, np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0]) * np.exp(-0.5 / 2.0), rtol=1e-6)


def test_each_run_is_learned_from_first_and_estimated_on_last() -> None:
    choices = replace(logged(1000, 0.9, 0.7), run=np.repeat([0, 1], [400, 600]), at_s=np.arange(1000.0))
    learned, held_out = split(choices)
    assert (learned.run.size, held_out.run.size) == (700, 300)
    assert held_out.at_s[:1] == 280.0 and held_out.at_s[-1] == 999.0
    with pytest.raises(ConfigError, match="are too few; give logs with about 3333 or more"):
        require_enough(*split(logged(3000, 0.9, 0.7)))


def unexplored(number: int) -> LoggedChoices:
    """A log of greedy alone."""
    return replace(logged(number, 0.9, 0.4, explore=0.0), propensity=np.ones(number))


def test_runs_without_exploration_are_learned_from_but_not_estimated_from() -> None:
    """Conversations and requests with one model in time have the probability 1 in each run."""
    both = joined(unexplored(100), logged(100, 0.9, 0.4))
    fixed = both.propensity < 1.0
    learned, held_out = split(replace(both, fixed=fixed, propensity=np.where(fixed, 1.0, both.propensity)))
    assert set(learned.run) == {0, 1} and set(held_out.run) == {1} and held_out.run.size == 30
    with pytest.raises(ConfigError, match="no run of the logs has exploration.*set `explore` above 0"):
        split(unexplored(5000))


def joined(first: LoggedChoices, second: LoggedChoices) -> LoggedChoices:
    columns = {
        name: np.concatenate([getattr(one, name) for one in (first, second)])
        for name in LoggedChoices.__slots__
        if name != "lines_left_out"
    }
    columns["run"][first.run.size :] += 1
    return LoggedChoices(**columns)


def test_sparse_requests_are_learned_from() -> None:
    """They come 1,000 times as far apart as each may take: what follows counts for nothing, but is known."""
    choices = replace(logged(100, 0.9, 0.7), at_s=np.arange(100) * 1000.0)
    found = discounts_of(choices, TrainingSettings())
    assert (found[:-1] > 0.0).all() and found[:-1].max() < 1e-20 and found[-1] == 0.0
    train(choices, ("small", "large"), TrainingSettings(steps=16 * 2, hidden=8))


def test_runs_of_one_choice_each_are_refused() -> None:
    choices = replace(logged(5000, 0.9, 0.7), run=np.arange(5000))
    with pytest.raises(ConfigError, match="no choice has a known outcome and a next choice"):
        train(choices, ("small", "large"), TrainingSettings(steps=16, hidden=8))
    with pytest.raises(ConfigError, match="are too few"):
        require_enough(*split(choices))


def written(path: Path, choices: LoggedChoices) -> Path:
    lines: list[msgspec.Struct] = [RunLine(VERSION, "a", Schema(2).as_text(), ["small", "large"], "greedy", 0.2)]
    for i in range(choices.run.size):
        lines.append(
            ChoiceLine(
                n=i,
                at_s=float(choices.at_s[i]),
                task=None,
                weight=1.0,
                x=choices.states[i].tolist(),
                allowed=[0, 1],
                best=1,
                chosen=int(choices.chosen[i]),
                why="best",
                p=float(choices.propensity[i]),
                quality=1.0,
                limit_s=1.0,
                took_s=1.0,
                in_time=bool(choices.reward[i]),
                tokens=1,
            )
        )
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


SHORT = TrainingSettings(steps=16 * 400, hidden=32, learning_rate=1e-3)


def test_a_better_policy_is_learned_and_written_with_its_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The large model is late so often that the small one earns more; greedy cannot know."""
    file, out = tmp_path / "router.yaml", tmp_path / "p.safetensors"
    file.write_text(ROUTER)
    log = written(tmp_path / "log.jsonl", logged(3400, 0.9, 0.4))
    train_from_logs(file, out, SHORT, [log])
    network = load_network(out, Schema(2).as_text(), ("small", "large"))
    values = network.values(np.random.default_rng(1).random((100, INPUTS)))
    assert (values[:, 0] > values[:, 1]).mean() > 0.95
    assert network.about["over_greedy"].startswith("+0.") and network.about["choices"] == "2380"
    assert "the policy minus greedy" in capsys.readouterr().out
    train_from_logs(file, tmp_path / "q.safetensors", SHORT, [log])
    assert (tmp_path / "q.safetensors").read_bytes() == out.read_bytes()


def test_a_policy_that_may_be_worse_than_greedy_is_not_written(tmp_path: Path) -> None:
    """Two models are worth the same. A policy that is already there is kept."""
    file, out = tmp_path / "router.yaml", tmp_path / "p.safetensors"
    file.write_text(ROUTER)
    log = written(tmp_path / "log.jsonl", logged(3400, 0.7, 0.7))
    out.write_text("a good policy")
    with pytest.raises(ConfigError, match="is not written: the policy may be worse than greedy"):
        train_from_logs(file, out, TrainingSettings(steps=16 * 200), [log])
    assert out.read_text() == "a good policy"


@pytest.mark.parametrize(
    ("log", "scale", "message"),
    [
        (unexplored(3400), 1.0, "no run of the logs has exploration"),
        (logged(3400, 0.9, 0.4, explore=0.002), 1.0, "show what one of them brings, and 20 are needed"),
        (logged(3400, 0.9, 0.4), np.nan, "not finite in half precision"),
        (logged(3400, 0.9, 0.4), 1e9, "not finite in half precision"),
    ],
)
def test_a_policy_of_which_the_log_says_nothing_or_that_is_not_finite_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: LoggedChoices, scale: float, message: str
) -> None:
    """The policy takes the small model always, which the log hardly ever has."""
    file, out = tmp_path / "router.yaml", tmp_path / "p.safetensors"
    file.write_text(ROUTER)
    out.write_text("a good policy")
    zeros = [np.zeros(shape, np.float32) for shape in ((INPUTS, 2), 2, (2, 2), 2, (2, 2))]
    zeros[1] += np.float32(scale)
    about = {"schema": Schema(2).as_text(), "models": "small,large"}
    layers = ((zeros[0], zeros[1]), (zeros[2], zeros[3]), (zeros[4], np.array([1.0, 0.0], np.float32)))
    monkeypatch.setattr("sloserve.fleet.router.train_logs.train", lambda *_: Network(layers, about))
    with pytest.raises(ConfigError, match=message):
        train_from_logs(file, out, SHORT, [written(tmp_path / "log.jsonl", log)])
    assert out.read_text() == "a good policy"
