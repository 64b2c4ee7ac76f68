"""A model of a fleet as replicas in virtual time: its engine, its policy and its places, from the fleet's file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import Profile
from sloserve.fleet.contract.engine_places import EnginePlaces
from sloserve.fleet.fleet import Fleet, FleetModel
from sloserve.fleet.planning.counterfactual import LINE
from sloserve.scheduler.settings import KEY
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.replicas import serve_replicated


@dataclass(frozen=True, slots=True)
class ReplayedModel:
    """One model on one kind of device.

    Args:
        settings: Settings of its engine.
        profile: Step times of its engine.
        config: vLLM's additional config, with the policy; ``None`` for stock's scheduler.
        places: Places of each replica.
    """

    settings: EngineSettings
    profile: Profile
    config: dict[str, Any] | None
    places: EnginePlaces

    @classmethod
    def of(cls, fleet: Fleet, model: str, device: str) -> "ReplayedModel":
        """Return the model as the fleet's file describes it. Raises: ConfigError for an engine that cannot be."""
        served = fleet.models[model]
        profile = served.profiles[device]
        settings = engine_settings(served, profile)
        # Their policies need no measured planning cost, no saved lengths, and no random start here.
        config = {KEY: dict(fleet.section)}
        return cls(settings, profile, config, EnginePlaces(settings.max_num_seqs))

    def serve(
        self, requests: Sequence[WorkloadRequest], count: int, on_progress: Callable[[int], None] | None = None
    ) -> RunLog:
        """Serve requests with ``count`` replicas; see :func:`~sloserve.sim.replicas.serve_replicated`."""
        return serve_replicated(
            lambda _: ModelEngine(self.settings, self.profile, self.config),
            requests,
            count,
            places=self._open_to,
            on_progress=on_progress,
        )

    def _open_to(self, request: WorkloadRequest) -> float:
        """Return the places that are open to a request: lines of batches may not use the ones of streams."""
        return self.places.all - (self.places.for_streams if request.task == LINE else 0)


def engine_settings(
    model: FleetModel, profile: Profile, swap_space_gib: float = 0.0, *, prefix_caching: bool = False
) -> EngineSettings:
    """Return the settings of an engine for ``model`` on the machine of ``profile``, with ``swap_space_gib`` its own."""
    flags = model.flags
    return EngineSettings.of_profile(
        profile,
        max_num_seqs=flags.max_num_seqs or profile.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens or profile.max_num_batched_tokens,
        max_model_len=flags.max_model_len or profile.max_model_len,
        swap_space_gib=swap_space_gib,
        enable_prefix_caching=prefix_caching,
    )
