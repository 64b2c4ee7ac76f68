"""Which model a request gets: what bars a model, who is in time, conversations, sets and the shadow."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.slo import Targets
from sloserve.fleet.router.candidates import Barred, Candidate, RequestFacts
from sloserve.fleet.router.choose import SHIPPED, ModelChooser, RoutedBy, load_policy
from sloserve.fleet.router.conversations import Conversations
from sloserve.fleet.router.features import RawFeatures, Schema, features
from sloserve.fleet.router.network import MAX_FILE_BYTES, Network, load_network
from sloserve.fleet.router.settings import RouterSettings, parse_router, read_router, system_of

EXAMPLE = Path(__file__).parents[3] / "configs" / "router.yaml"
SETTINGS = read_router(EXAMPLE).model_copy(update={"shadow": None})
FACTS = RequestFacts("interactive", Targets(e2e_s=3.0), prompt_tokens=100, output_tokens=128, context_tokens=101)
SMALL, MIDDLE, LARGE = SETTINGS.models
IDLE = (
    Candidate(SMALL, 2048, 0.25, batches=(0, 3)),
    Candidate(MIDDLE, 2048, 0.5, batches=(1,)),
    Candidate(LARGE, 2048, 1.5, batches=(2,)),
)


def busy(model: str, completion_s: float, **changes: object) -> tuple[Candidate, ...]:
    return tuple(replace(c, completion_s=completion_s, **changes) if c.model == model else c for c in IDLE)  # type: ignore[arg-type]


def test_the_best_in_time_then_the_next_then_the_least_late() -> None:
    chooser = ModelChooser(SETTINGS)
    assert chooser.choose(FACTS, IDLE, 0.0).model == LARGE
    assert chooser.choose(FACTS, busy(LARGE, 2.9), 1.0).model == MIDDLE  # in time only if nothing goes wrong
    assert chooser.choose(FACTS, busy(LARGE, 2.9, error=0.0), 1.0).model == LARGE
    assert chooser.choose(FACTS, busy(LARGE, float("nan")), 1.0).model == MIDDLE
    hurried = replace(FACTS, targets=Targets(e2e_s=0.1))
    late = chooser.choose(hurried, IDLE, 2.0)
    assert (late.model, late.why) == (SMALL, RoutedBy.SOONEST)


def test_time_that_is_gone_and_the_networks_time_count() -> None:
    chooser = ModelChooser(SETTINGS)
    assert chooser.choose(replace(FACTS, elapsed_s=1.6), IDLE, 0.0).model == MIDDLE
    assert chooser.choose(replace(FACTS, network_s=1.6), IDLE, 0.0).model == MIDDLE
    first = replace(FACTS, targets=Targets(ttft_s=0.5))
    assert chooser.choose(first, busy(LARGE, 1.5, first_s=0.6), 0.0).model == MIDDLE
    none = replace(FACTS, targets=Targets())  # 128 tokens of 15 ms
    assert chooser.choose(none, busy(LARGE, 1.9), 0.0).model == MIDDLE


def test_each_bar_is_named() -> None:
    tools = replace(FACTS, needs=frozenset({"tools"}))
    able = tuple(replace(c, supports=frozenset({"tools"})) for c in IDLE)
    chooser = ModelChooser(SETTINGS)
    cases = {
        Barred.NOT_ALLOWED: replace(able[2], allowed=False),
        Barred.TOO_LONG: replace(able[2], max_model_len=100),  # the output needs room, too
        Barred.UNSUPPORTED: IDLE[2],
        Barred.ASLEEP: replace(able[2], ready_in_s=float("inf")),
    }
    for reason, large in cases.items():
        found = chooser.choose(tools, (*able[:2], large), 0.0)
        assert (found.model, dict(found.barred)) == (MIDDLE, {LARGE: reason})
    assert chooser.choose(tools, (*able[:2], replace(able[2], ready_in_s=1.0)), 0.0).model == LARGE
    assert chooser.choose(tools, (*able[:2], replace(able[2], ready_in_s=2.0)), 0.0).model == MIDDLE
    nothing = chooser.choose(tools, IDLE, 0.0)
    assert (nothing.model, nothing.why, len(nothing.barred)) == (None, RoutedBy.NONE, 3)
    only = chooser.choose(tools, able[:1], 0.0)
    assert (only.model, only.why) == (SMALL, RoutedBy.ONLY)


def test_a_model_that_takes_no_more_of_the_class_is_passed_over_while_another_does() -> None:
    chooser = ModelChooser(SETTINGS)
    assert chooser.choose(FACTS, (*IDLE[:2], replace(IDLE[2], full=True)), 0.0).model == MIDDLE
    assert chooser.choose(FACTS, tuple(replace(c, full=True) for c in IDLE), 1.0).model == LARGE


def test_a_set_limits_the_choice_and_a_task_decides_it() -> None:
    chooser = ModelChooser(SETTINGS)
    assert chooser.choose(FACTS, IDLE, 0.0, tuple(SETTINGS.sets["small"])).model == MIDDLE
    table = SETTINGS.table
    assert table.task("piqa", "interactive") == "piqa" and table.task("chess", "interactive") == "openbookqa"
    unknown = table.of(table.task(None, "batch"), SETTINGS.models)
    np.testing.assert_allclose(unknown, [(0.45 + 0.80 + 0.82 + 0.70) / 4, (0.78 + 0.95 + 0.96 + 0.94) / 4, 1.0])


def test_a_conversation_stays_while_its_model_is_in_time() -> None:
    chooser = ModelChooser(SETTINGS)
    talk = replace(FACTS, conversation="tenant-a/7")
    assert chooser.choose(talk, busy(LARGE, 9.0), 0.0).model == MIDDLE
    stays = chooser.choose(talk, IDLE, 1.0)
    assert (stays.model, stays.why) == (MIDDLE, RoutedBy.CONVERSATION)
    moved = chooser.choose(talk, busy(MIDDLE, 9.0), 2.0)
    assert (moved.model, moved.why) == (LARGE, RoutedBy.BEST)
    assert chooser.choose(talk, IDLE, 3.0).why is RoutedBy.CONVERSATION


def test_conversations_are_bounded_whatever_clients_call_them() -> None:
    table = Conversations(2)
    for name in ("a" * 10**6, "b", "c"):
        table.went_to(name, "m")
    assert len(table) == 2 and table.model_of("a" * 10**6) is None and table.model_of("c") == "m"
    none = Conversations(0)
    none.went_to("a", "m")
    assert len(none) == 0


def valuing(*values: float) -> Network:
    """A net that values models so, whatever it sees."""
    inputs = len(Schema(3).names)
    hidden = (np.zeros((inputs, 2), np.float32), np.zeros(2, np.float32))
    middle = (np.zeros((2, 2), np.float32), np.zeros(2, np.float32))
    last = (np.zeros((2, 3), np.float32), np.array(values, np.float32))
    about = {"schema": Schema(3).as_text(), "models": ",".join(SETTINGS.models)}
    return Network((hidden, middle, last), about)


def test_a_policy_decides_among_those_in_time_and_a_shadow_only_speaks() -> None:
    chooser = ModelChooser(SETTINGS.model_copy(update={"shadow": "greedy"}), valuing(1.0, 3.0, 2.0))
    found = chooser.choose(FACTS, IDLE, 0.0)
    assert (found.model, found.why, found.shadow) == (MIDDLE, RoutedBy.POLICY, LARGE)
    assert chooser.choose(FACTS, busy(MIDDLE, 9.0), 1.0).model == LARGE
    broken = ModelChooser(SETTINGS, valuing(1.0, float("nan"), 2.0))
    assert broken.choose(FACTS, IDLE, 0.0).model == LARGE  # greedy


@pytest.mark.slow
def test_a_share_of_requests_explores_only_models_in_time_and_says_how_likely_that_was() -> None:
    settings = SETTINGS.model_copy(update={"explore": 0.1})
    chooser, same = ModelChooser(settings, seed=b"a"), ModelChooser(settings, seed=b"a")
    late = busy(SMALL, 9.0)  # two models are left
    found = [chooser.choose(FACTS, late, i * 0.1) for i in range(1500)]
    again = [same.choose(FACTS, late, i * 0.1) for i in range(1500)]
    assert [one.model for one in found] == [one.model for one in again]
    models = [one.model for one in found]
    assert set(models) == {MIDDLE, LARGE} and models.count(MIDDLE) / 1500 == pytest.approx(0.05, abs=0.015)
    chances = {one.model: one.decision.propensity for one in found if one.decision is not None}
    assert chances == {LARGE: pytest.approx(0.95), MIDDLE: pytest.approx(0.05)}
    assert {one.why for one in found if one.model == MIDDLE} == {RoutedBy.EXPLORED}
    other = ModelChooser(settings, seed=b"b")
    assert [other.choose(FACTS, late, i * 0.1).model for i in range(1500)] != models


@pytest.mark.slow
def test_neither_conversations_nor_second_choices_nor_late_requests_explore() -> None:
    chooser = ModelChooser(SETTINGS.model_copy(update={"explore": 0.1}))
    talk = replace(FACTS, conversation="a", begins=False)
    first = chooser.choose(replace(talk, begins=True), IDLE, 0.0).model
    stays = [chooser.choose(talk, IDLE, float(i)) for i in range(300)]
    assert {(one.model, one.why) for one in stays} == {(first, RoutedBy.CONVERSATION)}
    assert all(one.decision is not None and one.decision.propensity == 1.0 for one in stays)
    seconds = [chooser.choose(FACTS, IDLE, 300.0 + i, again=True) for i in range(300)]
    assert {(one.model, one.decision) for one in seconds} == {(LARGE, None)}
    hurried = replace(FACTS, targets=Targets(e2e_s=0.1))
    late = [chooser.choose(hurried, IDLE, 600.0 + i) for i in range(300)]
    assert {(one.model, one.why) for one in late} == {(SMALL, RoutedBy.SOONEST)}


@pytest.mark.slow
def test_a_policy_that_is_worse_than_greedy_is_given_up_unless_the_settings_keep_it() -> None:
    worse = valuing(1.0, 0.0, 0.0)  # the smallest model, always
    chooser = ModelChooser(SETTINGS.model_copy(update={"log": "choices.jsonl"}), worse)
    for i in range(2600):
        decision = chooser.choose(FACTS, IDLE, float(i)).decision
        assert decision is not None and decision.trial is not None and decision.features is not None
        chooser.guard.ended(decision.trial, decision.quality)  # type: ignore[union-attr]
    assert chooser.guard is not None and chooser.guard.has_lost
    assert chooser.guard.mean == pytest.approx(0.70 - 1.0)  # openbookqa, the task of the class
    choice = chooser.choose(FACTS, IDLE, 4000.0)
    assert (choice.model, choice.why) == (LARGE, RoutedBy.BEST)
    assert chooser.choose(FACTS, IDLE, 4001.0, again=True).model == LARGE
    kept = ModelChooser(SETTINGS.model_copy(update={"rollback": False}), worse)
    assert kept.guard is None and {kept.choose(FACTS, IDLE, float(i)).model for i in range(300)} == {SMALL}


def test_a_policy_is_read_as_written_and_only_for_the_same_features_and_models(tmp_path: Path) -> None:
    path, schema = tmp_path / "p.safetensors", Schema(3).as_text()
    valuing(1.0, 3.0, 2.0).save(path)
    read = load_network(path, schema, SETTINGS.models)
    assert read.values(np.ones((2, 15))).tolist() == [[1.0, 3.0, 2.0]] * 2
    with pytest.raises(ConfigError, match="trained on features v1:.*use the policy greedy"):
        load_network(path, Schema(4).as_text())
    with pytest.raises(ConfigError, match="trained for the models opt-125m, opt-1.3b, opt-6.7b, here they are a, b, c"):
        load_network(path, schema, ("a", "b", "c"))
    whole = path.read_bytes()
    for wrong in (
        whole[:-2],
        whole[:50],
        b"",
        b"\xff" * 64,
        whole.replace(b"F16", b"F32"),
        whole.replace(b"[0,60]", b"[    ]"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(ConfigError, match="make one with `sloserve train-router`"):
            load_network(path, schema)


@pytest.mark.slow
def test_a_file_that_is_no_policy_is_refused_whatever_it_says(tmp_path: Path) -> None:
    path, schema = tmp_path / "p.safetensors", Schema(3).as_text()
    valuing(1.0, float("nan"), 2.0).save(path)
    with pytest.raises(ConfigError, match="a number is not finite"):
        load_network(path, schema)
    valuing(1.0, 3.0, 2.0).save(path)
    whole = path.read_bytes()
    for shape in (b"[99999999999,2]", b"[-1,2]", b"[2.5,12]", b'["a",2]', b"[[15],2]", b"[0,2]"):
        length = int.from_bytes(whole[:8], "little") + len(shape) - len(b"[15,2]")
        path.write_bytes(length.to_bytes(8, "little") + whole[8:].replace(b"[15,2]", shape))
        with pytest.raises(ConfigError, match=r"p\.safetensors: (is not a router's policy|its net does not have)"):
            load_network(path, schema)
    path.write_bytes(b"\0" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="has at most 16777216"):
        load_network(path, schema)
    with pytest.raises(ConfigError, match="/dev/zero: no such file"):  # which has no end
        load_network(Path("/dev/zero"), schema)


def test_the_shipped_policy_is_for_the_example_and_refused_for_others() -> None:
    assert load_policy(SETTINGS, SHIPPED) is not None
    chooser = ModelChooser.of(SETTINGS.model_copy(update={"policy": SHIPPED}))
    idle = tuple(replace(c, completion_s=s, batches=(0,) * 4) for c, s in zip(IDLE, (0.25, 0.54, 1.51), strict=True))
    plain = replace(FACTS, targets=Targets())
    assert [chooser.choose(plain, idle, time_s).model for time_s in (0.0, 0.2, 0.4)] == [LARGE] * 3
    full = tuple(replace(c, batches=(40,) * 4, completion_s=1.0 + c.completion_s) for c in idle)
    assert chooser.choose(plain, full, 0.6).model in (SMALL, MIDDLE)
    others = SETTINGS.model_copy(update={"models": [SMALL, LARGE], "policy": SHIPPED})
    with pytest.raises(ConfigError, match="policy: shipped: .*use the policy greedy"):
        ModelChooser.of(others)


def test_features_have_the_names_of_their_schema() -> None:
    one = np.ones((1, 3))
    each = np.ones(1)
    raw = RawFeatures(
        least=one, mean=one, predicted_s=one, quality=one,
        rate_per_s=each, replicas=each, limit_s=2 * each, network_s=each, weight=each,
    )  # fmt: skip
    row = features(raw)
    assert row.shape == (1, len(Schema(3).names))
    named = dict(zip(Schema(3).names, row[0], strict=True))
    assert named["network_share"] == 0.5 and named["predicted_share/2"] == 1.0 and named["weight"] == 0.0


FAULTS = {
    "models: [a]": ["router:1:1: quality: is missing"],
    "models: [a, b]\nquality: {t: {a: 0.5, c: 2}}": ["quality.t.c: 2"],
    "models: [a, b]\nquality: {t: {a: 0.5, c: 1.0}}\nsets: {auto: [a], s: [d]}\ntask_by_class: {x: u}": [
        "router:2:23: quality.t.c: 'c' is unknown; known here: a, b",
        "sets.s.0: 'd' is unknown",
        "task_by_class.x: 'u' is unknown; known here: t",
        "sets.auto: 'auto' is taken",
        "quality.t: no quality of b; give a number from 0 to 1",
    ],
    "models: [a, a]\nquality: {t: {a: 0.5}}\nsets: {s: []}": [
        "router:1:13: models.1: 'a' is there already",
        "router:3:8: sets.s: no models",
    ],
    "models: [a]\nquality: {t: {a: 0.5}}\nsystem: {speed: {}, network_ms: [0, 5], rates: [5, 1]}": [
        "router:3:10: system.speed: no speed of a; give {profile: NAME}",
        "router:3:21: system.network_ms: 0, 5 are not two ascending numbers",
        "router:3:41: system.rates: 5, 1 are not two ascending numbers",
    ],
    "models: [a]\nquality: {t: {a: 0.5}}\nsystem: {speed: {a: {profile: x, base_ms: 1}}}": [
        "router:3:18: system.speed.a: give profile, or base_ms and seq_ms"
    ],
}


@pytest.mark.parametrize("text", FAULTS)
def test_every_fault_of_the_file_is_named_at_its_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_router(text)
    for line in FAULTS[text]:
        assert line in str(caught.value)


def test_what_is_simulated_is_said_or_asked_for() -> None:
    system, phases = system_of(read_router(EXAMPLE))
    assert system.models == (SMALL, MIDDLE, LARGE) and phases.rates == (4.0, 1600.0)
    # 15 ms a token leave a large model less room than the paper's 40 ms left it.
    large = system.speeds[2]
    assert 1.2 < 0.015 / (large.base_s + large.seq_s) < 1.4
    plain = RouterSettings.model_validate({"models": ["a"], "quality": {"t": {"a": 1.0}}})
    with pytest.raises(ConfigError, match="system: is missing"):
        system_of(plain)
