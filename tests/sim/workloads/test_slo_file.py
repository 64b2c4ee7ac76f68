"""SLO files: what a good one gives to whom, and that a bad one says where and why."""

import math
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.files.marked_yaml import parse_yaml
from sloserve.core.slo import MAX_TARGET_S, SLO, Targets
from sloserve.core.speeds import READING
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT, ScaledDeadline, SLOAssignment
from sloserve.sim.workloads.slo_file import parse_slos, read_slo_file
from sloserve.sim.workloads.trace import Trace, make_trace

CONFIGS = Path(__file__).parents[3] / "configs"


def slos(text: str) -> SLOAssignment:
    return parse_slos(parse_yaml(text, "f.yaml"), "f.yaml")


def trace(tasks: list[str]) -> Trace:
    n = len(tasks)
    return make_trace("t", "test", range(n), [10] * n, range(1, n + 1), tasks)


def assign(text: str, tasks: list[str], seed: int = 0) -> list[SLO]:
    return slos(text).assign(trace(tasks), np.random.default_rng(seed))


def names(assigned: list[SLO]) -> list[str]:
    return [slo.slo_class.name for slo in assigned]


def test_targets_ranks_and_ages() -> None:
    table = slos(
        "classes:\n"
        "  chat: {share: 1, ttft_ms: 500, tpot_ms: 50, tds: 4.8}\n"
        "  jobs: {e2e_ms: 3e4, rank: 7, aged_after_s: 600}\n"
        "default: jobs\n"
    ).table
    assert table.names == ("chat", "jobs")
    assert table["chat"].targets == Targets(ttft_s=0.5, tpot_s=0.05, tds=4.8)
    assert table["jobs"].targets == Targets(e2e_s=30.0)
    assert (table["chat"].rank, table["jobs"].rank, table["jobs"].aged_after_s) == (0, 7, 600.0)
    assert table.default.name == "jobs"


def test_shares_are_drawn_by_the_generator_alone() -> None:
    text = "classes: {a: {share: 0.7}, b: {share: 0.3}, c: {}}"
    drawn = names(assign(text, ["x"] * 1_000))
    assert drawn.count("a") / 1_000 == pytest.approx(0.7, abs=0.03)
    assert drawn.count("c") == 0
    assert drawn == names(assign(text, ["y"] * 1_000))
    assert drawn != names(assign(text, ["x"] * 1_000, seed=1))
    other_targets = "classes: {a: {share: 0.7, tds: reading}, b: {share: 0.3, e2e_ms: 5}, c: {}}"
    assert drawn == names(assign(other_targets, ["x"] * 1_000))


def test_task_comes_before_share_and_share_before_default() -> None:
    classes = "classes: {a: {share: 1.0}, b: {share: 0.0}, c: {}}\nby_task: {code: b}\ndefault: c\n"
    assert names(assign(classes, ["code", "chat"])) == ["b", "a"]
    assert names(assign("classes: {a: {}, b: {}}\nby_task: {code: b}\ndefault: a\n", ["code", "chat"])) == ["b", "a"]
    assert names(assign("classes: {only: {ttft_ms: 1}}", ["code", "chat"])) == ["only", "only"]


def test_task_without_a_class_is_an_error_when_there_is_no_default() -> None:
    with pytest.raises(ConfigError, match=r"f\.yaml: by_task: task 'chat' of trace 't' has no class"):
        assign("classes: {a: {}, b: {}}\nby_task: {code: b}", ["code", "chat"])


def test_reading_speeds_are_drawn_for_each_request() -> None:
    assigned = assign("classes: {reader: {ttft_ms: 1000, tds: reading}}", ["x"] * 2000)
    speeds = {slo.targets.tds for slo in assigned}
    assert speeds == set(READING.tds().tolist())
    assert {slo.targets.ttft_s for slo in assigned} == {1.0}
    assert {slo.slo_class.targets.tds for slo in assigned} == {None}


