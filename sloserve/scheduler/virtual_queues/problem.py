"""The facts by which a plan for a fleet's state is judged: times of groups on instances, deadlines, swaps.

Times are quantiles: the mean plus a multiple of the spread of lengths and of the error of the estimate. Both are
counted as common to all groups, so that times add up along a queue; were they independent, queues of many groups would
end earlier than foreseen.

Differs from QLM: Eq. 13 is the lateness at this quantile, not an expected value, and Eq. 12 is no constraint, so that
there is a plan where no order keeps all deadlines.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.fleet import FleetProblem
from sloserve.estimator.completion.group_time import Serving, group_times, running_time
from sloserve.scheduler.virtual_queues.contract import FleetState, GroupSums, InstanceState, ModelState, Swap


@dataclass(frozen=True)
class PlanSettings:
    """Weights of a plan, and limits of the search for it.

    Args:
        chance: Chance with which each time of a plan holds (Delta of Eq. 12, which is no constraint here).
        relative_error: Standard deviation of the estimate's own error, as a share.
        min_active_s: Least seconds for which a model stays once it has come.
        tail_max_wait_s: Seconds after their arrival at which requests without a deadline are due, so that no model
            waits for ever.
        swap_price: Seconds of lateness of one request that a second of swapping counts as.
        moves_a_group: Moves of the search for each group.
        least_moves: Least moves of the search.
        most_moves: Most moves of the search.
        least_gain: Share of the last plan's cost that another plan must save.
        scale_up: Whether to say how many instances would do if the present ones do not.
        use_idle: Whether idle instances get work of others, see
        :mod:`sloserve.scheduler.virtual_queues.idle_instances`.
    """

    chance: float = 0.9
    relative_error: float = 0.1
    min_active_s: float = 10.0
    tail_max_wait_s: float = 600.0
    swap_price: float = 1.0
    moves_a_group: int = 300
    least_moves: int = 80_000
    most_moves: int = 300_000
    least_gain: float = 0.02
    scale_up: bool = True
    use_idle: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.chance < 1.0:
            raise ValueError(f"chance: {self.chance} is not within 0..1 exclusive")
        for name in ("relative_error", "min_active_s", "tail_max_wait_s", "swap_price", "moves_a_group", "least_gain"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative; the least is 0")

    def moves(self, groups: int) -> int:
        """Return how many moves the search makes for a plan of ``groups`` groups."""
        return min(max(self.moves_a_group * groups, self.least_moves), self.most_moves)


_NO_SWAP_S = 1e6
"""Seconds of a model swap that is not in the table: longer than any deadline is worth."""

ServingOf = Mapping[tuple[str, str], Serving]
"""Serving figures by model and kind of device."""


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Times of groups on the kinds of instances.

    Args:
        models: Models as a problem orders them.
        kind: Index of each instance's kind.
        seconds: Work, judged and own time of each group in seconds, ``[kinds, 3, groups]``.
    """

    models: tuple[str, ...]
    kind: IntArray
    seconds: FloatArray


