"""How many tokens a request will still emit, judged from the requests of its class that have ended.

Pure and deterministic: a prediction follows from the lengths observed, in their order. Requests that ended
over-represent short ones just after a start, since long ones are still running; tell the predictor of those
(:meth:`EmpiricalLength.running`), or wait for the window to turn over.

The other predictors behind the same interface, ``length_rest.LengthEstimator``: ``length_gaussian``, ``length_given``
(oracle, oracle with an error) and ``length_learned``.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.estimator.length.kaplan_meier import CurveOfEach, SurvivalCurve, survival_curve
from sloserve.estimator.length.remaining import Estimator, KnownRequests

_NONE: IntArray = np.empty(0, np.int64)


@dataclass(slots=True)
class _Window:
    """The requests of one class that ended last, in the order they ended; ``cut``: not by themselves.

    first_seq: every request enqueued from there on that has ended is here.
    """

    tokens: deque[int] = field(default_factory=deque)
    cut: deque[bool] = field(default_factory=deque)
    seq: deque[int] = field(default_factory=deque)
    num_cut: int = 0
    first_seq: int = 0

    def add(self, tokens: int, cut: bool, seq: int) -> None:
        self.tokens.append(tokens)
        self.cut.append(cut)
        self.seq.append(seq)
        self.num_cut += cut

    def forget(self) -> None:
        self.tokens.popleft()
        self.num_cut -= self.cut.popleft()
        self.first_seq = max(self.first_seq, self.seq.popleft() + 1)


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
        self._ended: dict[int, _Window] = {}
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
        ended = self._ended.setdefault(class_id, _Window())
        ended.add(output_tokens, cut, -1 if seq is None else seq)
        if len(ended.tokens) > self._window:
            ended.forget()
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

    def form(self, requests: KnownRequests) -> CurveOfEach:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.form`."""
        parts = [
            (self._curve(int(one)), np.flatnonzero(requests.class_id == one)) for one in np.unique(requests.class_id)
        ]
        return CurveOfEach(parts, requests.class_id.size)

    def _curve(self, class_id: int) -> SurvivalCurve:
        found = self._curves.get(class_id)
        if found is None:
            ended = self._ended.get(class_id, _Window())
            tokens = np.array(ended.tokens, np.int64)
            running, running_seq = self._running.get(class_id, (_NONE, _NONE))
            if running.size or ended.num_cut:
                cut, seq = np.array(ended.cut, bool), np.array(ended.seq, np.int64)
                known = (seq >= ended.first_seq) | (seq < 0) | (not running.size)
                running = np.concatenate((tokens[cut & known], running[running_seq >= ended.first_seq]))
                tokens = tokens[~cut & known]
            found = self._curves[class_id] = survival_curve(
                tokens,
                running,
                prior_mean_tokens=self._prior_mean_tokens,
                prior_weight=self._prior_weight,
            )
        return found
