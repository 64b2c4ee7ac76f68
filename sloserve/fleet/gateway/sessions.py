"""The instance that served a session last, to which its next request goes as long as that is not late for it.

A session is what its client names by a header or a field of the body, see :mod:`sloserve.wire.tasks`. Each gateway
knows the sessions that came through it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sloserve.fleet.gateway.gateway_instance import GatewayInstance
from sloserve.fleet.gateway.instances import UNKNOWN, Instances
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefixes import Beginning
from sloserve.wire.tasks import CHAIN, StatedTask


@dataclass(frozen=True, slots=True)
class Home:
    """The instance that served the session of a request last.

    Args:
        instance: Name of the instance.
        due_s: Deadline of the request by the monotonic clock in seconds.
        is_for_first: Whether its first token is due then; otherwise its last.
    """

    instance: str
    due_s: float
    is_for_first: bool

    def find(
        self,
        instances: Instances,
        model: str,
        slo_class: str,
        work: Work,
        prompt: Sequence[Beginning],
        now_s: float,
    ) -> GatewayInstance | None:
        """Return the instance, if the request should go there; otherwise ``None``.

        It should if the instance serves the model and has room, the plan does not name others for the request, and the
        request is expected to be in time.
        """
        found = instances.by_name.get(self.instance)
        if found is None or not found.serves(model, now_s) or found.room <= 0:
            return None
        planned = instances.planned(model, slo_class)
        if planned and self.instance not in planned:
            return None
        known = prompt if instances.affinity else ()
        times = found.times_s(instances.paces.get((model, found.report.device), UNKNOWN), work, known)
        takes_s = times.first_s if self.is_for_first else times.completion_s
        return found if now_s + takes_s <= self.due_s else None


class Sessions:
    """A bounded table of sessions by tenant; of the tenant that has the most, the oldest is forgotten first.

    Args:
        most: Most sessions; 0 to remember none.
    """

    def __init__(self, most: int) -> None:
        self._most, self._known = most, 0
        self._of: dict[str, OrderedDict[bytes, str]] = {}

    def __len__(self) -> int:
        return self._known

    def set_most(self, most: int) -> None:
        """Set the most sessions that are remembered; 0 for none."""
        self._most = most
        self._forget_beyond()

    def instance_of(self, tenant: str, session: StatedTask | None, model: str) -> str | None:
        """Return the name of the instance that served a session of this model last; ``None`` if none is known."""
        if session is None or session.kind == CHAIN or tenant not in self._of:
            return None
        return self._of[tenant].get(_key(session, model))

    def served(self, tenant: str, session: StatedTask | None, model: str, instance: str) -> None:
        """Record that an instance serves a request of a session."""
        if session is None or session.kind == CHAIN or not self._most:
            return
        own = self._of.setdefault(tenant, OrderedDict())
        key = _key(session, model)
        self._known += key not in own
        own[key] = instance
        own.move_to_end(key)
        self._forget_beyond()

    def _forget_beyond(self) -> None:
        while self._known > self._most:
            self._forget(max(self._of, key=lambda name: len(self._of[name])))

    def _forget(self, tenant: str) -> None:
        self._of[tenant].popitem(last=False)
        self._known -= 1
        if not self._of[tenant]:
            del self._of[tenant]


def _key(session: StatedTask, model: str) -> bytes:
    text = f"{session.kind}\n{model}\n{session.id}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
