"""The plugin's section of vLLM's additional config: what it means, and what a mistake in it gets to read."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from sloserve.core.errors import ConfigError
from sloserve.core.slo import DEFAULT_CLASSES, ClassTable, SLOClass, Targets
from sloserve.scheduler.class_settings import stated_classes
from sloserve.scheduler.settings import MAX_WAITING, PluginSettings, plugin_settings, policy_problems


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}, {"sloserve": {}}])
def test_without_a_section_the_policy_is_fcfs(additional: Any) -> None:
    assert plugin_settings(additional) == PluginSettings()
    assert plugin_settings(additional).policy == "fcfs"


def test_all_settings() -> None:
    section = {"policy": "edf", "policy_options": {"preempt": False}, "seed": 7, "plan_share": 1, "aged_share": 0}
    expected = PluginSettings(policy="edf", policy_options={"preempt": False}, seed=7, plan_share=1, aged_share=0)
    assert plugin_settings({"sloserve": section}) == expected


def test_options_in_the_name_yield_to_those_of_their_own() -> None:
    made = plugin_settings(
        {"sloserve": {"policy": "edf:preempt=no:max_preemptions=2", "policy_options": {"preempt": True}}}
    )
    assert (made.policy, made.policy_options) == ("edf", {"preempt": True, "max_preemptions": "2"})


def test_classes_of_a_deployment() -> None:
    classes = {"chat": {"rank": 1, "ttft_ms": 500.0}, "batch": {"rank": 0}}
    made = plugin_settings({"sloserve": {"classes": classes, "default_class": "batch"}}).classes
    assert made.names == ("priority", "batch", "interactive", "chat", "background") and made.default.name == "batch"
    assert made["chat"].targets.ttft_s == 0.5


def test_a_stated_class_keeps_what_it_leaves_out_of_the_built_in_class_and_removes_no_other() -> None:
    table = plugin_settings({"sloserve": {"classes": {"batch": {"e2e_ms": 60_000}, "interactive": {}}}}).classes
    assert table.names == DEFAULT_CLASSES.names and table["interactive"] == DEFAULT_CLASSES["interactive"]
    assert table["batch"] == replace(DEFAULT_CLASSES["batch"], targets=Targets(e2e_s=60.0))
    moved = plugin_settings({"sloserve": {"classes": {"batch": {"rank": 0}}}}).classes
    assert moved["batch"].aged_after_s == DEFAULT_CLASSES["batch"].aged_after_s
    assert moved.names == ("priority", "batch", "interactive", "background")


def test_null_removes_a_class() -> None:
    made = plugin_settings({"sloserve": {"classes": {"background": None, "chat": {"rank": 1}}}})
    assert made.classes.names == ("priority", "interactive", "chat", "batch")
    assert "flex" not in made.service_tiers
    only = dict.fromkeys(DEFAULT_CLASSES.names) | {"chat": {"rank": 5}}
    assert plugin_settings({"sloserve": {"classes": only, "default_class": "chat"}}).classes.names == ("chat",)


def test_a_table_survives_the_trip_through_settings_with_the_order_of_its_classes() -> None:
    table = ClassTable({name: SLOClass(name, rank=1) for name in ("b", "batch", "a", "interactive")}, "a")
    assert plugin_settings({"sloserve": table.as_config()}).classes.names == table.names == tuple(table.names)
    assert plugin_settings({"sloserve": table.as_config()}).classes == table


def test_the_default_class_is_interactive_unless_it_is_stated() -> None:
    def default(**section: Any) -> str:
        return plugin_settings({"sloserve": section}).default_class

    assert default() == "interactive" and default(default_class="batch") == "batch"
    assert default(classes={"chat": {"rank": 1}, "jobs": {"rank": 0}}) == "interactive"
    assert default(classes={"chat": {"rank": 1}, "interactive": None}, default_class="chat") == "chat"


def test_simulated_requests_have_the_classes_that_a_file_states() -> None:
    def names(classes: Any) -> tuple[tuple[str, ...], str]:
        section = {"classes": classes} if classes else {}
        found = stated_classes(section, plugin_settings({"sloserve": section}).classes)
        return found.names, found.default.name

    assert names({"batch": {}, "interactive": {}}) == (("interactive", "batch"), "interactive")
    assert names({"jobs": {"rank": 1}, "background": None}) == (("jobs",), "jobs")
    assert names(None) == (DEFAULT_CLASSES.names, "interactive")


def test_service_tiers_are_laid_over_those_whose_class_exists() -> None:
    def tiers(**section: Any) -> dict[str, str]:
        return plugin_settings({"sloserve": section}).service_tiers

    assert tiers() == {
        "auto": "interactive", "default": "interactive", "flex": "background", "scale": "priority",
        "priority": "priority", "standard_only": "interactive",
    }  # fmt: skip
    assert tiers(service_tiers={"flex": "batch"}) == tiers() | {"flex": "batch"}
    only = {"classes": dict.fromkeys(DEFAULT_CLASSES.names) | {"chat": {"rank": 1}}, "default_class": "chat"}
    assert tiers(**only) == dict.fromkeys(("auto", "default", "standard_only"), "chat")
    assert tiers(classes={"chat": {"rank": 1}}, service_tiers={"flex": "chat"})["flex"] == "chat"


@pytest.mark.parametrize(("max_waiting", "caps"), [(7, (7, 7)), ({"batch": 2}, (MAX_WAITING, 2))])
def test_a_cap_for_each_class(max_waiting: Any, caps: tuple[int, int]) -> None:
    made = plugin_settings({"sloserve": {"admission": {"mode": "cap", "max_waiting": max_waiting}}}).admission
    assert made.mode == "cap" and (made.cap("interactive"), made.cap("batch")) == caps


EVERYTHING = {
    "policy": "edf",
    "policy_options": {"preempt": False, "margin_s": 0.1},
    "shadow_policy": "sjf:length=oracle",
    "seed": 3,
    "plan_share": 1,
    "aged_share": 0.0,
    "classes": {
        "chat": {"rank": 0, "aged_after_s": 5.0, "ttft_ms": 500.0},
        "jobs": {"rank": 9, "aged_after_s": 60.0},
        **dict.fromkeys(DEFAULT_CLASSES.names),
    },
    "default_class": "jobs",
    "service_tiers": {"auto": "jobs", "default": "chat", "priority": "chat", "standard_only": "jobs"},
    "unknown_class": "default",
    "tenants": {"acme": "jobs"},
    "tenant_default": "chat",
    "admission": {"mode": "predict", "max_waiting": {"chat": 3}, "min_chance": 0.1, "promises": "classes"},
    "max_body_bytes": 1000,
    "max_tenant_labels": 0,
    "hung_after_s": 60.0,
    "waiting_comments_s": 0.5,
}


@pytest.mark.parametrize("section", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_settings_survive_the_trip_through_json(section: dict[str, Any]) -> None:
    made = plugin_settings({"sloserve": section})
    sent = json.loads(json.dumps({"sloserve": made.as_config()}, allow_nan=False))
    assert plugin_settings(sent) == made
    assert list(sent["sloserve"]) == list(PluginSettings.model_fields)
    assert sent["sloserve"].items() >= section.items()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        PluginSettings().seed = 1  # type: ignore[misc]


KNOWN = ", ".join(PluginSettings.model_fields)
CLASSES = "priority, interactive, batch, background"


def test_every_mistake_is_listed() -> None:
    section = {
        "polcy": "edf", "seed": -1, "tenants": {"acme": "gold"}, "classes": {"a": {"rank": "x", "ttf_s": 1}, "b": 5},
    }  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        plugin_settings({"sloserve": section})
    named = [line.split(": ")[0] for line in str(refused.value).splitlines()]
    assert sorted(named) == [
        "sloserve.classes.a.rank", "sloserve.classes.a.ttf_s", "sloserve.classes.b", "sloserve.polcy", "sloserve.seed",
        "sloserve.tenants.acme",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({}, []),
        ({"policy": "edf:preempt=no", "shadow_policy": "sjf"}, []),
        ({"policy": "edff"}, [(("policy",), "unknown policy 'edff'")]),
        ({"policy_options": {"x": 1}}, [(("policy_options",), "policy 'fcfs' has no option 'x'")]),
        ({"policy": "edf", "policy_options": {"x": 1}}, [(("policy",), "policy 'edf' has no option 'x'")]),
        (
            {"policy": "edf:preempt=maybe", "shadow_policy": "sjf:x=1"},
            [(("policy",), "'maybe' is not true or false"), (("shadow_policy",), "policy 'sjf' has no option 'x'")],
        ),
        ({"policy": 5, "shadow_policy": "edf:x", "policy_options": []}, []),
    ],
)
def test_policies_that_cannot_be_made(section: dict[str, Any], told: list[tuple[tuple[str], str]]) -> None:
    found = policy_problems(section)
    assert [problem.path for problem in found] == [path for path, _ in told]
    assert all(text in problem.text for problem, (_, text) in zip(found, told, strict=True))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (5, "sloserve: 5 is not a mapping of settings"),
        ("edf", "sloserve: 'edf' is not a mapping of settings"),
        ({"polcy": "edf"}, f"sloserve.polcy: is unknown; known here: {KNOWN}; did you mean 'policy'?"),
        ({"classes": ["chat"]}, "sloserve.classes: ['chat'] is not a mapping of at least one class name to settings"),
        ({"classes": {}}, "sloserve.classes: {} is not a mapping of at least one class name to settings"),
        (
            {"classes": {"a": {}}},
            "sloserve.classes.a.rank: is missing; needed: a whole number from 0 to 1000, and a lower one is more "
            "urgent; the built-in classes have priority 0, interactive 1, batch 2, background 3",
        ),
        (
            {"classes": {"a": 5}},
            "sloserve.classes.a: 5 is not a mapping with rank, aged_after_s, ttft_ms, tpot_ms, e2e_ms, tds, "
            "promise, promise_fallback; null "
            "removes a class",
        ),
        (
            {"classes": {"bach": None}},
            f"sloserve.classes.bach: null removes a class, and 'bach' is unknown; known here: {CLASSES}; did you mean "
            "'batch'?",
        ),
        (
            {"classes": dict.fromkeys(DEFAULT_CLASSES.names)},
            "sloserve.classes: all classes are removed; keep at least one",
        ),
        (
            {"classes": {"interactive": None}},
            "sloserve.classes.interactive: null removes the class of requests that name none; state another as "
            "default_class: priority or batch or background",
        ),
        (
            {"classes": {"background": None}, "service_tiers": {"flex": "background"}},
            "sloserve.service_tiers.flex: 'background' is not one of the classes priority, interactive, batch; classes "
            "removes it with null",
        ),
        ({"classes": {"a": {"rank": 1.0}}}, "sloserve.classes.a.rank: 1.0 is not a whole number from 0 to 1000"),
        (
            {"classes": {"a": {"rank": 1, "ttft_ms": 0}}},
            "sloserve.classes.a.ttft_ms: 0 is not a number of milliseconds above 0, up to 604800000",
        ),
        (
            {"classes": {"a": {"rank": 1, "tpot_ms": 5e-324}}},
            "sloserve.classes.a.tpot_ms: 5e-324 is not a number of milliseconds above 0, up to 604800000",
        ),
        (
            {"classes": {"a": {"rank": 1, "tds": 5e-324}}},
            "sloserve.classes.a.tds: 5e-324 is not a number of tokens per second above 0, up to 10000",
        ),
        (
            {"classes": {"a": {"rank": 1, "ttft_s": 5}}},
            "sloserve.classes.a.ttft_s: is unknown; known here: rank, aged_after_s, ttft_ms, tpot_ms, e2e_ms, tds, "
            "promise, promise_fallback; "
            "did you mean 'ttft_ms'?",
        ),
        ({"default_class": "chat"}, f"sloserve.default_class: 'chat' is not one of the classes {CLASSES}"),
        ({"default_class": ["a"]}, f"sloserve.default_class: ['a'] is not one of the classes {CLASSES}"),
        ({"tenant_default": "gold"}, f"sloserve.tenant_default: 'gold' is not one of the classes {CLASSES}"),
        ({"tenants": {"acme": "gold"}}, f"sloserve.tenants.acme: 'gold' is not one of the classes {CLASSES}"),
        ({"tenants": {"acme": 5}}, "sloserve.tenants.acme: 5: Input should be a valid string"),
        (
            {"service_tiers": {"flex": "slow"}},
            f"sloserve.service_tiers.flex: 'slow' is not one of the classes {CLASSES}",
        ),
        (
            {"service_tiers": {"prority": "batch"}},
            "sloserve.service_tiers.prority: is unknown; known here: auto, default, flex, scale, priority, "
            "standard_only; did you mean 'priority'?",
        ),
        ({"service_tiers": "flex"}, "sloserve.service_tiers: 'flex' is not a mapping of service tier to class"),
        ({"unknown_class": "ignore"}, "sloserve.unknown_class: 'ignore' is not one of reject, default"),
        (
            {"admission": "cap"},
            "sloserve.admission: 'cap' is not a mapping with mode, max_waiting, min_chance, promises",
        ),
        ({"admission": {"mode": "capp"}}, "sloserve.admission.mode: 'capp' is not one of none, cap, predict"),
        (
            {"admission": {"max_waitin": 1}},
            "sloserve.admission.max_waitin: is unknown; known here: mode, max_waiting, min_chance, promises; did "
            "you mean 'max_waiting'?",
        ),
        ({"admission": {"min_chance": 1.0}}, "sloserve.admission.min_chance: 1.0 is not a number above 0 and below 1"),
        (
            {"admission": {"max_waiting": 0}},
            "sloserve.admission.max_waiting: 0 is not a whole number >= 1, or a mapping of class to one",
        ),
        (
            {"admission": {"max_waiting": {"batch": 0}}},
            "sloserve.admission.max_waiting: {'batch': 0} is not a whole number >= 1, or a mapping of class to one",
        ),
        (
            {"admission": {"max_waiting": {"bach": 5}}},
            f"sloserve.admission.max_waiting.bach: is unknown; known here: {CLASSES}; did you mean 'batch'?",
        ),
        ({"max_body_bytes": 0}, "sloserve.max_body_bytes: 0 is not a whole number of bytes >= 1"),
        ({"max_tenant_labels": -1}, "sloserve.max_tenant_labels: -1 is not a whole number >= 0"),
        ({"shadow_policy": 3}, "sloserve.shadow_policy: 3 is not the name of a policy"),
        (
            {"shadow_policy": "edf:x"},
            "sloserve.shadow_policy: policy 'edf:x': 'x' is not of the form option=value",
        ),
        ({"policy": 3}, "sloserve.policy: 3 is not the name of a policy"),
        ({"policy": None}, "sloserve.policy: None is not the name of a policy"),
        ({"policy": "edf:preempt"}, "sloserve.policy: policy 'edf:preempt': 'preempt' is not of the form option=value"),
        ({"policy_options": [1]}, "sloserve.policy_options: [1] is not a mapping of option to value"),
        ({"plan_share": 0}, "sloserve.plan_share: 0 is not a number within 1e-06..1"),
        ({"plan_share": 1.01}, "sloserve.plan_share: 1.01 is not a number within 1e-06..1"),
        ({"plan_share": True}, "sloserve.plan_share: True is not a number within 1e-06..1"),
        ({"plan_share": "5%"}, "sloserve.plan_share: '5%' is not a number within 1e-06..1"),
        ({"plan_share": float("nan")}, "sloserve.plan_share: nan is not a number within 1e-06..1"),
        ({"aged_share": -0.1}, "sloserve.aged_share: -0.1 is not a number within 0..1"),
        ({"aged_share": None}, "sloserve.aged_share: None is not a number within 0..1"),
        ({"seed": -1}, "sloserve.seed: -1 is not a whole number >= 0"),
        ({"seed": 1.0}, "sloserve.seed: 1.0 is not a whole number >= 0"),
        ({"seed": True}, "sloserve.seed: True is not a whole number >= 0"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_what_is_allowed(section: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plugin_settings({"sloserve": section})
    assert str(refused.value) == message


@pytest.mark.parametrize("name", PluginSettings.model_fields)
def test_a_value_of_a_wrong_kind_is_a_mistake_and_no_fault(name: str) -> None:
    """A patch of live settings brings values of any kind; a list of headers that was a number raised TypeError."""
    inner: list[Any] = [
        None,
        True,
        0,
        -1.5,
        "x",
        [],
        [0],
        [None],
        {},
        {"a": 0},
        {"a": None},
        {"": []},
        {"a": {"b": []}},
    ]
    for value in [*inner, *([one] for one in inner), *({"batch": one} for one in inner)]:
        try:
            plugin_settings({"sloserve": {name: value}})
        except ConfigError as error:
            assert str(error)
