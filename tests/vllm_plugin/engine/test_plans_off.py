"""In which configurations vLLM schedules by itself, and in which plans may not pause."""

import inspect
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVGroups
from tests.other_vllm import IS_0_30, IS_0_31

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vllm_config.model_config.runner_type": "pooling"}, "pooling models"),
        ({"use_pp": True}, "pipeline parallelism"),
        ({"is_encoder_decoder": True}, "encoder-decoder models"),
        (
            {"vllm_config.parallel_config.prefill_context_parallel_size": 2},
            "context parallelism (prefill_context_parallel_size 2)",
        ),
    ],
)
def test_plans_are_off_by_name(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    from sloserve.vllm_plugin.engine import plans_off

    scheduler = build("edf").scheduler
    assert plans_off.identity_reason(scheduler) is None
    for path, value in changes.items():
        owner, _, name = path.rpartition(".")
        monkeypatch.setattr(attrgetter(owner)(scheduler) if owner else scheduler, name, value)
    assert plans_off.identity_reason(scheduler) == reason


METHODS = ("eagle", "eagle3", "mtp", "dspark", "ngram")
UNCHECKED = "speculative decoding on the V2 model runner before vLLM 0.32, which may accept unchecked drafts"
NOT_SHOWN = "where equal replies are not yet shown on a GPU"


@pytest.mark.parametrize(
    ("method", "is_v2", "reason"),
    [
        *(
            (method, True, f"speculative decoding by {method} on the V2 model runner, {NOT_SHOWN}")
            for method in METHODS
        ),
        ("draft_model", True, UNCHECKED if IS_0_30 or IS_0_31 else None),
        ("eagle", False, None),
        ("mtp", False, None),
    ],
)
def test_pauses_with_drafts(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, method: str, is_v2: bool, reason: str | None
) -> None:
    from sloserve.vllm_plugin.engine import plans_off

    scheduler = build("edf").scheduler
    assert plans_off.no_pauses_reason(scheduler) is None
    scheduler.num_spec_tokens = 2
    scheduler.vllm_config.speculative_config = SimpleNamespace(method=method)
    monkeypatch.setattr(type(scheduler.vllm_config), "use_v2_model_runner", is_v2)
    assert plans_off.no_pauses_reason(scheduler) == reason


@pytest.fixture(autouse=True)
def lmcache(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Set the version of LMCache that is installed, 0.5.6 at first; ``None`` for none whose version is known."""

    def install(version: str | None) -> None:
        def installed(name: str) -> str:
            if version is None:
                raise PackageNotFoundError(name)
            return version

        monkeypatch.setattr("sloserve.vllm_plugin.engine.other_connectors.version", installed)

    install("0.5.6")
    return install


def _connector(name: str, package: str, **has: Any) -> Any:
    return type(name, (), {"__module__": f"{package}.somewhere", **has})()


@pytest.mark.parametrize(
    ("connector", "may_pause"),
    [
        (_connector("NixlConnector", "vllm"), True),
        (_connector("SwapConnector", "sloserve"), True),
        (_connector("SimpleCPUOffloadConnector", "vllm"), True),
        (_connector("MooncakeStoreConnector", "vllm"), True),
        (_connector("LMCacheMPConnector", "lmcache"), True),
        (_connector("HiSparseConnector", "vllm"), False),
        (_connector("LMCacheConnectorV1", "vllm"), False),
        (_connector("NixlConnector", "elsewhere"), False),
        (_connector("Elsewhere", "elsewhere", sloserve_pauses=True), True),
    ],
    ids=lambda one: type(one).__name__,
)
def test_pauses_beside_connectors_that_are_known_to_follow_the_steps(
    build: Callable[..., Any], connector: Any, may_pause: bool
) -> None:
    from sloserve.vllm_plugin.engine import plans_off

    scheduler = build("edf").scheduler
    known = _connector("OffloadingConnector", "vllm")
    for used in (connector, SimpleNamespace(_connectors=[known, connector])):
        scheduler.connector = used
        reason = plans_off.no_pauses_reason(scheduler)
        assert (reason is None) == may_pause
        assert may_pause or f"KV connector {type(connector).__name__}, of which" in str(reason)


def test_no_plan_preempts_beside_a_connector_that_copies_blocks_of_preempted_requests(
    build: Callable[..., Any],
) -> None:
    from sloserve.vllm_plugin.engine import plans_off

    scheduler = build("edf").scheduler
    for connector, may_preempt in [
        (_connector("HF3FSKVConnector", "vllm"), False),
        (_connector("LMCacheMPConnectorUpstream", "vllm"), False),
        (_connector("LMCacheMPConnector", "lmcache"), True),
        (_connector("OffloadingConnector", "vllm"), True),
    ]:
        scheduler.connector = SimpleNamespace(_connectors=[_connector("NixlConnector", "vllm"), connector])
        reason = plans_off.no_preemptions_reason(scheduler)
        assert (reason is None) == may_preempt
        assert may_preempt or f"KV connector {type(connector).__name__} may still copy" in str(reason)


@pytest.mark.parametrize(
    ("version", "is_read"),
    [("0.5.6", True), ("0.5.6+cu129", True), ("0.5.5", False), ("0.5.7", False), (None, False)],
)
def test_plans_spare_requests_beside_a_version_of_lmcache_that_was_not_read(
    build: Callable[..., Any], lmcache: Callable[[str | None], None], version: str | None, is_read: bool
) -> None:
    """LMCache 0.5.5 stores blocks on a CUDA device without waiting for the copies when a request is preempted."""
    from sloserve.vllm_plugin.engine import plans_off

    scheduler = build("edf").scheduler
    scheduler.connector = _connector("LMCacheMPConnector", "lmcache")
    lmcache(version)
    reasons = [plans_off.no_pauses_reason(scheduler), plans_off.no_preemptions_reason(scheduler)]
    if is_read:
        assert reasons == [None, None]
    else:
        who = f"KV connector LMCacheMPConnector of LMCache {version or 'whose version is unknown'}"
        said = f"{who} (only 0.5.6 was checked; install it)"
        assert all(str(reason).startswith(said) for reason in reasons)


def test_each_connector_of_vllms_is_known_or_refused_by_a_reason_of_its_own() -> None:
    """A connector that a new vLLM brings is neither: read whether it follows the steps, then list it."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from sloserve.vllm_plugin.engine.other_connectors import FOLLOW_STEPS

    made_of_others = {"MultiConnector"}
    refused = {"ExampleHiddenStatesConnector", "FlexKVConnectorV1", "HiSparseConnector", "LMCacheConnectorV1"}
    found = {name for name in KVConnectorFactory._registry if not name.startswith("Sl") and name != "SwapConnector"}
    assert found <= FOLLOW_STEPS["vllm"] | FOLLOW_STEPS["lmcache"] | made_of_others | refused


def test_the_known_classes_are_those_that_vllm_makes() -> None:
    """The guard reads the name of the class, which is not always the name that an operator gives."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from sloserve.vllm_plugin.engine.other_connectors import FOLLOW_STEPS

    for name in FOLLOW_STEPS["vllm"]:
        made = KVConnectorFactory._registry[name.removesuffix("Upstream")]
        module = find_spec(inspect.getclosurevars(made).nonlocals["module_path"])
        assert module is not None and module.origin is not None
        folder = Path(module.origin).parent
        made_there = re.compile(rf"^(class {name}\(|{name} = )", re.MULTILINE)
        assert any(made_there.search(file.read_text()) for file in folder.glob("*.py")), name


def test_a_shadow_policy_that_counts_one_block_size_does_not_end_the_plans_of_another(
    build: Callable[..., Any],
) -> None:
    groups = (KVGroups(1, 16), KVGroups(1, 16, window_tokens=64))
    scheduler = build("edf", kv_groups=groups).scheduler
    with pytest.raises(ConfigError, match="the shadow policy cannot plan with a KV cache of several groups"):
        scheduler.set_policies(shadow_policy="fastserve")
    assert scheduler.status()["plans_off"] is None and scheduler.planner is not None
    scheduler.set_policies("fastserve")
    assert "several groups" in scheduler.status()["plans_off"] and scheduler.planner is None
    scheduler.set_policies("edf", "sjf")
    assert scheduler.status()["plans_off"] is None and scheduler.planner.shadow is not None
