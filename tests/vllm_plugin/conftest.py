"""Small virtual engines for the tests of the plugin. vLLM is imported when the first is built."""

from collections.abc import Callable
from typing import Any

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.planning_cost import constant_cost
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.scheduler.policy import Policy


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Builds an engine of four slots and 40 KV blocks. policy: ``None`` (stock), a name, or a policy object."""

    def make(
        policy: Policy | str | None,
        *,
        section: dict[str, Any] | None = None,
        plan_cost_us: float = 0.0,
        noise: StepNoise | None = None,
        **settings: Any,
    ) -> Any:
        from sloserve.engine.virtual.engine_settings import EngineSettings
        from sloserve.estimator.step_time.profile import load_profile
        from sloserve.vllm_plugin.virtual.engine import VirtualEngine

        size = {"kv_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 256} | settings
        config = None if policy is None else {"sloserve": dict(section or {})}
        if isinstance(policy, Policy):
            monkeypatch.setattr("sloserve.engine.policy_maker.make_policy", lambda *args, **kwargs: policy)
        elif config is not None:
            config["sloserve"]["policy"] = policy
        costs = constant_cost(plan_cost_us)
        return VirtualEngine(
            EngineSettings(**size), load_profile("h100-llama3-8b"), config, planning_costs=costs, noise=noise
        )

    return make


@pytest.fixture
def request_of() -> Callable[..., WorkloadRequest]:
    """A request of a workload; keywords that name targets become its SLO."""

    def make(
        request_id: str,
        arrival_s: float = 0.0,
        prompt_tokens: int = 20,
        output_tokens: int = 10,
        *,
        slo_class: str | None = None,
        ttft_s: float | None = None,
        e2e_s: float | None = None,
        **others: Any,
    ) -> WorkloadRequest:
        slo = DEFAULT_CLASSES.slo(slo_class, Targets(ttft_s=ttft_s, e2e_s=e2e_s))
        return WorkloadRequest(request_id, arrival_s, prompt_tokens, output_tokens, slo, **others)

    return make
