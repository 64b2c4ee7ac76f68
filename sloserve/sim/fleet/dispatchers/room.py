"""How much more an instance takes now."""

from sloserve.sim.fleet.contract import InstanceView


class Room:
    """How much more an instance takes within one tick, where it does not yet know of what it is given."""

    def __init__(self, instance: InstanceView) -> None:
        self.instance = instance
        self.num_requests = instance.num_in_flight
        self._ahead = 0

    def takes(self, prompt_tokens: int) -> bool:
        """Whether it takes one more; it then counts as given."""
        if not self.instance.has_room(self._ahead + prompt_tokens):
            return False
        self._ahead += prompt_tokens
        self.num_requests += 1
        return True
