"""Learned lengths: what training makes, that its file is numbers that are checked, that serving needs no LightGBM."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError
from sloserve.estimator.length.accuracy import Predictions, accuracy
from sloserve.estimator.length.at_admission import LengthAtAdmission
from sloserve.estimator.length.examples import Examples, make_examples, read_examples
from sloserve.estimator.length.forest import MAX_DEPTH, forest_from_json
from sloserve.estimator.length.held_out import Gain, held_out, judge, without_gain
from sloserve.estimator.length.learned_length import LearnedLength, LengthModel, load_length_model
from sloserve.estimator.length.prompt_words import COLUMNS, PromptWords, both_ends, word_columns, words_of
from sloserve.estimator.length.remaining import KnownRequests
from sloserve.estimator.length.request_features import Features
from sloserve.estimator.length.training import LengthTrainingSettings, train

SMALL = LengthTrainingSettings(levels=(0.1, 0.5, 0.9), trees=40, learning_rate=0.15)
NO_CAP = 1 << 40


def examples(n: int = 1500, seed: int = 0, *, text: bool = False) -> Examples:
    """Lengths that follow the prompt's within a factor, and twice that for one of two tasks; or that follow a word."""
    rng = np.random.default_rng(seed)
    prompt_tokens = rng.integers(10, 400, n)
    task = ["chat" if one else "code" for one in rng.random(n) < 0.5]
    scale = np.where(np.array(task) == "code", 2.0, 1.0) * np.exp(0.2 * rng.standard_normal(n))
    lengths = np.maximum(prompt_tokens * scale, 1).astype(np.int64)
    if not text:
        return make_examples(lengths, task=task, prompt_tokens=prompt_tokens)
    long = rng.random(n) < 0.5
    lengths = np.where(long, 400, 20) + rng.integers(0, 5, n)
    prompt = [f"{'explain' if one else 'name'} item {i}" for i, one in enumerate(long)]
    return make_examples(lengths, prompt=prompt)


@pytest.fixture(scope="module")
def model() -> LengthModel:
    return train(examples(), SMALL)


@pytest.mark.slow
def test_the_arrays_predict_what_lightgbm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightgbm

    boosters = []
    original = lightgbm.train

    def keep(*args: Any) -> Any:
        boosters.append(original(*args))
        return boosters[-1]

    monkeypatch.setattr(lightgbm, "train", keep)
    data = examples()
    made = train(data, SMALL)
    rows = made.features.matrix(data.requests)
    rows += np.random.default_rng(1).normal(0, 30, rows.shape)
    final = boosters[: made.levels.size]  # the others are those of the calibration
    shift = made.forest.threshold[made.forest.roots[:, -1]]
    expected = np.stack([booster.predict(rows, num_threads=1) for booster in final], axis=1) + shift
    np.testing.assert_allclose(made.forest.predict(rows), expected, rtol=1e-9)
    np.testing.assert_allclose(made.forest.predict(rows[:1]), expected[:1], rtol=1e-9)


@pytest.mark.slow
def test_it_learns_from_prompt_and_task_and_is_calibrated(model: LengthModel) -> None:
    found = judge(LearnedLength(model), examples(seed=1))
    assert found.within_25 > 0.6
    assert found.cover_90 == pytest.approx(0.9, abs=0.04) and found.cover_50 == pytest.approx(0.5, abs=0.06)


@pytest.mark.slow
def test_it_learns_from_words_if_it_may() -> None:
    data, fresh = examples(300, text=True), examples(100, seed=1, text=True)
    assert judge(LearnedLength(train(data, SMALL)), fresh).within_25 > 0.95
    blind = LengthTrainingSettings(levels=SMALL.levels, trees=SMALL.trees, learning_rate=0.15, text=False)
    assert judge(LearnedLength(train(data, blind)), fresh).within_25 < 0.7


@pytest.mark.slow
def test_the_report_compares_with_predictors_that_learn_on_line() -> None:
    (split,) = held_out(examples(), SMALL, share=0.2, seeds=1)
    by_name = split.accuracy
    assert by_name["learned"].requests == 300
    assert by_name["learned"].pinball_tokens < 0.5 * by_name["empirical"].pinball_tokens
    assert split.losses["learned"].mean() == pytest.approx(by_name["learned"].pinball_tokens)


@pytest.mark.slow
def test_what_has_arrivals_is_judged_on_its_latest_requests() -> None:
    data = examples(800)
    data = Examples(replace(data.requests, arrival_s=np.arange(800, 0, -1.0)), data.lengths, data.tasks)
    first, second = held_out(data, SMALL, share=0.25, seeds=2)
    assert sorted(first.places.tolist()) == list(range(200)) and sorted(second.places.tolist()) == list(range(200, 400))


