"""How many tokens a request will still emit, judged from the requests of its class that have ended.

Pure and deterministic: a prediction follows from the lengths observed, in their order. Requests that ended
over-represent short ones just after a start, since long ones are still running; tell the predictor of those
(:meth:`EmpiricalLength.running`), or wait for the window to turn over.

The other predictors behind the same interface, ``length_rest.LengthEstimator``: ``length_gaussian``, ``length_given``
(range, oracle, oracle with an error) and ``length_learned``.
"""

from collections import deque
from typing import Protocol

import numpy as np

from sloserve.estimator.length_rest import Estimator, FloatArray, IntArray, Requests
from sloserve.estimator.length_survival import CurveOfEach, SurvivalCurve, survival_curve

_NONE: IntArray = np.empty(0, np.int64)


class LengthPredictor(Protocol):
    """How many tokens are still to come?"""

    def observe(self, class_id: int, output_tokens: int) -> None:
        """A request of the class ended by itself after ``output_tokens``."""
        ...

    def remaining(self, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray) -> FloatArray:
        """Expected tokens still to come, ``[n]`` like its arguments, given the ``output_tokens`` so far.

        At least 1, and at most what ``max_tokens`` leaves, if that is 1 or more.
        """
        ...


class EmpiricalLength(Estimator):
    """The class's last lengths above k, the tokens so far; shrunk to a prior (see ``length_survival``).

    A new class predicts the prior, and a request longer than all that were seen predicts the class's mean.

    Args:
        window: ended requests remembered per class.
        prior_mean_tokens: mean length before any was seen; 256 lies between the means of Azure's conversations (201)
            and of Mooncake's (346).
        prior_weight: ended requests that the prior is worth.

    Raises: ValueError when an argument is out of range.
    """

    def __init__(self, window: int = 512, prior_mean_tokens: float = 256.0, prior_weight: float = 4.0) -> None:
        if window < 1 or not prior_mean_tokens >= 1.0 or not prior_weight > 0.0:
            raise ValueError(
                f"window {window}, prior_mean_tokens {prior_mean_tokens}, prior_weight {prior_weight}:"
                " window and mean must be at least 1, the weight above 0"
            )
        self._window = window
        self._prior_mean_tokens = prior_mean_tokens
        self._prior_weight = prior_weight
        self._ended: dict[int, deque[tuple[int, bool, int]]] = {}  # tokens, ended by itself, seq
        self._first_seq: dict[int, int] = {}  # of each class: every request enqueued from here on is remembered
        self._running: dict[int, tuple[IntArray, IntArray]] = {}  # tokens so far, seq
        self._curves: dict[int, SurvivalCurve] = {}

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False, seq: int | None = None) -> None:
        """A request of the class ended after ``output_tokens``: by itself, or ``cut`` by its cap, its client or else.

        seq: its enqueue counter; give it when :meth:`running` is used. Raises: ValueError for less than one token.
        """
        if output_tokens < 1:
            raise ValueError(
                f"output_tokens: {output_tokens} is no length; a request that ended with no token tells none"
            )
        ended = self._ended.setdefault(class_id, deque())
        ended.append((output_tokens, cut, -1 if seq is None else seq))
        if len(ended) > self._window:
            self._first_seq[class_id] = max(self._first_seq.get(class_id, 0), ended.popleft()[2] + 1)
        self._curves.pop(class_id, None)

    def running(self, class_id: IntArray, output_tokens: IntArray, seq: IntArray) -> None:
        """These requests, and no others, run now; ``output_tokens`` of each is the least that is known of its length.

        From now on a prediction rests on the requests enqueued after every forgotten one, ended or running: those
        that started in one period, followed alike. Older ones would be known only if they are long.
        """
        self._running = {
            int(one): (output_tokens[class_id == one], seq[class_id == one]) for one in np.unique(class_id)
        }
        self._curves.clear()

    def form(self, requests: Requests) -> CurveOfEach:
        """See :meth:`sloserve.estimator.length_rest.LengthEstimator.form`."""
        parts = [
            (self._curve(int(one)), np.flatnonzero(requests.class_id == one)) for one in np.unique(requests.class_id)
        ]
        return CurveOfEach(parts, requests.class_id.size)

    def remaining(self, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray) -> FloatArray:
        """See :meth:`LengthPredictor.remaining`; the mean is cut at the cap, not taken under it as by :meth:`rest`."""
        requests = Requests(class_id=class_id, output_tokens=output_tokens, max_tokens=max_tokens)
        expected = self.form(requests).mean_after(output_tokens)
        capped: FloatArray = np.maximum(np.minimum(expected, max_tokens - output_tokens), 1.0)
        return capped

    def _curve(self, class_id: int) -> SurvivalCurve:
        found = self._curves.get(class_id)
        if found is None:
            tokens, cut, seq = np.array([*self._ended.get(class_id, ())], np.int64).reshape(-1, 3).T
            running, running_seq = self._running.get(class_id, (_NONE, _NONE))
            first = self._first_seq.get(class_id, 0)
            if running.size:
                known = (seq >= first) | (seq < 0)
                tokens, cut, running = tokens[known], cut[known], running[running_seq >= first]
            found = self._curves[class_id] = survival_curve(
                tokens[cut == 0],
                np.concatenate((tokens[cut != 0], running)),
                prior_mean_tokens=self._prior_mean_tokens,
                prior_weight=self._prior_weight,
            )
        return found
