"""What switches take on this host, told to the store for other hosts of its kind, and taken from there at the start."""

import asyncio
from concurrent.futures import Executor
from typing import Final

from sloserve.fleet.agent.costs import Costs
from sloserve.fleet.store.switch_costs import SwitchCosts

SHARE_S: Final = 2.0
"""Between looks at what was measured."""


class SharedCosts:
    """
    Args:
        costs: of this host. stored: those in the store. device: the kind.
        executor: its threads wait for the store.
    """

    def __init__(self, costs: Costs, stored: SwitchCosts, device: str, executor: Executor) -> None:
        self._costs, self._stored, self._device, self._executor = costs, stored, device, executor
        self._has_begun = False

    async def turn(self) -> None:
        """Takes what other hosts have measured, the first time, and tells what this one has.

        Raises: StoreError; what is not told yet is told in the next turn.
        """
        loop = asyncio.get_running_loop()
        if not self._has_begun:
            self._costs.adopt(await loop.run_in_executor(self._executor, self._stored.of, self._device))
            self._has_begun = True
        untold = self._costs.untold
        while untold:
            await loop.run_in_executor(self._executor, self._stored.add, self._device, *untold[0])
            untold.popleft()
