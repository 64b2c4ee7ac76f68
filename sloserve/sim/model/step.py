"""What one step of a model engine may do, which requests it admits, and what it computes."""

from dataclasses import dataclass, field

from sloserve.core.arrays import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of one step.

    Args:
        running: Number of running requests at which admission stops.
        tokens: Most tokens of the step.
        chunk: Most tokens of one request; 0 for any number.
    """

    running: int
    tokens: int
    chunk: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """What one step computes, like vLLM's SchedulerOutput. Arrays are ``[requests in the step]``, in the step's order.

    Args:
        requests: Indices of the requests.
        tokens: Number of tokens that each request gets.
        computed: Tokens of each request with KV before this step.
        samples: Whether the step gives each request a token.
        num_tokens: Number of tokens of the whole step.
        admitted: Indices of the requests that the step admitted, in order.
        drafts: Number of tokens of each request that are drafts, or padding in their place; ``None`` in an engine
            without drafts.
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
        """The tokens of each request without its drafts, ``[requests in the step]``."""
        return self.tokens if self.drafts is None else self.tokens - self.drafts


@dataclass(slots=True, eq=False)
class Admitted:
    """What a step admits, and what is left of its limits.

    Args:
        budget: Tokens that are left for the step.
        places: Number of requests that may still be admitted.
        chunk: Most tokens of one request, as in :class:`StepLimits`.
        padding: Tokens in place of drafts beside the last token of a request; 0 beside prompts.
        beside_others: Whether the step computes tokens of requests that ran before.
        requests: Indices of the admitted requests, in order.
        computed: Tokens of each admitted request with KV.
        tokens: Tokens of each admitted request that the step computes.
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
