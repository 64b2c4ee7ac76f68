"""One page per engine process, through which a scheduler's figures reach the API processes.

Its numbers are the slots of :class:`Layout`, one more says which of two texts counts: the one not in use is written,
then the slot is switched. Behind the texts stand the names of tenants, each written once, before it is counted. The
words are a ring of the requests that ended latest. See :mod:`sloserve.engine.metrics.page_memory`.
"""

import json
import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from sloserve.core.served import InEngine
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.ended_ring import WORDS, EndedRing
from sloserve.engine.metrics.engine_figures import EngineFigures
from sloserve.engine.metrics.page_folder import ENGINE, PageFile
from sloserve.engine.metrics.page_memory import PageMemory, found
from sloserve.engine.metrics.swap_figures import DROPS, REFUSALS, SWAP_BUCKETS, swap_bucket
from sloserve.engine.metrics.tenant_figures import FIGURES, NAME_BYTES, TenantFigures, read_rows, to_bytes
from sloserve.engine.policy_change import PolicyChanged

_TEXT_BYTES = 4096

PLAN_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
"""Upper bounds of the histogram of planning times; one more bucket holds what took longer."""


@dataclass(frozen=True)
class PageSnapshot(EngineFigures):
    """All that a page says.

    Args:
        plans_off: Why vLLM schedules by itself although the policy plans.
        policy_change: The last change of the policy; ``None`` if the engine has followed one policy since its start.
        plan_seconds: Plans in each bucket of :data:`PLAN_BUCKETS_S` and above.
        swaps: Requests that ended, in each bucket of ``SWAP_BUCKETS`` and above.
        swap_refused: Refused copies to the host, by reason.
        swap_dropped: Dropped states, by reason.
        waiting_by_class: Requests of each class that were never admitted yet.
        enqueued_by_class: Requests of each class that were queued, in total.
        admitted_by_class: Requests of each class that were admitted, in total; a request is admitted once.
        tenants: How the tenants stand; empty where they have no shares.
    """

    rank: int
    pid: int
    alive: bool
    policy: str
    shadow_policy: str | None
    plans_off: str | None
    policy_change: PolicyChanged | None
    plan_seconds: tuple[int, ...]
    swaps: tuple[int, ...]
    swap_refused: dict[str, int]
    swap_dropped: dict[str, int]
    waiting_by_class: dict[str, int]
    enqueued_by_class: dict[str, int]
    admitted_by_class: dict[str, int]
    tenants: tuple[TenantFigures, ...]


SCALARS = tuple(f.name for f in fields(EngineFigures))


class Layout:
    """Place of each figure in the array of slots.

    The scalars come first, then reasons, histograms, three slots a class, the number of rows of tenants that have a
    name, and these rows.
    """

    _NAMED = (*SCALARS, *(f"swap_refused_{name}" for name in REFUSALS), *(f"swap_dropped_{name}" for name in DROPS))
    at = {name: index for index, name in enumerate(_NAMED)}
    plan_seconds = len(_NAMED)
    swaps = plan_seconds + len(PLAN_BUCKETS_S) + 1

    def __init__(self, classes: int, tenant_rows: int = 0) -> None:
        self.waiting = self.swaps + len(SWAP_BUCKETS) + 1
        self.enqueued = self.waiting + classes
        self.admitted = self.enqueued + classes
        self.tenant_names = self.admitted + classes
        self.tenants = self.tenant_names + 1
        self.size = self.tenants + tenant_rows * len(FIGURES)

    @classmethod
    def bucket(cls, cost_s: float) -> int:
        """Return the slot of the histogram's bucket that ``cost_s`` falls into."""
        return cls.plan_seconds + bisect_left(PLAN_BUCKETS_S, cost_s)

    @classmethod
    def swap_bucket(cls, swaps: int) -> int:
        """Return the slot of the histogram's bucket for a request that was swapped ``swaps`` times."""
        return cls.swaps + swap_bucket(swaps)


