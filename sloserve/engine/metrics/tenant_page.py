"""The page on which one of several API processes publishes what its tenants use, so that limits hold for all of them.

Each process writes its own page and reads the others'. A row belongs to one tenant: requests and tokens so far, and
requests in progress. Tenants beyond the number of rows are not published; their limits hold for each process.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np

from sloserve.engine.metrics.page_folder import TENANTS, PageFile
from sloserve.engine.metrics.page_memory import PageMemory, found

ROWS: Final = 1024
_REQUESTS, _TOKENS, _IN_PROGRESS = range(3)
_COLUMNS: Final = 3


class TenantPage:
    """One process' page, as its writer or a reader has it."""

    def __init__(self, memory: PageMemory) -> None:
        self.memory = memory
        self._figures = memory.floats.reshape(ROWS, _COLUMNS)
        self._rows: dict[str, int] = {}

    @staticmethod
    def create(rank: int, folder: Path | None = None) -> "TenantPage":
        """Create the page of this process. Raises: OSError when no file can be made."""
        size = ROWS * _COLUMNS
        return TenantPage(PageMemory.create(TENANTS, rank, {}, floats=size, words=ROWS, scratch=0, folder=folder))

    def publish(self, tenant: str, requests: int, tokens: int, in_progress: int) -> None:
        """Set what the requests of a tenant in this process have used, and how many are in progress."""
        row = self._rows.get(tenant)
        if row is None:
            row = len(self._rows)
            if row == ROWS:
                return
            self._rows[tenant] = row
        self._figures[row] = requests, tokens, in_progress
        self.memory.words[row] = _key(tenant)

    def read(self, tenant: str) -> tuple[float, float, float]:
        """Return what :meth:`publish` set for a tenant; zeros for a tenant that is not there."""
        row = self._rows.get(tenant)
        if row is None:
            at = np.flatnonzero(self.memory.words == np.uint64(_key(tenant)))
            if not at.size:
                return 0.0, 0.0, 0.0
            row = self._rows[tenant] = int(at[0])
        requests, tokens, in_progress = self._figures[row].tolist()
        return requests, tokens, in_progress

    def others(self, known: Sequence["TenantPage"]) -> list["TenantPage"]:
        """Return the pages of the other API processes of this server that run; pages in ``known`` are not opened again.

        Raises: OSError.
        """
        opened = {page.memory.path: page for page in known}

        def read(file: PageFile) -> TenantPage | None:
            if file.path == self.memory.path or not file.is_alive:
                return None
            return opened.get(file.path) or TenantPage(PageMemory.open(file))

        return [page for page in found(TENANTS, read, self.memory.path.parent) if page is not None]


def _key(tenant: str) -> int:
    """Return a key of the tenant that is never 0, which stands for a free row."""
    return int.from_bytes(blake2b(tenant.encode(), digest_size=8).digest()) or 1
