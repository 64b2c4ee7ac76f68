"""The quality table that ``sloserve router-quality`` makes of graded answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sloserve.cli import app
from sloserve.core.errors import ConfigError
from sloserve.fleet.router.graded import quality_of, wilson
from sloserve.fleet.router.settings import read_router

ROOT = Path(__file__).parents[3]
DATE = "2026-11-24T10-00-00.123456"


def table(*paths: Path, **given: Any) -> Any:
    return quality_of(paths, **({"names": {}, "metric": "acc", "filtered": None, "models": []} | given))


def ran(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["router-quality", *map(str, arguments)])


def rows(path: Path, *found: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in found))
    return path


def samples(folder: Path, model: str, task: str, scores: list[float], date: str = DATE, **more: Any) -> Path:
    name = folder / model / f"samples_{task}_{date}.jsonl"
    return rows(name, *({"doc_id": i, "target": "x", "acc": score, **more} for i, score in enumerate(scores)))


def test_the_interval_is_wilson_s() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_a_folder_of_the_harness_becomes_a_file_that_the_router_reads(tmp_path: Path) -> None:
    samples(tmp_path, "org__small", "arc_easy", [1.0, 0.0, 0.0, 0.0])
    samples(tmp_path, "org__large", "arc_easy", [0.0] * 9, date="2026-11-23T10-00-00.1")
    samples(tmp_path, "org__large", "arc_easy", [1.0, 1.0, 0.0, 0.0])
    names = ("--name", "small=org__small", "--name", "large=org__large")
    result = ran(tmp_path, *names, "--out", tmp_path / "router.yaml")
    assert result.exit_code == 0 and "small and large cannot be distinguished" in result.stderr
    router = read_router(tmp_path / "router.yaml")
    assert router.models == ["small", "large"] and router.quality == {"arc_easy": {"small": 0.5, "large": 1.0}}
    assert "# large: 0.500 (0.150..0.850) of 4" in (tmp_path / "router.yaml").read_text()


def test_counts_and_single_scores_add_up(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps([{"model": "a", "task": "t", "correct": 30, "answers": 40}]))
    single = rows(
        tmp_path / "more.jsonl", {"model": "a", "task": "t", "score": True}, {"model": "b", "task": "t", "score": 0.25}
    )
    found = table(counts, single)
    assert found.models == ("b", "a") and found.cells["t"]["a"].answers == 41 and found.cells["t"]["a"].correct == 31
    (row, _) = json.loads(ran(counts, single, "--models", "b,a", "--json").stdout)
    assert row["model"] == "b" and row["accuracy"] == 0.25 and row["quality"] == pytest.approx(0.25 / (31 / 41))


def test_lines_end_with_line_feeds_alone_and_a_byte_order_mark_is_taken(tmp_path: Path) -> None:
    """The harness writes prompts as they are, U+2028 and U+0085 too."""
    graded = [{"model": "m", "task": "t", "score": 1, "doc": text} for text in ("a\u2028b", "a\x85b", "a\u2029b")]
    path = tmp_path / "graded.jsonl"
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in graded)
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert table(path) == table(rows(tmp_path / "plain.jsonl", *graded))


def test_a_filter_is_chosen_where_there_are_several(tmp_path: Path) -> None:
    path = samples(tmp_path, "m", "gsm8k", [1.0], filter="strict")
    path.write_text(path.read_text() + "\n" + json.dumps({"doc_id": 0, "acc": 0.0, "filter": "loose"}))
    with pytest.raises(ConfigError, match="under the filters loose, strict; choose one with --filter"):
        table(path)
    assert table(path, filtered="strict").cells["gsm8k"]["m"].accuracy == 1.0
    with pytest.raises(ConfigError, match="no graded answers under the filter 'other'; there are: loose, strict"):
        table(path, filtered="other")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"task": "t", "score": 1}, "line 1: 'model' is None; allowed is a name"),
        ({"model": "m", "task": "t"}, "line 1: neither 'score' of a graded answer nor 'correct' and 'answers'"),
        ({"model": "m", "task": "t", "score": 1.5}, "line 1: score is 1.5; allowed is a number from 0 to 1"),
        ({"model": "m", "task": "t", "score": float("nan")}, "line 1: score is nan; allowed is a number from 0 to 1"),
        ({"model": "m", "task": "t", "correct": 9, "answers": 8}, "line 1: correct 9 of answers 8; allowed is 5 of 8"),
        ({"model": "m", "task": "t", "score": 0}, "task 't': no model has a correct answer"),
    ],
)
def test_a_wrong_row_is_named_with_what_is_allowed(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        table(rows(tmp_path / "a.jsonl", row))
    assert said in str(caught.value)


@pytest.mark.slow
def test_wrong_files_and_flags_end_with_a_remedy(tmp_path: Path) -> None:
    one = samples(tmp_path / "one", "m", "t", [1.0])
    other = rows(tmp_path / "b.jsonl", {"model": "m", "task": "u", "score": 1}, {"model": "n", "task": "u", "score": 1})
    for arguments, said in (
        ((tmp_path / "none.json",), "No such file"),
        ((rows(tmp_path / "empty.jsonl"),), "no graded answers in it"),
        ((ROOT / "README.md",), "is not JSON"),
        ((ROOT / "docs",), "no samples_TASK_DATE.jsonl; run lm_eval with --log_samples"),
        ((one, "--metric", "f1"), "no score 'f1'; choose one with --metric: acc"),
        ((one, "--name", "m"), "give MODEL=FOLDER"),
        ((one, "--models", "k"), "model 'k' has no graded answers at task 't'; models with answers there: m"),
        ((one, other), "model 'n' has no graded answers at task 't'"),
        ((other, "--models", "m"), "--models leaves out n"),
        ((one, "--out", tmp_path / "no" / "q.yaml"), "No such file"),
    ):
        result = ran(*arguments)
        assert result.exit_code and said in f"{result.exception} {result.stderr}", arguments


def test_the_example_can_be_read() -> None:
    assert table(ROOT / "configs" / "graded-answers.json").models == ("opt-125m", "opt-1.3b", "opt-6.7b")
