"""The store of a fleet in virtual time: requests that wait to be pulled, by group, and the plan in force.

A line's group is the group of its file and model, as in a live fleet: lines of a model and class that arrive within
FILE_S of each other are taken for one client's file. In one queue for all, groups are QLM's: of like deadlines and
lengths.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from sloserve.fleet.batch_api.runner import LINES_OF_GROUP
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.planning.waiting_groups import Group
from sloserve.fleet.simulated.dispatcher import WaitingRequest
from sloserve.scheduler.virtual_queues.groups import Groups, Member

FILE_S: Final = 5.0
_BATCH_MEMORY: Final = 0.9
"""Weight of the past in the mean batch of a model."""


class SimulatedStore:
    """A store of waiting requests.

    Args:
        delta: Largest size of a group in mean batches, if groups are QLM's; ``None`` if they are files'.
        file_s: Seconds within which lines of one model and class count as one file.
    """

    def __init__(self, delta: float | None, file_s: float = FILE_S) -> None:
        self._clustered, self._file_s = delta is not None, file_s
        self._groups = Groups() if delta is None else Groups(delta)
        self._requests: dict[Hashable, WaitingRequest] = {}
        self._members: dict[str, Member] = {}
        self._batch: dict[str, float] = {}
        self._ref_of: dict[str, int] = {}
        self._files: dict[tuple[str, str, int], list[int]] = {}
        self._class_of: dict[int, str] = {}
        self.plan: PlanInForce | None = None

    def __len__(self) -> int:
        return self._groups.requests

    def accept(self, request: WaitingRequest, output_tokens: float, deviation: float) -> None:
        """Add a waiting request, a claimed one at its old place.

        Args:
            request: The request.
            output_tokens: Expected number of output tokens.
            deviation: Standard deviation of this number.
        """
        member = Member(
            request.request_id,
            request.model,
            request.prompt_tokens,
            output_tokens,
            deviation,
            request.arrival_s,
            request.due_s - request.arrival_s,
            request.until_first_token,
            {} if request.kept_on is None else {request.kept_on: float(request.kept_tokens)},
        )
        self._requests[request.request_id] = request
        self._members[request.request_id] = member
        ref = self._ref_of.get(request.request_id)
        if ref is not None:
            self._groups.put_back(member, ref)
            return
        if self._clustered:
            ref = self._groups.add(member)
        else:
            ref = self._file(request)
            self._groups.restore([(ref, member)])
        self._ref_of[request.request_id] = ref
        self._class_of.setdefault(ref, request.slo_class)

    def claim(self, ref: int, most: int) -> list[WaitingRequest]:
        """Claim up to ``most`` requests of a group, in order of arrival."""
        return [self._taken(member) for member in self._groups.head(ref, most)]

    def put_back(self, request: WaitingRequest) -> None:
        """Put a request that was claimed and not sent back at its old place."""
        self._requests[request.request_id] = request
        self._groups.put_back(self._members[request.request_id], self._ref_of[request.request_id])

    def waiting(self, ref: int, most: int = 1) -> list[str]:
        """Return the ids of the first waiting requests of a group."""
        return [str(member.request) for member in self._groups.head(ref, most)]

    def groups(self) -> list[Group]:
        """Return the waiting groups."""
        return [Group(sums, self._class_of[sums.ref]) for sums in self._groups.sums()]

    def note_batches(self, running: Iterable[tuple[str, int]]) -> None:
        """Record how many requests each instance runs: QLM's groups are cut at multiples of the mean."""
        if not self._clustered:
            return
        for model, requests in running:
            mean = self._batch.get(model, float(requests))
            self._batch[model] = _BATCH_MEMORY * mean + (1.0 - _BATCH_MEMORY) * requests
            self._groups.set_batch(model, self._batch[model])
        self._groups.tidy()

    def expired(self, now_s: float) -> Iterator[WaitingRequest]:
        """Remove and yield the waiting requests that are due by now."""
        for sums in self._groups.sums():
            while (first := self._groups.head(sums.ref, 1)) and first[0].due_s <= now_s:
                yield self._taken(first[0])

    def _taken(self, member: Member) -> WaitingRequest:
        self._groups.remove(member.request)
        return self._requests.pop(member.request)

    def _file(self, request: WaitingRequest) -> int:
        """Return the group of a line: up to LINES_OF_GROUP lines of a file and model form one."""
        key = request.model, request.slo_class, int(request.arrival_s / self._file_s)
        known = self._files.get(key)
        if known is None or known[1] >= LINES_OF_GROUP:
            known = self._files[key] = [len(self._class_of), 0]
            self._class_of[known[0]] = request.slo_class
        known[1] += 1
        return known[0]
