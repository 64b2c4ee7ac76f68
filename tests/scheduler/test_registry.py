"""Policies by name: how one is written, found and configured, and what a typing error gets to read."""

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.length.choice import length_names
from sloserve.scheduler import registry
from sloserve.scheduler.edf import EDF
from sloserve.scheduler.fcfs import FCFS
from sloserve.scheduler.registry import main_policies, make_policy, parse_policy, policy_class, policy_names
from sloserve.scheduler.sjf import SJF
from tests.chaos import Chaos


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("edf", ("edf", {})),
        (" sjf ", ("sjf", {})),
        ("edf:preempt=false", ("edf", {"preempt": "false"})),
        ("edf:preempt=no: max_preemptions = 2 ", ("edf", {"preempt": "no", "max_preemptions": "2"})),
        ("x:formula=a=b", ("x", {"formula": "a=b"})),
    ],
)
def test_parse(text: str, expected: tuple[str, dict[str, str]]) -> None:
    assert parse_policy(text) == expected


def test_policies_that_reproduce_papers_are_listed_apart() -> None:
    served, apart = policy_names(for_experiments=False), policy_names(for_experiments=True)
    assert {"andes", "econo", "edf", "sa"} <= set(served) and not set(served) & set(apart)
    assert tuple(sorted((*served, *apart))) == policy_names()
    assert main_policies()[0] == "auto" and sorted(main_policies()) == list(served)
    for variant, of in (
        ("andes-parts", "andes"),
        ("andes-paper", "andes"),
        ("econo-parts", "econo"),
        ("sa-batches", "sa"),
    ):
        assert variant in apart and issubclass(policy_class(variant), policy_class(of))


def test_the_group_of_its_entry_point_says_what_a_policy_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third party's module may stand anywhere: its package does not matter."""
    value, names = f"{EDF.__module__}:EDF", {"served": (True, False), "apart": (False, True), "hidden": (False, False)}
    groups = (registry.GROUP, registry.FOR_EXPERIMENTS, registry.FOR_TESTS)
    found = {name: EntryPoint(name, value, group) for name, group in zip(names, groups, strict=True)}
    monkeypatch.setattr(registry, "_entry_points", lambda: found)
    for name, (served, apart) in names.items():
        assert (name in policy_names(for_experiments=False), name in policy_names(for_experiments=True)) == (
            served,
            apart,
        )
        assert (name in policy_names()) == (name != "hidden") and policy_class(name) is EDF
    assert main_policies() == ("served",)


@pytest.mark.parametrize("text", ["edf:preempt", "edf:=3", "edf:"])
def test_parse_refuses_what_is_not_option_equals_value(text: str) -> None:
    pair = text.split(":", 1)[1]
    with pytest.raises(ConfigError, match=re.escape(f"policy {text!r}: {pair!r} is not of the form option=value")):
        parse_policy(text)


def test_chaos_is_hidden_but_loadable() -> None:
    assert {"andes", "econo", "edf", "fcfs", "priority", "rr", "sa", "sjf"} <= set(policy_names())
    assert "chaos" not in policy_names()
    assert isinstance(make_policy("chaos", seed=3), Chaos)


def test_options_become_settings_of_their_type() -> None:
    policy = make_policy("edf", {"preempt": "False", "preempt_margin_s": "2", "max_preemptions": 5}, seed=4)
    assert isinstance(policy, EDF) and policy.seed == 4
    assert policy.settings == EDF.Settings(preempt=False, preempt_margin_s=2.0, max_preemptions=5)
    assert make_policy("sjf", {"length": "oracle"}).settings == SJF.Settings(length="oracle")
    assert make_policy("edf", {"preempt": True}).settings.preempt is True


