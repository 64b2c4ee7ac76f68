"""Shares the measured costs of switches with other hosts of the same kind, through the store."""

import asyncio
from concurrent.futures import Executor
from typing import Final

from sloserve.fleet.agent.costs import Costs
from sloserve.fleet.store.switch_costs import SwitchCosts

SHARE_S: Final = 2.0
"""Seconds between looks at what was measured."""


class SharedCosts:
    """Exchange of this host's measured costs with the store.

    Args:
        costs: Costs of this host.
        stored: Costs in the store.
        device: Kind of the host's devices.
        executor: Executor with threads that wait for the store.
    """

    def __init__(self, costs: Costs, stored: SwitchCosts, device: str, executor: Executor) -> None:
        self._costs, self._stored, self._device, self._executor = costs, stored, device, executor
        self._has_begun = False

    async def turn(self) -> None:
        """Adopt what other hosts have measured, the first time, and report what this one has.

        Raises: StoreError; what is not reported yet is reported in the next turn.
        """
        loop = asyncio.get_running_loop()
        if not self._has_begun:
            self._costs.adopt(await loop.run_in_executor(self._executor, self._stored.of, self._device))
            self._has_begun = True
        untold = self._costs.untold
        while untold:
            await loop.run_in_executor(self._executor, self._stored.add, self._device, *untold[0])
            untold.popleft()
