"""Record of the last change of a running engine's policy: who asked for it, when, and what it replaced."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

MOST_BY_CHARS: Final = 120
"""Most characters of the text that says who asked for a change."""
_BRIEF_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """One change of the deciding policy.

    Args:
        id: Name of the change, by which it is undone.
        at_s: Time of the change, in epoch seconds.
        by: Origin of the request, as far as the server knows: the name that it states, and its address.
        before: Text of the policy that it replaced.
    """

    id: str
    at_s: float
    by: str
    before: str

    def brief(self) -> "PolicyChanged":
        """Return the change with the name of the earlier policy alone, without its options."""
        return replace(self, before=self.before.partition(":")[0][:_BRIEF_CHARS])

    def plain(self) -> dict[str, Any]:
        return asdict(self)
