"""What one step of a model engine may do, which requests it admits, and what it computes."""

from dataclasses import dataclass, field

from sloserve.core.arrays import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of one step. running: no admission while so many run. tokens: of the step. chunk: most of one request, 0
    for any number.
    """

    running: int
    tokens: int
    chunk: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one step computes, as vLLM's SchedulerOutput. Arrays: ``[requests in the step]``, in its order.

    requests: indices. tokens: how many each gets. computed: with KV before this step. samples: whether the step gives
    the request a token. num_tokens: in all. admitted: indices of the requests that it admitted, in order.
    drafts: how many of its tokens are drafts, or padding in their place; ``None`` in an engine without drafts.
    """

    requests: IntArray
    tokens: IntArray
    computed: IntArray
    samples: BoolArray
    num_tokens: int
    admitted: list[int] = field(default_factory=list)
    drafts: IntArray | None = None

    @property
    def own_tokens(self) -> IntArray:
        """Tokens of each without its drafts, ``[requests in the step]``."""
        return self.tokens if self.drafts is None else self.tokens - self.drafts


@dataclass(slots=True, eq=False)
class Admitted:
    """What a step admits. budget: tokens that are left for it. places: how many requests. chunk: as in Limits.

    padding: tokens in place of drafts beside the last token of a request; 0 beside prompts. beside_others: whether the
    step computes tokens of requests that ran before.

    requests: indices, in order. computed: tokens with KV. tokens: that the step computes.
    """

    budget: int
    places: int
    chunk: int
    padding: int = 0
    beside_others: bool = False
    requests: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.budget <= 0 or len(self.requests) >= self.places