def test_an_unknown_policy_is_answered_with_those_there_are_and_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy 'edff'; installed: .*edf, .*fcfs, .*; did you mean 'edf'\?"):
        make_policy("edff")
    with pytest.raises(ConfigError, match=r"unknown policy ''; installed: [^;]*; for experiments: [^;]*$"):
        make_policy("")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "priority",
            {"margin": 1},
            "policy 'priority' has no option 'margin'; it has: max_preemptions, preempt, step_budget",
        ),
        ("fcfs", {"x": 1}, "policy 'fcfs' has no option 'x'; it has: step_budget"),
        (
            "edf",
            {"max_preemptions": "many"},
            "policy 'edf', option 'max_preemptions': 'many' is not a whole number in ASCII digits",
        ),
        ("edf", {"max_preemptions": 2.7}, "policy 'edf', option 'max_preemptions': 2.7 is not a valid int"),
        ("edf", {"max_preemptions": True}, "policy 'edf', option 'max_preemptions': True is not a valid int"),
        ("edf", {"max_preemptions": float("inf")}, "policy 'edf', option 'max_preemptions': inf is not a valid int"),
        ("edf", {"preempt_margin_s": [1]}, "policy 'edf', option 'preempt_margin_s': [1] is not a valid float"),
        (
            "edf",
            {"preempt_margin_s": "nan"},
            "policy 'edf', option 'preempt_margin_s': 'nan' is not a number in ASCII digits, such as 0.5 or 1e3",
        ),
        ("edf", {"preempt": "maybe"}, "policy 'edf', option 'preempt': 'maybe' is not true or false"),
        ("edf", {"preempt": 2}, "policy 'edf', option 'preempt': 2 is not true or false"),
        ("edf", {"preempt": None}, "policy 'edf', option 'preempt': None is not true or false"),
        ("edf", {"preempt_margin_s": -1}, "policy 'edf': preempt_margin_s: -1.0 is not 0 or more, and finite"),
        (
            "sjf",
            {"length": "guess"},
            "policy 'sjf': length: 'guess' is not one of " + ", ".join(length_names()),
        ),
        ("sjf", {"length": 5}, "policy 'sjf', option 'length': 5 is not a valid str"),
        ("rr", {"interval_steps": 0}, "policy 'rr': interval_steps: 0 is not at least 1"),
        (
            "econo-paper",
            {"sync_tokens": "none"},
            "policy 'econo-paper', option 'sync_tokens': 'none' is not a whole number in ASCII digits",
        ),
        ("econo-paper", {"padding": True}, "policy 'econo-paper', option 'padding': True is not a valid float or str"),
        ("sjf", {"prompt_weight": 2}, "policy 'sjf': prompt_weight: 2.0 is not within 0..1"),
    ],
)
def test_a_bad_option_is_named_with_its_value_and_what_is_allowed(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_policy(name, options)
    assert str(refused.value) == message


def test_an_option_names_a_file_only_where_files_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("very-private")
    text = f"policy 'sa', option 'profile': '{secret}' would name a file, which only the server's configuration may do"
    with pytest.raises(ConfigError, match=re.escape(f"{text}; no profile of this name is shipped")) as refused:
        make_policy("sa", {"profile": str(secret)}, allow_files=False)
    assert "private" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:  # a policy's text has at most 500 characters, a client's error 1,000
        make_policy("sa", {"profile": "/" + "p" * 480}, allow_files=False)
    assert len(str(refused.value)) < 1000
    assert make_policy("sa", {"profile": "a100-opt-13b"}, allow_files=False).settings.profile == "a100-opt-13b"
    assert make_policy("edf", {"preempt": "no"}, allow_files=False).settings.preempt is False

    class ReadsAFile(FCFS):
        @dataclass(frozen=True)
        class Settings:
            model: Path | None = None

    monkeypatch.setattr(registry, "policy_class", lambda _: ReadsAFile)
    with pytest.raises(ConfigError, match="option 'model': 'm.json' would name a file"):
        make_policy("third", {"model": "m.json"}, allow_files=False)
    assert make_policy("third", {"model": "m.json"}).settings.model == Path("m.json")


@pytest.mark.parametrize("digits", ["1_000", "\u0661\u0662", "1" * 30, "-" + "1" * 30, "5e-324", 10**30, -(10**30)])
@pytest.mark.parametrize("option", ["max_preemptions", "preempt_margin_s"])
def test_numbers_of_options_are_ascii_digits_within_bounds(option: str, digits: str | int) -> None:
    with pytest.raises(ConfigError, match=f"^policy 'edf', option '{option}': {re.escape(repr(digits))} is ") as caught:
        make_policy("edf", {option: digits})
    told = ("in ASCII digits", "is not within -9007199254740992..9007199254740992", "is too near to 0 (below 1e-300)")
    assert any(one in str(caught.value) for one in told)
