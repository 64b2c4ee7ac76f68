"""How much more an instance takes now."""

from sloserve.sim.fleet.contract import InstanceView


class Room:
    """How much more an instance takes within one tick, where it does not yet know of what it is given, or loses.

    leaving: requests that leave it.
    """

    def __init__(self, instance: InstanceView) -> None:
        self.instance = instance
        self.num_requests = instance.num_in_flight
        self.leaving: set[str] = set()
        self._ahead = 0
        self._free_places = self._free_tokens = 0  # of those that leave, not taken again

    def takes(self, prompt_tokens: int) -> bool:
        """Whether it takes one more; it then counts as given."""
        ahead = self._ahead + prompt_tokens
        if not self.instance.has_room(ahead, leaving=self._free_places, leaving_tokens=self._free_tokens):
            return False
        self._ahead = ahead
        self.num_requests += 1
        if self.leaving:
            self._free_places -= 1
            self._free_tokens -= prompt_tokens
        return True

    def leaves(self, request_id: str, tokens: int) -> None:
        """A request in flight that has KV of so many tokens makes room."""
        self.leaving.add(request_id)
        self.num_requests -= 1
        self._free_places += 1
        self._free_tokens += tokens
