"""Instances pull from queues of models; a model that is active nowhere, or has too few instances, takes another's.

A model takes an instance that is idle: nothing in flight, nothing waiting for its model. Three rules differ in the
order of a queue, and in when a model may take an instance that is busy:

- ``on-demand``: first come, first served. A request of a model that is active nowhere takes one at once.
- ``collate``: first come, first served, one model after another. A model takes one when its oldest request has waited
  for ``max_wait_s``; llama-swap and its like collate so.
- ``edf``: earliest deadline first. A model takes one when its most urgent request must begin to be in time, and the
  instance has nothing waiting that is more urgent.
"""

from abc import abstractmethod
from collections.abc import Sequence

from sloserve.sim.fleet.contract import Dispatcher, FleetView, Give, Held, InstanceView, Operation, Switch
from sloserve.sim.fleet.dispatchers.queues import Key, Queues, by_arrival, by_deadline
from sloserve.sim.fleet.dispatchers.room import Room
from sloserve.sim.fleet.dispatchers.service import reply_s

_SPARE_S = 5.0
"""EDF turns to a model so long before its most urgent request would be late: what a mean reply takes is a guess."""


class Pulling(Dispatcher):
    """What the three have in common."""

    key: Key

    def __init__(self) -> None:
        self.queues = Queues(self.key)

    @abstractmethod
    def may_take(self, head: Held, instance: InstanceView, view: FleetView, is_active: bool) -> bool:
        """Whether the model of ``head`` may have an instance that is busy. is_active: whether it has one already."""

    def begin(self, view: FleetView) -> Sequence[Switch]:
        return ()

    def arrived(self, request: Held, view: FleetView) -> None:
        self.queues.put(request)

    def tick(self, view: FleetView) -> Sequence[Operation]:
        given = self._pull(view)
        return [*given, *self._switches(view, {give.instance for give in given})]

    def _pull(self, view: FleetView) -> list[Give]:
        given: list[Give] = []
        of_model: dict[str, list[Room]] = {}
        for instance in view.instances:
            if instance.serving and self.queues.size(instance.active):
                of_model.setdefault(str(instance.active), []).append(Room(instance))
        for model, rooms in of_model.items():
            while rooms and (head := self.queues.head(model)) is not None:
                room = min(rooms, key=lambda room: room.num_requests)
                if room.takes(head.prompt_tokens):
                    given.append(Give(self.queues.pop(model).request_id, room.instance.name))
                else:
                    rooms.remove(room)
        return given

    def _switches(self, view: FleetView, busy: set[str]) -> list[Switch]:
        free = [i for i in view.instances if i.can_switch() and i.name not in busy]
        switches: list[Switch] = []
        for model, head in self.queues.waiting():
            having = [i for i in view.instances if i.active == model]
            if any(not i.serving for i in having):
                continue  # it is on its way
            can = [i for i in free if model in i.models and i.active != model]
            taken = [i for i in can if self._is_idle(i)] or [
                i for i in can if self.may_take(head, i, view, bool(having))
            ]
            if taken:
                best = min(taken, key=lambda i: self._dearness(i, model, view))
                switches.append(Switch(best.name, model))
                free.remove(best)
        return switches

    def _is_idle(self, instance: InstanceView) -> bool:
        return not instance.num_in_flight and not self.queues.size(instance.active)

    def _dearness(self, instance: InstanceView, model: str, view: FleetView) -> tuple[float, ...]:
        """Least for the instance that is best given up: soon there, one of several of its model, with little to do."""
        of_model = sum(i.active == instance.active for i in view.instances)
        return instance.swap_s(model), -of_model, self.queues.size(instance.active), instance.num_in_flight


class OnDemand(Pulling):
    """Swap on demand, first come, first served."""

    key = staticmethod(by_arrival)

    def may_take(self, head: Held, instance: InstanceView, view: FleetView, is_active: bool) -> bool:
        return not is_active


class Collate(Pulling):
    """One model after another; max_wait_s: bound on the wait, the fleet's own if ``None``."""

    key = staticmethod(by_arrival)

    def __init__(self, max_wait_s: float | None = None) -> None:
        super().__init__()
        self._max_wait_s = max_wait_s

    def may_take(self, head: Held, instance: InstanceView, view: FleetView, is_active: bool) -> bool:
        limit_s = view.switching.max_wait_s if self._max_wait_s is None else self._max_wait_s
        return view.now_s - head.arrival_s >= limit_s


class EarliestDeadline(Pulling):
    """Earliest deadline first, with affinity to the model that is active."""

    key = staticmethod(by_deadline)

    def may_take(self, head: Held, instance: InstanceView, view: FleetView, is_active: bool) -> bool:
        own = self.queues.head(instance.active)
        if own is not None and own.due_s <= head.due_s:
            return False
        tokens, _ = view.expected_output(head)
        service_s = reply_s(instance, head.model, head.prompt_tokens, tokens)
        return view.now_s + instance.swap_s(head.model) + service_s + _SPARE_S >= head.due_s
