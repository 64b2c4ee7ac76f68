"""What a learned predictor knows of a request at admission, as one row of numbers.

Without text: prompt tokens, ``max_tokens``, hour of the day, and what requests of its task were like in training. With
text also counts over the prompt, and what its words predict (:mod:`.prompt_words`); nothing of the text is stored. A
figure that is not known takes the training median, so no prediction needs all of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.length.prompt_words import FIGURES, PromptWords, both_ends, words_of
from sloserve.estimator.length.remaining import KnownRequests

_PLAIN = ("prompt_tokens", "max_tokens", "hour", "task_p10", "task_p50", "task_p90")
_TEXT = ("chars", "words", "lines", "digits", "questions", "code_marks", "number")
TASK_LEVELS = (0.1, 0.5, 0.9)
_NUMBER = re.compile(r"\b\d{1,4}\b")
_CODE_MARK = re.compile(r"[{}()\[\];=<>`_]")
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class Features:
    """The columns of features, and what stands in for an unknown value; part of the model file.

    Args:
        medians: Median of each column.
        tasks: Output tokens at TASK_LEVELS in training, by label.
        words: What the words of prompts predict; ``None`` if no text is used.
    """

    medians: tuple[float, ...] = ()
    tasks: dict[str, tuple[float, ...]] = field(default_factory=dict)
    words: PromptWords | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in order."""
        return _PLAIN if self.words is None else (*_PLAIN, *_TEXT, *FIGURES)

    def matrix(
        self, requests: KnownRequests, class_names: Sequence[str] = (), figures: FloatArray | None = None
    ) -> FloatArray:
        """Return one row per request, ``[n, len(names)]``.

        Args:
            requests: What is known of the requests.
            class_names: Label of each ``class_id``, used where the requests have no task.
            figures: What stands in for what the words predict, ``[n, 2]``: in training, predictions that have not seen
                the request.
        """
        n = requests.class_id.size
        out = np.full((n, len(self.names)), np.nan)
        if requests.prompt_tokens is not None:
            out[:, 0] = requests.prompt_tokens
        # A cap far above any output says nothing; engines without one put the context length or more there.
        out[:, 1] = np.minimum(requests.max_tokens, 1 << 20)
        if requests.arrival_s is not None:
            out[:, 2] = requests.arrival_s / 3600.0 % 24.0
        labels = requests.task
        if labels is None and class_names:
            labels = [class_names[one] if 0 <= one < len(class_names) else "" for one in requests.class_id.tolist()]
        if labels is not None:
            unknown = (np.nan,) * len(TASK_LEVELS)
            out[:, 3 : len(_PLAIN)] = [self.tasks.get(label, unknown) for label in labels]
        if self.words is not None and requests.prompt is not None:
            ends = [both_ends(text) for text in requests.prompt]
            words = [words_of(text) for text in ends]
            out[:, len(_PLAIN) : -len(FIGURES)] = list(map(_counts, requests.prompt, ends, words))
            out[:, -len(FIGURES) :] = self.words.figures(words) if figures is None else figures
        if self.medians:
            out = np.where(np.isnan(out), self.medians, out)
        return out


def _counts(text: str, ends: str, words: Sequence[str]) -> list[float]:
    """Return counts over a prompt: its characters, and what is counted of its ends and their words."""
    number = _NUMBER.search(ends)
    return [
        len(text),
        len(words),
        ends.count("\n") + 1,
        len(_DIGIT.findall(ends)),
        ends.count("?"),
        len(_CODE_MARK.findall(ends)),
        float(number[0]) if number else -1.0,
    ]
