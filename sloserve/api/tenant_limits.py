"""Limits of the tenants that keys stand for: requests in progress, and requests and tokens per minute.

Where a server has several API processes, each publishes what it counts, and charges its own buckets with what the
others have used: at each request of a tenant, and every second. Tokens are published every second, so that tokens of
the others may not count for two seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final

from sloserve.core.clock import Clock
from sloserve.engine.metrics.tenant_page import TenantPage
from sloserve.scheduler.server_keys import ServerTenant
from sloserve.wire.rate_limits import RequestUse, TenantRates
from sloserve.wire.tenant_places import TenantPlaces

logger = logging.getLogger(__name__)

EXCHANGE_S: Final = 1.0
"""Seconds between two exchanges with the other API processes."""


class TenantLimits:
    """Limits of tenants in this API process, and in the other API processes once it shares with them."""

    def __init__(self, clock: Clock) -> None:
        self.rates = TenantRates(clock)
        self._places = TenantPlaces("requests", elsewhere=self._in_progress)
        self._page: TenantPage | None = None
        self._others: list[TenantPage] = []
        self._expected = 0
        self._charged: dict[tuple[TenantPage, str], tuple[float, float]] = {}

    def share(self, page: TenantPage, others: int) -> None:
        """Publish what this process counts, and count what the other processes publish.

        Args:
            page: Page of this process.
            others: Number of other processes, which may not have begun yet.
        """
        self._page, self._expected = page, others

    def close(self) -> None:
        """Withdraw what this process publishes."""
        if self._page is not None:
            self._page.memory.close()

    def admit(self, tenant: ServerTenant, held: ExitStack) -> RequestUse:
        """Count a request, hold its place until ``held`` is left, and return its use.

        Raises: QueueFull, RateLimited.
        """
        self._charge(tenant)
        held.callback(self._publish, tenant.name)
        held.enter_context(self._places.taken(tenant.name, tenant.quota.requests))
        use = self.rates.admit(tenant.name, tenant.quota)
        held.callback(use.ended)
        self._publish(tenant.name)
        return use

    def exchange(self, tenants: Iterable[ServerTenant]) -> None:
        """Publish what this process has used, and charge its limits with what the others have used.

        Args:
            tenants: All tenants of the file of keys.
        """
        if self._page is None:
            return
        for name in self.rates.used():
            self._publish(name)
        self._look(self._page)
        for tenant in tenants:
            self._charge(tenant)

    async def keep_exchanging(self, tenants: Callable[[], Iterable[ServerTenant]]) -> None:
        """Call :meth:`exchange` every second until the task is cancelled. A failure is logged."""
        while True:
            try:
                self.exchange(tenants())
            except Exception:
                logger.exception("limits of tenants count only this API process for a second")
            await asyncio.sleep(EXCHANGE_S)

    def _look(self, own: TenantPage) -> None:
        """Look for the pages of the other processes."""
        try:
            self._others = own.others(self._others)
        except OSError as error:
            logger.warning("limits of tenants count only this API process: %s", error)
            self._others = []
        self._charged = {key: seen for key, seen in self._charged.items() if key[0] in self._others}

    def _charge(self, tenant: ServerTenant) -> None:
        if self._page is None:
            return
        if len(self._others) < self._expected:
            self._look(self._page)
        requests, tokens = 0.0, 0.0
        for page in self._others:
            now = page.read(tenant.name)[:2]
            before = self._charged.get((page, tenant.name), (0.0, 0.0))
            requests, tokens = requests + now[0] - before[0], tokens + now[1] - before[1]
            self._charged[page, tenant.name] = now
        self.rates.others_used(tenant.name, tenant.quota, requests, tokens)

    def _publish(self, name: str) -> None:
        if self._page is not None:
            used = self.rates.use_of(name)
            tokens = used.prompt_tokens + used.output_tokens
            self._page.publish(name, used.requests, tokens, self._places.of(name))

    def _in_progress(self, name: str) -> int:
        return sum(int(page.read(name)[2]) for page in self._others)