@pytest.mark.slow
def test_quantiles_cover_what_they_should_on_new_text() -> None:
    """Boosted trees alone cover 0.85 here: they learn words by heart that say nothing."""
    words = [f"w{i}" for i in range(300)]
    covered = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        prompt = [" ".join(rng.choice(words, 12)) for _ in range(1600)]
        lengths = np.maximum(np.exp(4.0 + rng.standard_normal(1600)), 1).astype(np.int64)
        data = make_examples(lengths, prompt=prompt)
        model = train(data.take(np.arange(600)), SMALL)
        covered.append(judge(LearnedLength(model), data.take(np.arange(600, 1600))).cover_90)
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)


def test_a_task_gains_where_its_interval_says_so() -> None:
    every, few = Gain(None, 500, -0.1, 0.05), Gain("few", 8, 0.3, 0.4)
    found = [every, Gain("sure", 200, -0.2, 0.1), Gain("unsure", 292, -0.05, 0.06), few]
    assert without_gain(found) == {"unsure"}
    assert without_gain([Gain(None, 500, -0.1, 0.2), *found[1:]]) == {"unsure", "few"}


@pytest.mark.slow
def test_a_class_without_gain_has_no_prediction(model: LengthModel, tmp_path: Path) -> None:
    replace(model, without_gain=frozenset({"chat"})).save(tmp_path / "model.json")
    lengths = LengthAtAdmission(tmp_path / "model.json", ("chat", "code"))
    assert lengths.quantiles("chat", arrival_s=0.0, prompt_tokens=50) is None
    found = lengths.quantiles("code", arrival_s=0.0, prompt_tokens=50)
    assert found is not None and found == sorted(found) and len(found) == 5


@pytest.mark.slow
def test_training_is_deterministic(model: LengthModel) -> None:
    again = train(examples(), SMALL)
    assert again.forest.as_json() == model.forest.as_json()


