"""The plugin's section of vLLM's additional config: what it means, and what a mistake in it gets to read."""

from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.vllm_plugin.config import PluginSettings, plugin_settings


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}, {"sloserve": {}}])
def test_without_a_section_the_policy_is_fcfs(additional: Any) -> None:
    assert plugin_settings(additional) == PluginSettings()
    assert plugin_settings(additional).policy == "fcfs"


def test_all_settings() -> None:
    section = {"policy": "edf", "policy_options": {"evict": False}, "seed": 7, "plan_share": 1, "aged_share": 0}
    expected = PluginSettings(policy="edf", policy_options={"evict": False}, seed=7, plan_share=1, aged_share=0)
    assert plugin_settings({"sloserve": section}) == expected


def test_options_in_the_name_yield_to_those_of_their_own() -> None:
    made = plugin_settings(
        {"sloserve": {"policy": "edf:evict=no:max_preemptions=2", "policy_options": {"evict": True}}}
    )
    assert (made.policy, made.policy_options) == ("edf", {"evict": True, "max_preemptions": "2"})


def test_classes_of_a_deployment() -> None:
    classes = {"chat": {"rank": 1, "ttft_s": 0.5}, "batch": {"rank": 0}}
    made = plugin_settings({"sloserve": {"classes": classes, "default_class": "batch"}}).classes
    assert made.names == ("chat", "batch") and made.default.name == "batch"
    assert made["chat"].targets.ttft_s == 0.5


KNOWN = "policy, policy_options, seed, plan_share, aged_share, classes, default_class"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (5, "sloserve: 5 is not a mapping of settings"),
        ("edf", "sloserve: 'edf' is not a mapping of settings"),
        ({"polcy": "edf"}, f"sloserve.polcy is not a setting; settings: {KNOWN}; did you mean 'policy'?"),
        ({"classes": ["chat"]}, "sloserve.classes: ['chat'] is not a mapping of class name to settings"),
        ({"default_class": "chat"}, "sloserve.default_class: give sloserve.classes as well"),
        ({"policy": 3}, "sloserve.policy: 3 is not the name of a policy"),
        ({"policy": None}, "sloserve.policy: None is not the name of a policy"),
        ({"policy": "edf:evict"}, "policy 'edf:evict': 'evict' is not of the form option=value"),
        ({"policy_options": [1]}, "sloserve.policy_options: [1] is not a mapping of option to value"),
        ({"plan_share": 0}, "sloserve.plan_share: 0 is not a number within 1e-06..1"),
        ({"plan_share": 1.01}, "sloserve.plan_share: 1.01 is not a number within 1e-06..1"),
        ({"plan_share": True}, "sloserve.plan_share: True is not a number within 1e-06..1"),
        ({"plan_share": "5%"}, "sloserve.plan_share: '5%' is not a number within 1e-06..1"),
        ({"plan_share": float("nan")}, "sloserve.plan_share: nan is not a number within 1e-06..1"),
        ({"aged_share": -0.1}, "sloserve.aged_share: -0.1 is not a number within 0..1"),
        ({"aged_share": None}, "sloserve.aged_share: None is not a number within 0..1"),
        ({"seed": -1}, "sloserve.seed: -1 is not a whole number from 0"),
        ({"seed": 1.0}, "sloserve.seed: 1.0 is not a whole number from 0"),
        ({"seed": True}, "sloserve.seed: True is not a whole number from 0"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_what_is_allowed(section: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plugin_settings({"sloserve": section})
    assert str(refused.value) == message