class PageWriter:
    """The engine's side of a page: ``values`` is the array of slots itself; storing in it writes the page.

    Raises: OSError when no file can be made.
    """

    def __init__(self, classes: Sequence[str], rank: int, folder: Path | None = None, *, tenant_rows: int = 0) -> None:
        """Create the page of this process.

        Args:
            classes: Names of the service classes.
            rank: Rank of the engine.
            folder: Folder of the pages; ``None`` for the usual one.
            tenant_rows: Rows for tenants; 0 where they have no shares.
        """
        layout = Layout(len(classes), tenant_rows)
        size = layout.size
        self._memory = PageMemory.create(
            ENGINE,
            rank,
            {"classes": list(classes), "tenant_rows": tenant_rows},
            floats=size + 1,
            words=WORDS,
            scratch=2 * _TEXT_BYTES + tenant_rows * NAME_BYTES,
            folder=folder,
        )
        self.path = self._memory.path
        self.values = self._memory.floats[:size]
        self._text_slot = self._memory.floats[size:]
        self._ring = EndedRing(self._memory.words)
        self._next = 0
        self._tenant_names = layout.tenant_names

    def set_policies(
        self, policy: str, shadow_policy: str | None, plans_off: str | None, change: PolicyChanged | None = None
    ) -> None:
        """Write which policies are at work, or why they are not, and how the policy was changed last."""
        off = None if plans_off is None else plans_off[:200]
        plain = None if change is None else change.plain()
        text = json.dumps([policy, shadow_policy, off, plain]).encode()
        if len(text) > _TEXT_BYTES - 4:
            names = policy.partition(":")[0][:100], (shadow_policy or "").partition(":")[0][:100] or None
            text = json.dumps([*names, off, None if change is None else change.brief().plain()]).encode()
        other = 1 - int(self._text_slot[0])
        struct.pack_into(f"<I{len(text)}s", self._memory.scratch, other * _TEXT_BYTES, len(text), text)
        self._text_slot[0] = other

    def name_tenants(self, names: Sequence[str]) -> None:
        """Write the names of the tenants' rows that are new; rows keep their names."""
        written = int(self.values[self._tenant_names])
        for row in range(written, len(names)):
            at = 2 * _TEXT_BYTES + row * NAME_BYTES
            self._memory.scratch[at : at + NAME_BYTES] = to_bytes(names[row])
        self.values[self._tenant_names] = len(names)

    def note_ended(self, request_id: str, met: InEngine, *, is_part: bool = False) -> None:
        """Note what a request that ended met in the engine, or one of its outputs, as :class:`EndedRing` says."""
        self._next = self._ring.note(self._next, request_id, met, is_part=is_part)

    def close(self) -> None:
        """Remove the page; readers that have it mapped keep its last state."""
        self._memory.close()


class PageReader:
    """The reader's side of a page.

    Raises: OSError, or ValueError for a file that is no page of this version.
    """

    def __init__(self, file: PageFile) -> None:
        self._file = file
        self._memory = PageMemory.open(file)
        self.classes: tuple[str, ...] = tuple(self._memory.facts["classes"])
        self.rank = file.rank
        self._tenant_rows = int(self._memory.facts["tenant_rows"])
        self._layout = Layout(len(self.classes), self._tenant_rows)
        self._ring = EndedRing(self._memory.words)

    def snapshot(self) -> PageSnapshot:
        """Return what the page says now."""
        values, layout = self._memory.floats.tolist(), self._layout
        at = int(values[-1]) * _TEXT_BYTES
        (length,) = struct.unpack_from("<I", self._memory.scratch, at)
        text = bytes(self._memory.scratch[at + 4 : at + 4 + length])
        policy, shadow_policy, plans_off, change = json.loads(text or '["", null, null, null]')

        def by_class(first: int) -> dict[str, int]:
            return {name: int(values[first + i]) for i, name in enumerate(self.classes)}

        return PageSnapshot(
            **dict(zip(SCALARS, values, strict=False)),
            rank=self.rank,
            pid=self._file.pid,
            alive=self._file.is_alive,
            policy=policy,
            shadow_policy=shadow_policy,
            plans_off=plans_off,
            policy_change=None if change is None else PolicyChanged(**change),
            plan_seconds=tuple(int(n) for n in values[layout.plan_seconds : layout.swaps]),
            swaps=tuple(int(n) for n in values[layout.swaps : layout.waiting]),
            swap_refused={name: int(values[layout.at[f"swap_refused_{name}"]]) for name in REFUSALS},
            swap_dropped={name: int(values[layout.at[f"swap_dropped_{name}"]]) for name in DROPS},
            waiting_by_class=by_class(layout.waiting),
            enqueued_by_class=by_class(layout.enqueued),
            admitted_by_class=by_class(layout.admitted),
            tenants=self._tenants(),
        )

    def _tenants(self) -> tuple[TenantFigures, ...]:
        layout, slots = self._layout, self._memory.floats
        count = int(slots[layout.tenant_names])  # before the names: each was written before it was counted
        values = slots[layout.tenants : layout.size].reshape(self._tenant_rows, len(FIGURES))
        return read_rows(bytes(self._memory.scratch[2 * _TEXT_BYTES :]), count, values)

    def ended(self, request_id: str) -> InEngine | None:
        """Return what a request that ended recently met in the engine, by the id it has there.

        The result is ``None`` if the page does not know: the request was never admitted, or ended too long ago.
        """
        return self._ring.find(request_id)


def find_pages(folder: Path | None = None) -> list[PageReader]:
    """Return the pages of this server's engines, see :func:`~sloserve.engine.metrics.page_memory.found`.

    Raises: OSError.
    """
    return found(ENGINE, PageReader, folder)


def remove_pages(folder: Path | None = None) -> None:
    """Remove the pages that this process and engines of its own left behind; call it at exit.

    A process removes its own page when it stops, which one that is killed cannot do.

    Raises: OSError.
    """
    folder = page_folder.page_folder() if folder is None else folder
    page_folder.remove_started_here(folder)
    page_folder.sweep(folder)


def sweep_pages() -> None:
    """Remove the pages of processes that have ended, by whatever user started; without a folder there are none."""
    try:
        page_folder.sweep(page_folder.page_folder())
    except OSError:
        pass
