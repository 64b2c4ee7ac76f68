"""The table of swap times that a FleetState carries, from the profiles of the models."""

from collections.abc import Mapping

from sloserve.scheduler.virtual_queues.contract import ModelState, Swap
from sloserve.scheduler.virtual_queues.model_swap import ModelSwap


def swap_table(costs: Mapping[tuple[str, str], ModelSwap]) -> dict[Swap, float]:
    """Return the seconds of every swap that can happen.

    Args:
        costs: Costs by model and kind of device; two models swap if both have an entry for the same kind.
    """
    return {
        Swap(device, leaving, coming, state): cost.seconds(
            None if leaving is None else costs[leaving, device], warm=state is ModelState.WARM
        )
        for (coming, device), cost in costs.items()
        for leaving in (None, *(model for model, kind in costs if kind == device and model != coming))
        for state in (ModelState.WARM, ModelState.COLD)
    }