class ProblemMaker:
    """Builds problems; keeps no more than what follows from its own arguments."""

    def __init__(self, serving: ServingOf, settings: PlanSettings) -> None:
        self._serving, self._settings = serving, settings
        z = float(ndtri(settings.chance))
        self._sd, self._factor = max(z, 0.0), 1.0 + z * settings.relative_error
        self._table: Mapping[Swap, float] | None = None
        self._models: tuple[str, ...] = ()
        self._swaps: dict[str, tuple[FloatArray, FloatArray]] = {}

    def serves(self, model: str, device: str) -> bool:
        """Return whether the model's times on that kind of device are known."""
        return (model, device) in self._serving

    def times(self, state: FleetState, groups: list[GroupSums]) -> Times:
        """Return how long the groups take on each kind of instance: the more expensive half of :meth:`problem`."""
        models = tuple(sorted({model for instance in state.instances for model in instance.models}))
        # A group with prompts in the cache of an instance takes less time there than elsewhere.
        cached = {name for group in groups for name in group.cached_tokens}
        kinds: dict[tuple[str, str | None], int] = {}
        kind = [kinds.setdefault((i.device, i.name if i.name in cached else None), len(kinds)) for i in state.instances]
        return Times(
            models,
            np.array(kind, np.int64),
            np.array([self._times(device, name, models, groups) for device, name in kinds]).reshape(
                len(kinds), 3, len(groups)
            ),
        )

    def problem(self, state: FleetState, groups: list[GroupSums], times: Times | None = None) -> FleetProblem:
        """Return the problem of these groups, each of which some instance serves.

        Args:
            state: The state of the fleet.
            groups: The groups to plan.
            times: Times of the same state and groups; ``None`` to compute them.
        """
        found = self.times(state, groups) if times is None else times
        models = found.models
        at = {model: k for k, model in enumerate(models)}
        work_s, judged_s, own_s = np.ascontiguousarray(found.seconds.swapaxes(0, 1))
        settings, now_s = self.settings, state.now_s
        wait_s = [group.first_arrival_s + settings.tail_max_wait_s for group in groups]
        dues = np.array([(group.first_due_s, group.last_due_s) for group in groups]).reshape(-1, 2)
        dues = np.where(np.isinf(dues), np.array(wait_s)[:, None], dues) - now_s
        busy = np.array([self._busy(instance, now_s) for instance in state.instances]).reshape(-1, 2)
        return FleetProblem(
            model=np.array([at[group.model] for group in groups], np.int64),
            first_due_s=dues[:, 0],
            last_due_s=dues[:, 1],
            weight=np.array([group.requests * group.weight for group in groups]),
            work_s=work_s,
            judged_s=judged_s,
            own_s=own_s,
            kind=found.kind,
            active=np.array([-1 if (m := i.active) is None else at[m] for i in state.instances], np.int64),
            ready_s=busy[:, 0],
            drained_s=busy[:, 1],
            swap_s=self._swap_s(state, models).reshape(-1, len(models) + 1, len(models)),
            min_active_s=settings.min_active_s,
            swap_price=settings.swap_price,
        )

    @property
    def settings(self) -> PlanSettings:
        return self._settings

    def _times(
        self, device: str, name: str | None, models: tuple[str, ...], groups: list[GroupSums]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Work, judged and own times of all groups on a kind of instance; 0 where it does not serve the model."""
        work, judged, own = (np.zeros(len(groups)) for _ in range(3))
        of_model: dict[str, list[int]] = {}
        for k, group in enumerate(groups):
            of_model.setdefault(group.model, []).append(k)
        for model in models:
            serving, places = self._serving.get((model, device)), of_model.get(model)
            if serving is None or places is None:
                continue
            sums = np.array(
                [
                    (
                        group.requests,
                        max(group.prompt_tokens - (group.cached_tokens.get(name, 0.0) if name else 0.0), 0.0),
                        group.output_tokens,
                        group.output_tokens2,
                        group.until_first_token,
                    )
                    for group in (groups[k] for k in places)
                ]
            )
            found = group_times(serving, sums[:, 0], sums[:, 1], sums[:, 2], sums[:, 3])
            work_s = (found.work_s + self._sd * found.work_sd_s) * self._factor
            work[places] = np.maximum(work_s, [groups[k].comes_over_s for k in places])
            own[places] = (found.own_s + self._sd * found.own_sd_s) * self._factor
            judged[places] = np.where(sums[:, 4] > 0, found.first_token_s * self._factor, own[places])
        return work, judged, own

    def _busy(self, instance: InstanceState, now_s: float) -> tuple[float, float]:
        """Return the seconds until the instance could serve more of its active model, and until that may leave."""
        swapping_s = max(instance.ready_s - now_s, 0.0)
        serving = self._serving.get((instance.active or "", instance.device))
        if instance.active is None or serving is None:
            return swapping_s, swapping_s
        running = instance.running
        delay_s, ends_s = running_time(
            serving,
            running.requests,
            running.prefill_tokens,
            running.context_tokens,
            running.output_tokens,
            running.longest_output_tokens,
        )
        if instance.drained_s is not None:
            ends_s = max(instance.drained_s - now_s, 0.0)
        stays_s = max(instance.activated_s + self._settings.min_active_s - now_s, 0.0)
        return swapping_s + delay_s * self._factor, max(swapping_s + ends_s * self._factor, stays_s)

    def _swap_s(self, state: FleetState, models: tuple[str, ...]) -> FloatArray:
        if state.swap_s is not self._table or models != self._models:
            self._table, self._models, self._swaps = state.swap_s, models, {}
        return np.array([self._swaps_of(instance, models) for instance in state.instances])

    def _swaps_of(self, instance: InstanceState, models: tuple[str, ...]) -> FloatArray:
        if instance.device not in self._swaps:
            self._swaps[instance.device] = (
                self._matrix(instance.device, models, ModelState.WARM),
                self._matrix(instance.device, models, ModelState.COLD),
            )
        warm, cold = self._swaps[instance.device]
        # The active model is warm once it has left.
        matrix = np.where([instance.models.get(model) is ModelState.COLD for model in models], cold, warm)
        served = np.array([model in instance.models and (model, instance.device) in self._serving for model in models])
        matrix[:, ~served] = np.inf
        matrix[:-1][~served] = matrix[-1]  # an active model that the file no longer has may leave like none at all
        return matrix

    def _matrix(self, device: str, models: tuple[str, ...], state: ModelState) -> FloatArray:
        table: Mapping[Swap, float] = self._table or {}
        return np.array(
            [
                [0.0 if a == b else table.get(Swap(device, a, b, state), _NO_SWAP_S) for b in models]
                for a in (*models, None)
            ]
        )
