"""What a learned predictor knows of a request at admission, as one row of numbers.

Without text: prompt tokens, ``max_tokens``, hour of the day, and what requests of its task were like in training. With
text also counts over the prompt and its words, hashed into buckets; nothing of the text is stored. A figure that is not
known takes the training median, so no prediction needs all of them.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.length.remaining import KnownRequests

_PLAIN = ("prompt_tokens", "max_tokens", "hour", "task_p10", "task_p50", "task_p90")
_TEXT = ("chars", "words", "lines", "digits", "questions", "code_marks", "number")
TASK_LEVELS = (0.1, 0.5, 0.9)
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\b\d{1,4}\b")
_CODE_MARKS = frozenset("{}()[];=<>`_")
_TEXT_LIMIT = 8192
"""Characters looked at, half from each end: a prompt of a million must not hold up admission."""


@dataclass(frozen=True, slots=True)
class Features:
    """The columns of features, and what stands in for an unknown value; part of the model file.

    Args:
        medians: Median of each column.
        tasks: Output tokens at TASK_LEVELS in training, by label.
        buckets: Number of buckets of hashed words; 0 if no text is used.
    """

    medians: tuple[float, ...] = ()
    tasks: dict[str, tuple[float, ...]] = field(default_factory=dict)
    buckets: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in order."""
        words = tuple(f"word{i}" for i in range(self.buckets))
        return (*_PLAIN, *_TEXT, *words) if self.buckets else _PLAIN

    def matrix(self, requests: KnownRequests, class_names: Sequence[str] = ()) -> FloatArray:
        """Return one row per request, ``[n, len(names)]``.

        Args:
            requests: What is known of the requests.
            class_names: Label of each ``class_id``, used where the requests have no task.
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
        if self.buckets and requests.prompt is not None:
            start, counts = len(_PLAIN), len(_TEXT)
            for row, text in zip(out, requests.prompt, strict=True):
                row[start : start + counts], row[start + counts :] = _text_row(text, self.buckets)
        if self.medians:
            out = np.where(np.isnan(out), self.medians, out)
        return out


def _text_row(text: str, buckets: int) -> tuple[list[float], FloatArray]:
    """Return the counts, and the words by bucket; a word counts once, since long prompts repeat their words."""
    chars = len(text)
    if chars > _TEXT_LIMIT:
        text = text[: _TEXT_LIMIT // 2] + "\n" + text[-_TEXT_LIMIT // 2 :]
    words = _WORD.findall(text.lower())
    numbers = _NUMBER.findall(text)
    counts = [
        chars,
        len(words),
        text.count("\n") + 1,
        sum(c.isdigit() for c in text),
        text.count("?"),
        sum(c in _CODE_MARKS for c in text),
        float(numbers[0]) if numbers else -1.0,
    ]
    hashed = np.zeros(buckets)
    for word in sorted(set(words)):
        hashed[zlib.crc32(word.encode()) % buckets] += 1.0
    # The first word is mostly the verb, which says most about the output; it also counts in a bucket of its own weight.
    if words:
        hashed[zlib.crc32(words[0].encode()) % buckets] += 8.0
    return counts, hashed