@pytest.mark.slow
def test_a_model_survives_its_file(model: LengthModel, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model.save(path)
    asked = examples(50, seed=2).requests
    np.testing.assert_array_equal(load_length_model(path).quantiles(asked), model.quantiles(asked))


@pytest.mark.slow
def test_predicting_imports_no_learner(model: LengthModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.json")
    code = (
        "import sys; from pathlib import Path; from sloserve.estimator.length.learned_length import load_length_model;"
        "load_length_model(Path(sys.argv[1])); print('lightgbm' in sys.modules, 'scipy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.json")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["False", "False"]


def broken(**changes: Any) -> Any:
    def change(fields: dict[str, Any]) -> None:
        for name, value in changes.items():
            holder = fields["forest"] if name in fields["forest"] else fields
            old = holder[name]
            holder[name] = value(old) if callable(value) else value

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (broken(format="other"), "format"),
        (broken(levels=[0.5, 0.1, 0.9]), "levels"),
        (broken(levels=[0.1, float("nan"), 0.9]), "levels"),
        (broken(words={"columns": [0]}), "rarity"),
        (broken(words={"columns": [1, 0], "rarity": [1, 1], "weights": [[0, 0]] * 2, "bias": [0, 0]}), "ascend"),
        (broken(words={"columns": [10**6], "rarity": [1], "weights": [[0, 0]], "bias": [0, 0]}), "ascend"),
        (broken(words={"columns": [0.5], "rarity": [1], "weights": [[0, 0]], "bias": [0, 0]}), "whole numbers"),
        (broken(words={"columns": [0], "rarity": [0], "weights": [[0, 0]], "bias": [0, 0]}), "above 0"),
        (broken(words={"columns": [0], "rarity": [1], "weights": [[0, 1e999]], "bias": [0, 0]}), "finite"),
        (broken(words={"columns": [0], "rarity": [1, 1], "weights": [[0, 0]], "bias": [0, 0]}), "rarities"),
        (broken(without_gain="chat"), "without_gain"),
        (broken(without_gain=[1]), "without_gain"),
        (broken(medians=[1.0]), "medians"),
        (broken(medians=lambda old: [float("inf")] * len(old)), "medians"),
        (broken(tasks={"a": "b"}), "could not convert"),
        (broken(tasks={"a": [1.0]}), "tasks"),
        (broken(left=lambda old: [0] * len(old)), "left"),
        (broken(right=lambda old: [10**6] * len(old)), "right"),
        (broken(right=lambda old: [0.5] * len(old)), "right"),
        (broken(feature=lambda old: [99] * len(old)), "feature"),
        (broken(feature=lambda old: old[:-1]), "nodes"),
        (broken(threshold=lambda old: [float("nan"), *old[1:]]), "threshold"),
        (broken(threshold=lambda old: ["x", *old[1:]]), "threshold"),
        (broken(roots=[[-1]] * 3), "roots"),
        (broken(roots=[[0], [0]]), "roots"),
        (broken(roots=[[0] * 10_000] * 3), "roots: 30000 trees"),
        (broken(forest={}), "feature"),
    ],
)
def test_a_malformed_model_is_refused(change: Any, message: str, model: LengthModel, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model.save(path)
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=f"is not a length model: .*{message}"):
        load_length_model(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\x80\x04.", b"[" * 100_000, b"null"])
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not a length model"):
        load_length_model(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_length_model(tmp_path / "absent")


@pytest.mark.slow
def test_what_is_not_known_at_admission_is_not_needed(model: LengthModel) -> None:
    predictor = LearnedLength(model)
    none = np.zeros(2, np.int64)
    left = predictor.rest(KnownRequests(class_id=none, output_tokens=none, max_tokens=np.array([NO_CAP, 5]))).mean()
    assert 20 < left[0] < 800 and left[1] == pytest.approx(5, abs=0.05)


@pytest.mark.slow
def test_a_class_is_a_task_by_its_name(model: LengthModel) -> None:
    asked = KnownRequests(
        class_id=np.array([0, 1, 2]),
        output_tokens=np.zeros(3, np.int64),
        max_tokens=np.full(3, NO_CAP),
        prompt_tokens=np.full(3, 200),
    )
    chat, code, unknown = LearnedLength(model, ("chat", "code")).rest(asked).quantile(0.5)
    assert code > 1.5 * chat and np.isfinite(unknown)


@pytest.mark.slow
def test_features_are_looked_at_once_per_request(model: LengthModel) -> None:
    data = examples(40, seed=3).requests
    columns = {name: getattr(data, name) for name in ("class_id", "max_tokens", "prompt_tokens", "task")}
    asked = KnownRequests(**columns, output_tokens=np.zeros(40, np.int64), seq=np.arange(40))
    predictor = LearnedLength(model)
    first = predictor.rest(asked).quantile(0.5)
    forgotten = KnownRequests(
        class_id=data.class_id, max_tokens=data.max_tokens, output_tokens=np.full(40, 3), seq=np.arange(40)
    )
    later = predictor.rest(forgotten).quantile(0.5)
    assert (np.abs(later + 3 - first) <= 0.15 * first + 5).all() and first.std() > 50


def test_a_long_prompt_costs_no_more_than_its_ends() -> None:
    none = np.zeros(0)
    features = Features(words=PromptWords(none.astype(np.int64), none, none.reshape(0, 2), np.zeros(2)))
    asked = KnownRequests(
        class_id=np.zeros(1, np.int64),
        output_tokens=np.zeros(1, np.int64),
        max_tokens=np.ones(1, np.int64),
        prompt=["word " * 1_000_000],
    )
    row = dict(zip(features.names, features.matrix(asked)[0], strict=True))
    assert row["chars"] == 5_000_000 and row["words"] < 2000


def test_words_that_training_did_not_see_change_nothing() -> None:
    columns = word_columns(words_of("Explain it"))
    words = PromptWords(columns, np.ones(3), np.array([[3.0, 0.3]] * 3), np.array([1.0, 0.5]))
    plain, templated, empty = words.figures([words_of(text) for text in ("explain IT", "explain it <|end|>", "")])
    assert plain.tolist() == pytest.approx([1 + 3 * 3**0.5, 0.5 + 0.3 * 3**0.5]) == templated.tolist()
    assert empty.tolist() == [1.0, 0.5] and columns.max() < COLUMNS


def test_scripts_without_spaces_have_words() -> None:
    assert words_of("Sag 你好吗 3x") == ["sag", "你", "好", "吗", "3x"]
    assert len(both_ends("ab" * 10**6)) < 5000 and both_ends("short") == "short"


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match="99 requests"):
        train(examples(99), SMALL)


@pytest.mark.parametrize(("share", "seeds"), [(0.0, 1), (1.0, 1), (0.2, 0)])
def test_impossible_splits_are_refused(share: float, seeds: int) -> None:
    with pytest.raises(ConfigError, match="held-out"):
        next(held_out(examples(), SMALL, share=share, seeds=seeds))


def test_accuracy_of_known_predictions() -> None:
    actual = np.array([100, 100, 100, 100])
    predicted = Predictions(np.array([100.0, 109, 75, 200]), np.full(4, 120.0), np.array([100.0, 100, 100, 140]))
    found = accuracy(predicted, actual)
    assert (found.within_10, found.within_25, found.cover_50, found.cover_90) == (0.5, 0.75, 0.75, 1.0)
    assert (found.mae_tokens, found.mean_bias_tokens) == (33.5, 10.0)
    assert found.pinball_tokens == pytest.approx(((0 + 4.5 + 12.5 + 50) / 4 + 2.0) / 2)


def lines(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_examples_are_read_from_lines(tmp_path: Path) -> None:
    path = lines(
        tmp_path, '{"prompt": "hi", "output": "Hello, you."}', "", '{"prompt": "x", "output_tokens": 9, "a": 1}'
    )
    found = read_examples(path)
    assert found.lengths.tolist() == [4, 9] and found.requests.prompt == ["hi", "x"] and found.requests.task == ["", ""]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "data.jsonl:2: is not JSON"),
        ("[1]", "JSON object"),
        ('{"prompt": "x"}', "output_tokens, or output, is missing"),
        ('{"output_tokens": 0}', "output_tokens: 0"),
        ('{"output_tokens": true}', "output_tokens: True"),
        ('{"output_tokens": 1.5}', "output_tokens: 1.5"),
        ('{"output_tokens": 5, "prompt": 3}', "prompt: 3 is not text"),
        ('{"output_tokens": 5, "arrival_s": NaN}', "arrival_s"),
    ],
)
def test_a_malformed_line_is_named(row: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_examples(lines(tmp_path, '{"output_tokens": 5}', row))


@pytest.mark.slow
def test_the_command_trains_reports_and_saves(tmp_path: Path) -> None:
    data = examples(130)
    assert data.requests.prompt_tokens is not None
    rows = [
        json.dumps({"prompt_tokens": int(p), "output_tokens": int(o)})
        for p, o in zip(data.requests.prompt_tokens, data.lengths, strict=True)
    ]
    path, out = lines(tmp_path, *rows), tmp_path / "model.json"
    done = CliRunner().invoke(app, ["train-length", str(path), "--out", str(out), "--seeds", "1"])
    assert done.exit_code == 0, done.output
    for expected in ("130 requests", "without text", "learned", "gaussian", "held out: 26"):
        assert expected in done.output
    assert load_length_model(out).levels.size == 8
    again = CliRunner().invoke(app, ["train-length", str(path), "--out", str(out), "--seeds", "1", "--json"])
    said = json.loads(again.stdout)
    (split,), (gain,) = said["splits"], said["gains"]
    assert gain["used"] and gain["change"] + gain["half_95"] < 0 and gain["requests"] == 26
    assert split["learned"]["requests"] == 26 and f"{split['learned']['mae_tokens']:.1f}" in done.output
    failed = CliRunner().invoke(app, ["train-length", str(path), "--out", str(tmp_path / "no" / "x"), "--seeds", "1"])
    assert isinstance(failed.exception, ConfigError) and "--out" in str(failed.exception)


@pytest.mark.slow
def test_no_model_is_written_that_gains_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = [json.dumps({"prompt_tokens": int(p), "output_tokens": int(o)}) for p, o in rng.integers(1, 500, (300, 2))]
    path, out = lines(tmp_path, *rows), tmp_path / "model.json"
    done = CliRunner().invoke(app, ["train-length", str(path), "--out", str(out), "--seeds", "1", "--json"])
    assert isinstance(done.exception, ConfigError) and "no model is written" in str(done.exception)
    said = json.loads(done.stdout)
    assert said["file"] is None and not said["gains"][0]["used"] and not out.exists()


def test_a_walk_through_a_tree_and_a_leaf_are_bounded() -> None:
    """A chain of 199,999 nodes took two seconds for one prediction, and huge leaves summed to no number."""
    chain = np.arange(MAX_DEPTH + 2)
    feature = np.where(chain < MAX_DEPTH + 1, 0, -1).tolist()
    child = np.minimum(chain + 1, MAX_DEPTH + 1).tolist()
    fields = {"feature": feature, "threshold": [0.0] * len(feature), "left": child, "right": child, "roots": [[0]]}
    with pytest.raises(ValueError, match=f"a walk has at most {MAX_DEPTH} nodes"):
        forest_from_json(fields, 1)
    leaf = {"feature": [-1], "threshold": [1.7e308], "left": [0], "right": [0], "roots": [[0]]}
    with pytest.raises(ValueError, match="a leaf's value is at most"):
        forest_from_json(leaf, 1)
