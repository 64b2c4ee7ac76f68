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
        self._given = self._given_tokens = 0
        self._free_places = self._free_tokens = 0  # of those that leave, not taken again

    def takes(self, prompt_tokens: int) -> bool:
        """Whether it takes one more; it then counts as given."""
        if not self.instance.has_room(
            prompt_tokens,
            given=self._given,
            given_tokens=self._given_tokens,
            leaving=self._free_places,
            leaving_tokens=self._free_tokens,
        ):
            return False
        self._given += 1
        self._given_tokens += prompt_tokens
        self.num_requests += 1
        return True

    def leaves(self, request_id: str, tokens: int) -> None:
        """A request in flight that has KV of so many tokens makes room."""
        self.leaving.add(request_id)
        self.num_requests -= 1
        self._free_places += 1
        self._free_tokens += tokens
