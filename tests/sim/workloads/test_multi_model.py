"""QLM's workloads: who asks for what, how often, and the same for every dispatcher."""

from collections import Counter
from itertools import pairwise

import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import ClassTable, SLOClass, Targets
from sloserve.sim.workloads.multi_model import FleetWorkload, ModelDemand

MODELS = (
    ModelDemand("chat", 0.6, False, 8000),
    ModelDemand("code", 0.2, False, 8000),
    ModelDemand("legal", 0.15, True, 4000),
    ModelDemand("poems", 0.05, True, 4000),
)
CLASSES = ClassTable(
    {
        "batch": SLOClass("batch", 5, Targets(e2e_s=300.0)),
        "interactive": SLOClass("interactive", 1, Targets(e2e_s=20.0)),
    },
    "batch",
)


def drawn(text: str, n: int = 3000, seed: int = 0, rps: float = 10.0) -> list[WorkloadRequest]:
    return FleetWorkload.parse(text).requests(n, seed, rps, MODELS, CLASSES)


def share(requests: list[WorkloadRequest], key: str) -> dict[str, float]:
    found = Counter(r.model if key == "model" else r.slo.slo_class.name for r in requests)
    return {name: count / len(requests) for name, count in found.items()}


@pytest.mark.slow
def test_rounds_of_a_conversation_carry_the_earlier_ones_and_ask_the_same_model() -> None:
    """More rounds come at the same rate, and whoever goes on begins as before."""
    requests = drawn("w-a:rounds=5", n=1000)
    conversations: dict[int, list[WorkloadRequest]] = {}
    for request in requests:
        assert len(request.prefix_ids) == -(-request.prompt_tokens // 512)
        conversations.setdefault(request.prefix_ids[0], []).append(request)
    assert 2.0 < len(requests) / len(conversations) < 5.0  # long ones end at their limit, and some go on after the run
    assert requests[-1].arrival_s == pytest.approx(100.0, rel=0.15)
    for rounds in conversations.values():
        assert len({(r.model, r.slo.slo_class.name) for r in rounds}) == 1
        for earlier, later in pairwise(rounds):
            assert later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens
            assert later.prefix_ids[: len(earlier.prefix_ids)] == earlier.prefix_ids
    assert share(requests, "model") == pytest.approx({m.name: m.share for m in MODELS}, abs=0.06)


@pytest.mark.slow
def test_models_and_classes_have_their_shares() -> None:
    requests = drawn("w-a:latency_share=0.25")
    assert share(requests, "model") == pytest.approx({m.name: m.share for m in MODELS}, abs=0.03)
    assert share(requests, "class") == pytest.approx({"interactive": 0.25, "batch": 0.75}, abs=0.03)
    assert requests[-1].arrival_s == pytest.approx(300.0, rel=0.1)
    assert {(r.slo.slo_class.name, r.slo.targets.e2e_s) for r in requests} == {("interactive", 20.0), ("batch", 300.0)}


@pytest.mark.slow
def test_the_share_of_tail_models_leaves_their_proportions() -> None:
    found = share(drawn("w-a:tail_share=0.6"), "model")
    assert found == pytest.approx({"chat": 0.3, "code": 0.1, "legal": 0.45, "poems": 0.15}, abs=0.03)


@pytest.mark.slow
def test_one_model_is_the_most_asked_for_and_mega_prompts_fill_a_context() -> None:
    assert share(drawn("w-b", 50), "model") == {"chat": 1.0}
    requests = drawn("w-c:mega_share=0.1")
    mega = [r for r in requests if r.task == "mega"]
    assert len(mega) == pytest.approx(300, abs=60)
    context = {m.name: m.context for m in MODELS}
    assert all(0.3 <= r.prompt_tokens / context[r.model] <= 0.6 for r in mega)
    assert all(r.prompt_tokens + r.output_tokens <= context[r.model] for r in mega)


def test_a_seed_is_a_seed_and_an_option_moves_nothing_else() -> None:
    assert drawn("w-a", 50) == drawn("w-a", 50) != drawn("w-a", 50, seed=1)
    more = drawn("w-a:latency_share=0.9", 50)
    assert [(r.model, r.arrival_s, r.prompt_tokens) for r in more] == [
        (r.model, r.arrival_s, r.prompt_tokens) for r in drawn("w-a", 50)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w-d", "workload 'w-d' is unknown; known here: w-a, w-b, w-c"),
        ("w-a:tail=1", "option 'tail' is unknown; known here: latency_share, tail_share, mega_share, cv"),
        ("w-a:cv=0", "cv: '0' is not a number from 0 to 20"),
        ("w-a:latency_share=1.5", "latency_share: '1.5' is not a number from 0 to 1"),
    ],
)
def test_wrong_text_says_what_there_is(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FleetWorkload.parse(text)
    assert message in str(caught.value)


def test_a_share_of_tail_models_needs_tail_models() -> None:
    with pytest.raises(ConfigError, match="no tail models beside others; set tail: true for some"):
        FleetWorkload.parse("w-a:tail_share=0.5").requests(5, 0, 1.0, MODELS[:2], CLASSES)