def test_scaled_deadline_follows_the_output() -> None:
    assigned = assign("classes: {econo: {scale: 2, prompt_ms: 100, token_ms: 25}}", ["x"] * 3)
    assert [slo.targets.e2e_s for slo in assigned] == pytest.approx([0.25, 0.3, 0.35])
    assert ScaledDeadline(1000.0, 1.0, 3600.0).e2e_s(10**7) == MAX_TARGET_S


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f.yaml:1:1: is empty"),
        ("[1, 2]", "f.yaml:1:1: a list is not a mapping with classes, by_task, default"),
        ("classes: {a: {share: 1}\n", "f.yaml:2:1: is not YAML"),
        ("default: a", "f.yaml:1:1: no classes; an SLO file has at least one"),
        ("classes: {}", "f.yaml:1:1: classes: no classes; an SLO file has at least one"),
        ("classes: {a: 5}", "f.yaml:1:11: classes.a: 5 is not a mapping with share, ttft_ms"),
        (
            "clases: {a: {}}",
            "f.yaml:1:1: clases: unknown key; allowed: classes, by_task, default; did you mean 'classes'",
        ),
        (
            "classes:\n  a:\n    ttft: 5\n",
            "f.yaml:3:5: classes.a.ttft: unknown key; allowed: share, ttft_ms, tpot_ms, e2e_ms, tds, scale, "
            "prompt_ms, token_ms, rank, promise, aged_after_s; did you mean 'ttft_ms'?",
        ),
        ("classes: {a: {t_p_ms: 5}}", "unknown key; allowed: "),
        ("classes: {a: {tds: speaking}}", "'speaking' is not a number above 0, up to 10000, or one of reading, voice"),
        ("classes: {a: {ttft_ms: -5}}", "f.yaml:1:15: classes.a.ttft_ms: -5 is not a number above 0, up to 604800000"),
        ("classes: {a: {tpot_ms: 0}}", "classes.a.tpot_ms: 0 is not a number above 0"),
        ("classes: {a: {tpot_ms: 5.0e-324}}", "f.yaml:1:15: classes.a.tpot_ms: 5e-324 is not a number above 0"),
        ("classes: {a: {tds: 5.0e-324}}", "classes.a.tds: 5e-324 is not a number above 0"),
        ("classes: {a: {scale: 2, prompt_ms: 5.0e-324, token_ms: 1}}", "prompt_ms: 5e-324 is not a number above 0"),
        ("classes: {a: {e2e_ms: '1_000'}}", "classes.a.e2e_ms: '1_000' is not"),
        ("classes: {a: {e2e_ms: '\u0661\u0662'}}", "classes.a.e2e_ms: '\u0661\u0662' is not"),
        ("classes: {a: {e2e_ms: 1e12}}", "classes.a.e2e_ms: 1000000000000.0 is not a number above 0, up to 604800000"),
        ("classes: {a: {e2e_ms: .nan}}", "classes.a.e2e_ms: nan is not"),
        ("classes: {a: {e2e_ms: .inf}}", "classes.a.e2e_ms: inf is not"),
        ("classes: {a: {e2e_ms: true}}", "classes.a.e2e_ms: True is not"),
        ("classes: {a: {e2e_ms: soon}}", "classes.a.e2e_ms: 'soon' is not"),
        ("classes: {a: {e2e_ms: [5]}}", "classes.a.e2e_ms: a list is not"),
        ("classes: {a: {e2e_ms: }}", "classes.a.e2e_ms: None is not"),
        (
            "classes: {a: {tds: fast}}",
            "classes.a.tds: 'fast' is not a number above 0, up to 10000, or one of reading, voi",
        ),
        ("classes: {a: {rank: 1.5}}", "classes.a.rank: 1.5 is not a whole number from 0 to 1000"),
        ("classes: {a: {aged_after_s: 0}}", "classes.a.aged_after_s: 0 is not"),
        ("classes: {a: {share: 1.2}}", "classes.a.share: 1.2 is not a number from 0 to 1"),
        ("classes: {a: {share: 0.5}, b: {share: 0.4}}", "classes: shares sum to 0.9, not 1 (a 0.5, b 0.4)"),
        ("classes: {a: {}, b: {}}", "classes: no request would get any of them; give shares, by_task or a default"),
        ("classes: {a: {}, a: {}}", "f.yaml:1:18: classes.a: given twice, first in line 1"),
        ("classes: {a: {}}\ndefault: b", "f.yaml:2:1: default: 'b' is not one of the classes a"),
        ("classes: {a: {}}\nby_task: {conv: b}", "f.yaml:2:11: by_task.conv: 'b' is not one of the classes a"),
        ("classes: {a: {scale: 2}}", "classes.a: has scale only; scale, prompt_ms and token_ms come together"),
        ("classes: {a: {scale: 2, prompt_ms: 1, token_ms: 1, e2e_ms: 9}}", "classes.a.e2e_ms: contradicts scale"),
        ("classes: {? [a] : {}}", "a key must be text"),
        ("classes: &c {a: *c}", "contains itself"),
        ("classes: \x00", "is not YAML: unacceptable character"),
        ("[" * 500, "is not YAML: maximum recursion depth exceeded"),
        ("classes: {a: {}}\n---\nclasses: {a: {}}", "is not YAML"),
    ],
)
def test_bad_file(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        slos(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shares_may_be_off_by_rounding() -> None:
    slos("classes: {a: {share: 0.3333333}, b: {share: 0.3333333}, c: {share: 0.3333333}}")


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        read_slo_file(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_slo_file(tmp_path / "binary.yaml")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("slo-*.yaml")), ids=lambda path: path.stem)
def test_shipped_examples_are_valid(path: Path) -> None:
    assignment = read_slo_file(path)
    assigned = assignment.assign(trace(["conv", "code", "summarization"] * 50), np.random.default_rng(0))
    assert {slo.slo_class.name for slo in assigned} == set(assignment.table.names)
    assert all(slo.targets for slo in assigned)


def test_the_default_is_what_its_example_says() -> None:
    shipped = read_slo_file(CONFIGS / "slo-default.yaml")
    assert (shipped.rules, shipped.default) == (DEFAULT_ASSIGNMENT.rules, DEFAULT_ASSIGNMENT.default)
    assert math.isclose(sum(rule.share or 0.0 for rule in DEFAULT_ASSIGNMENT.rules), 1.0)
