"""Settings that may change while a server runs: what differs, and what needs a restart."""

from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.scheduler.live_settings import LIVE, changes, check_live, in_order, in_words
from sloserve.scheduler.settings import PluginSettings, plugin_settings


def settings(**section: Any) -> PluginSettings:
    return plugin_settings({"sloserve": section})


CLASSES = {"chat": {"rank": 0, "ttft_ms": 500}, "jobs": {"rank": 1}}


def with_classes(classes: dict[str, Any], **section: Any) -> PluginSettings:

    return settings(classes=classes, default_class="chat", **section)


def test_each_live_setting_is_one_of_the_settings() -> None:
    assert set(LIVE) <= set(PluginSettings.model_fields)


def test_a_change_is_named_by_its_key_with_both_values() -> None:
    before = with_classes(CLASSES, tenants={"acme": "jobs"})
    after = with_classes(
        {**CLASSES, "chat": {"rank": 0, "ttft_ms": 300}}, tenants={"beta": "jobs"}, admission={"mode": "cap"}
    )
    check_live(before, after)
    assert changes(before, after) == {
        ("classes", "chat", "ttft_ms"): (500.0, 300.0),
        ("tenants", "acme"): ("jobs", None),
        ("tenants", "beta"): (None, "jobs"),
        ("admission", "mode"): ("none", "cap"),
    }
    assert in_words(changes(before, after)).startswith("classes.chat.ttft_ms 500.0 -> 300.0; tenants.acme jobs -> none")
    assert changes(before, before) == {} and in_words({}) == "no setting differs"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"policy": "edf"}, "policy: fcfs -> edf needs a restart; PUT /sloserve/policy changes it"),
        ({"plan_share": 0.5}, "plan_share: 0.05 -> 0.5 needs a restart"),
        ({"http3": {"idle_s": 5.0}}, "http3.idle_s: 60.0 -> 5.0 needs a restart"),
        ({"tenant_shares": {"half_life_s": 9.0}}, "tenant_shares: shares are turned on and off by a restart"),
    ],
)
def test_what_needs_a_restart_is_refused_with_both_values(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match="nothing was changed") as refused:
        check_live(settings(), settings(**section))
    assert says in str(refused.value)


def test_names_and_order_of_classes_stay() -> None:
    before = with_classes(CLASSES)
    swapped = with_classes({"chat": {"rank": 1}, "jobs": {"rank": 0}})
    for after in (swapped, with_classes({**CLASSES, "third": {"rank": 7}})):
        with pytest.raises(ConfigError, match=r"classes: the server has .*, and would have .*: a restart adds"):
            check_live(before, after)
    check_live(before, with_classes({"chat": {"rank": 0}, "jobs": {"rank": 1, "aged_after_s": 5.0}}))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"nightly": {"rank": 2}}, {"nightly": {"rank": 2}, "batch": {"e2e_ms": 60_000}}),
        ({"nightly": {"rank": 2}, "batch": {"e2e_ms": 60_000}}, {"nightly": {"rank": 2}}),
        ({"b": {"rank": 7}, "a": {"rank": 7}}, {"a": {"rank": 7, "ttft_ms": 5}, "b": {"rank": 7}}),
        ({"background": None, "nightly": {"rank": 2}}, {"nightly": {"rank": 2}, "batch": {}, "background": None}),
    ],
)
def test_classes_of_one_rank_keep_their_order_whichever_are_stated(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    now, wanted = (plugin_settings({"sloserve": {"classes": classes}}) for classes in (before, after))
    with pytest.raises(ConfigError, match="changes their order"):
        check_live(now, wanted)
    found = plugin_settings({"sloserve": in_order({"classes": after}, now.classes)})
    check_live(now, found)
    assert found.classes.names == now.classes.names
    assert {one.name: one for one in found.classes} == {one.name: one for one in wanted.classes}


@pytest.mark.parametrize("section", [{}, {"classes": None}, {"classes": {}}, {"classes": ["batch"]}])
def test_what_states_no_classes_stays_as_it_is(section: dict[str, Any]) -> None:
    assert in_order(section, plugin_settings(None).classes) == section


def test_a_change_is_one_line_whatever_its_names_hold() -> None:
    said = in_words({("tenants", "a\nsloserve: forged"): (None, "x\x1b[2J"), ("tenants", "b" * 200): (None, "jobs")})
    assert said.startswith("tenants.a\N{REPLACEMENT CHARACTER}sloserve: forged none -> x\N{REPLACEMENT CHARACTER}[2J; ")
    assert said.isprintable() and len(said) < 250


def test_a_long_change_is_shortened() -> None:
    after = settings(objectives={f"objective-{i}": "batch" for i in range(30)})
    said = in_words(changes(settings(), after))
    assert said.endswith("; 10 more") and said.count("->") == 20
