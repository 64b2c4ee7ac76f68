"""What remains of n requests, as a distribution: what every predictor of output lengths gives, and what it is asked.

A predictor describes whole lengths L by a :class:`LengthForm`, conditional on what a request has emitted already; a
:class:`Rest` puts the request's ``max_tokens`` on top, exactly. All arrays are ``[n]``, all figures are output tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray

PRIOR_MEAN_TOKENS: Final = 256.0
"""Mean length of outputs before any has ended: between Azure's conversations (201) and Mooncake's (346)."""
PRIOR_WEIGHT: Final = 4.0
"""Ended requests that the prior counts as."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KnownRequests:
    """What is known of n requests, one column each; ``None`` where the deployment does not know a column.

    Args:
        output_tokens: Tokens emitted so far.
        stated_tokens: The whole length in tokens that a simulator or a client states, -1 where neither does.
        seq: The enqueue counter, which identifies a request.
        arrival_s: Arrival in epoch seconds.
        task: A label, where it is finer than the class.
        prompt: The text of the prompt.
    """

    class_id: IntArray
    output_tokens: IntArray
    max_tokens: IntArray
    seq: IntArray | None = None
    prompt_tokens: IntArray | None = None
    stated_tokens: IntArray | None = None
    arrival_s: FloatArray | None = None
    task: Sequence[str] | None = None
    prompt: Sequence[str] | None = None

    def take(self, places: Sequence[int] | IntArray) -> "KnownRequests":
        """Return the requests at ``places``."""
        columns = {}
        for name in self.__dataclass_fields__:
            values = getattr(self, name)
            if isinstance(values, np.ndarray):
                values = values[places]
            elif values is not None:
                values = [values[place] for place in places]
            columns[name] = values
        return KnownRequests(**columns)


class LengthForm(Protocol):
    """Distribution of the lengths of n requests, given that each is longer than ``so_far``."""

    def mean_after(self, so_far: IntArray) -> FloatArray:
        """Return E[L - so_far | L > so_far]: positive and finite for any ``so_far >= 0``."""
        ...

    def survival_after(self, so_far: IntArray, tokens: FloatArray) -> FloatArray:
        """Return P(L > so_far + tokens | L > so_far), for ``tokens >= 0``."""
        ...

    def quantile_after(self, so_far: IntArray, q: FloatArray) -> FloatArray:
        """Return the least t with P(L <= so_far + t | L > so_far) >= q, for q within (0, 1)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """Tokens still to come: at least 1, at most ``left``. Build one with :func:`rest_of`."""

    form: LengthForm
    so_far: IntArray
    left: IntArray

    def mean(self) -> FloatArray:
        """Return the expected tokens still to come, the cap's effect included: E[min(L - so_far, left)]."""
        beyond = self.form.survival_after(self.so_far, self.left.astype(np.float64))
        mean = self.form.mean_after(self.so_far) - beyond * self.form.mean_after(self.so_far + self.left)
        capped: FloatArray = np.clip(mean, 1.0, self.left)
        return capped

    def quantile(self, q: float | FloatArray) -> FloatArray:
        """Return the least whole number of tokens that the rest does not exceed with probability ``q``.

        Args:
            q: Probability within (0, 1), ends excluded; one for all requests, or ``[n]``.
        """
        levels = np.broadcast_to(np.asarray(q, np.float64), self.so_far.shape)
        if levels.size and not (levels.min() > 0.0 and levels.max() < 1.0):
            raise ValueError(f"q: {q} is not within 0..1, ends excluded")
        # A form that is not of whole numbers stands for lengths that were rounded.
        tokens = np.floor(self.form.quantile_after(self.so_far, levels) + 0.5)
        capped: FloatArray = np.clip(tokens, 1.0, self.left)
        return capped

    def survival(self, tokens: float | IntArray | FloatArray) -> FloatArray:
        """Return the probability that more than ``tokens``, 0 or more, are still to come."""
        asked = np.broadcast_to(np.asarray(tokens, np.float64), self.so_far.shape)
        survival: FloatArray = np.where(asked >= self.left, 0.0, self.form.survival_after(self.so_far, asked))
        return np.where(asked < 1.0, 1.0, survival)


def rest_of(form: LengthForm, requests: KnownRequests) -> Rest:
    """Return what remains of ``requests`` when their whole lengths are distributed as ``form``."""
    left = np.maximum(requests.max_tokens - requests.output_tokens, 1)
    return Rest(form, requests.output_tokens, left)


def is_uninformative(output_tokens: int, *, cut: bool) -> bool:
    """Return whether an output that ended says nothing of lengths: it was cut at its first token, and each has one.

    The calls of a beam search are such outputs. There are hundreds of them: they must not crowd out what is known of
    other outputs.
    """
    return cut and output_tokens <= 1


class LengthEstimator(Protocol):
    """Predictor of how many tokens are still to come, and of how sure that is."""

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> bool:
        """Record that a request of the class ended, and return whether the lengths of the class have changed.

        If they have, what was known of them is forgotten.

        Args:
            class_id: Index of the class.
            output_tokens: Tokens after which the request ended.
            cut: Whether its cap, its client or something else ended it, rather than the request itself.
        """
        ...

    def form(self, requests: KnownRequests) -> LengthForm:
        """Return the distribution of the whole lengths of ``requests``."""
        ...

    def rest(self, requests: KnownRequests) -> Rest:
        """Return the distribution of what ``requests`` have still to emit."""
        ...


class Estimator(ABC):
    """Methods that follow for any estimator from its form."""

    @abstractmethod
    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> bool:
        """See :meth:`LengthEstimator.observe`."""

    @abstractmethod
    def form(self, requests: KnownRequests) -> LengthForm:
        """See :meth:`LengthEstimator.form`."""

    def rest(self, requests: KnownRequests) -> Rest:
        """See :meth:`LengthEstimator.rest`."""
        return rest_of(self.form(requests), requests)
