"""Composes the shipped OPT profiles (125M, 1.3B, 2.7B, 6.7B on an A100) from measured kernel times.

One engine step is the sum of its kernels: matrix products and attention of ai-dynamo/aiconfigurator, elementwise
kernels of Vidur, as for the shipped Llama profiles; the latency form is fitted to the sums. SLOSERVE_DATA names the
folder with the tables. Prints what is assumed, and writes ``--out``/a100-opt-*.yaml.
"""

import csv
import gzip
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from benchmarks.arguments import parser_for
from sloserve.estimator.step_time.fit import MeasuredStep, fit_hinge, score
from sloserve.estimator.step_time.latency import StepLoad

DEVICE = "a100_sxm"
VOCABULARY, POSITIONS, MAX_LEN = 50272, 2050, 2048
ASSUMED = (
    "matrix products between the table's sizes are interpolated; below its least (1024) they take as long as those",
    "heads of 64 and 80 take as long as heads of 128 with the same bytes of KV: decode attention is that of grouped "
    "queries at another batch, prefill attention that of 32 heads at another batch",
    "elementwise kernels are Llama-2-7B's without rope, in proportion to the width, never shorter than for one token",
    "scheduling, sampling and launch gaps take 1 ms a step; for the smallest models that is most of the step",
)


@dataclass(frozen=True)
class OPTShape:
    """One OPT model."""

    name: str
    layers: int
    hidden: int

    @property
    def weights(self) -> int:
        return (VOCABULARY + POSITIONS + 2) * self.hidden + self.layers * (12 * self.hidden**2 + 13 * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.hidden * 2


SHAPES = (
    OPTShape("125m", 12, 768),
    OPTShape("1.3b", 24, 2048),
    OPTShape("2.7b", 32, 2560),
    OPTShape("6.7b", 32, 4096),
)


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(Path(os.environ["SLOSERVE_DATA"]) / name, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Kernels:
    """Measured times in ms."""

    def __init__(self) -> None:
        self._gemm = self._grid("gpu_gemm_bf16.csv.gz", ("m", "k", "n"), lambda row: True)
        attention = "gpu_attention_bf16.csv.gz"
        self._decode = self._grid(
            attention, ("batch_size", "step"), lambda row: row["phase"] == "generation" and _heads(row) == (32, 8)
        )
        self._prefill = self._grid(
            attention, ("batch_size", "isl"), lambda row: row["phase"] == "context" and _heads(row) == (32, 32)
        )
        medians = defaultdict(list)
        for row in rows("gpu_vidur_mlp_ops.csv.gz"):
            if row["device"] == "a100" and row["model"] == "Llama-2-7b-hf" and row["tp"] == "1":
                ops = ("input_layernorm_ms", "post_attention_layernorm_ms", "mlp_act_ms", "add_ms", "add_ms")
                medians[int(row["num_tokens"])].append(sum(float(row[op]) for op in ops))
        self._tokens = sorted(medians)
        self._elementwise = [float(np.median(medians[n])) for n in self._tokens]

    def _grid(self, file: str, keys: tuple[str, ...], wanted) -> RegularGridInterpolator:  # type: ignore[no-untyped-def]
        found = {
            tuple(int(row[key]) for key in keys): float(row["latency_ms"])
            for row in rows(file)
            if row["device"] == DEVICE and row["vllm"] == "0.14.0" and wanted(row)
        }
        axes = [sorted({key[i] for key in found}) for i in range(len(keys))]
        # A cell that was not measured is as much slower than its neighbour as the work in it is more.
        values = np.full([len(axis) for axis in axes], np.nan)
        for index in np.ndindex(values.shape):
            key = tuple(axis[i] for axis, i in zip(axes, index, strict=True))
            if key in found:
                values[index] = found[key]
            else:
                before = (*index[:-1], index[-1] - 1)
                values[index] = values[before] * key[-1] / axes[-1][index[-1] - 1]
        return RegularGridInterpolator(axes, values)

    def gemm(self, m: int, k: int, n: int) -> float:
        return _at(self._gemm, (m, k, n))

    def decode(self, batch: float, context: float) -> float:
        return _at(self._decode, (batch, max(context - 1.0, 1.0)))

    def prefill(self, batch: float, length: int) -> float:
        return _at(self._prefill, (batch, length))

    def elementwise(self, tokens: int, share: float) -> float:
        return max(float(np.interp(tokens, self._tokens, self._elementwise)) * share, self._elementwise[0])


def _at(grid: RegularGridInterpolator, point: tuple[float, ...]) -> float:
    """The grid's value there, or at its nearest edge."""
    inside = [np.clip(x, axis[0], axis[-1]) for x, axis in zip(point, grid.grid, strict=True)]
    return float(grid(inside)[0])


def _heads(row: dict[str, str]) -> tuple[int, int]:
    return int(row["num_heads"]), int(row["num_key_value_heads"])


def step_ms(kernels: Kernels, shape: OPTShape, prefills: tuple[int, int], decodes: tuple[int, int]) -> float:
    """prefills: number and length; decodes: number and context."""
    h, heads = shape.hidden, shape.hidden / 128
    tokens = prefills[0] * prefills[1] + decodes[0]
    layer = sum(kernels.gemm(tokens, k, n) for k, n in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)))
    layer += kernels.elementwise(tokens, h / 4096)
    if prefills[0]:
        layer += kernels.prefill(prefills[0] * heads / 32, prefills[1])
    if decodes[0]:
        layer += kernels.decode(decodes[0] * heads / 8, decodes[1])
    return shape.layers * layer + kernels.gemm(prefills[0] + decodes[0], h, VOCABULARY)


def steps(kernels: Kernels, shape: OPTShape) -> list[MeasuredStep]:
    """The grid of the shipped Llama profiles, up to OPT's context."""
    prefills = [(0, 0)] + [(1, 2**i) for i in range(6, 12)] + [(4, 256), (4, 512), (8, 256)]
    decodes = [(0, 0)] + [(2**i, c) for i in range(9) for c in (128, 512, 1024, 2048) if 2**i * c <= 65536]
    return [
        MeasuredStep(StepLoad.of([(p[1], 0)] * p[0], [d[1]] * d[0]), step_ms(kernels, shape, p, d) / 1e3)
        for p in prefills
        for d in decodes
        if p[0] + d[0]
    ]


def profile(kernels: Kernels, shape: OPTShape) -> str:
    measured = steps(kernels, shape)
    form = fit_hinge(measured)
    decode_only = [s for s in measured if not s.load.prefill_tokens]
    mixed = [s for s in measured if s.load.prefill_tokens]
    whole, decode, prefill = (score(form, part).mape_percent for part in (measured, decode_only, mixed))
    print(f"opt-{shape.name}: MAPE {whole:.1f} % (decode only {decode:.1f} %, with prefill {prefill:.1f} %)")
    capacity = int((0.9 * 79.1 * 2**30 - 2 * shape.weights - 2 * 2**30) // shape.kv_bytes_per_token)
    name = shape.name.upper()
    return f"""# OPT-{name} on an A100, composed of kernel times by benchmarks/estimator/compose_opt.py.
name: a100-opt-{shape.name}
hardware: 1x NVIDIA A100 SXM 80 GB
model: OPT-{name}, bf16
tensor_parallel: 1
vllm_version: "0.14.0"
source: >-
  Sums of measured kernel times, one sum a step: ai-dynamo/aiconfigurator @ 095f58a51c4c (matrix products, attention,
  for that vLLM version), microsoft/vidur @ 7d47513363ec (norms, activation); this project's least squares fit to the
  sums, weighted by 1/t
licence: "Apache-2.0 (aiconfigurator, NVIDIA), MIT (Vidur, Microsoft)"
error:
  mape_percent: {whole:.1f}
  text: >-
    Over the fit's own grid: decode-only steps {decode:.1f} %, steps with prefill {prefill:.1f} %; no separate test
    set. Kernel sums are a lower bound of what an engine measures. Assumed: heads of less than 128 cost as those of 128
    with the same bytes of KV; matrix products below 1024 columns as those of 1024; elementwise kernels in proportion
    to Llama-2-7B's.

# 2 * {shape.layers} layers * {shape.hidden} * 2 bytes: keys and values, layers, hidden size, bf16.
kv_bytes_per_token: {shape.kv_bytes_per_token}
# 0.9 of the GPU's 79.1 GiB, as CUDA reports it, less 2 bytes for each of {shape.weights:,} weights, less 2 GiB for
# activations and workspaces (an assumption); where models share the GPU, each has a part of it.
kv_capacity_tokens: {capacity}
block_size: 16
# PCIe 4.0 x16, 31.5 GB/s in theory; about 80 % is reached with pinned memory.
link_bandwidth_gb_per_s: 25.0
# Scheduling, sampling, launch gaps: not in the kernel sums. Real engines add 1 to 2 ms; asynchronous scheduling hides
# the rest.
engine_overhead_ms: 1.0
max_model_len: {MAX_LEN}
max_num_seqs: 256
max_num_batched_tokens: 2048
# 2 bytes for each of {shape.weights:,} weights.
weights_bytes: {2 * shape.weights}

grid:
  max_step_tokens: {max(s.load.tokens for s in measured)}
  max_prefills: 8
  max_prefill_attention_tokens2: {MAX_LEN**2} # one prompt of {MAX_LEN} tokens
  max_decode_seqs: 256
  max_decode_context_tokens: 65536

latency:
  form: hinge
  free_tokens: {form.free_tokens}
  base_ms: {form.base_ms:.4g}
  token_ms: {form.token_ms:.4g}
  seq_ms: {form.seq_ms:.4g}
  context_token_ms: {form.context_token_ms:.4g}
  attention_token2_ms: {form.attention_token2_ms:.4g}
  # No prompt of the grid has a prefix: taken to cost what a prompt's own tokens do.
  prefix_attention_token2_ms: {form.attention_token2_ms:.4g}
  decode:
    base_ms: {form.decode.base_ms:.4g}
    seq_ms: {form.decode.seq_ms:.4g}
    context_token_ms: {form.decode.context_token_ms:.4g}
"""


def main() -> None:
    out = parser_for(__doc__, out=Path(__file__).parent / "profiles").parse_args().out
    for text in ASSUMED:
        print("assumed:", text)
    kernels = Kernels()
    for shape in SHAPES:
        (out / f"a100-opt-{shape.name}.yaml").write_text(profile(kernels, shape), encoding="utf-8")


if __name__ == "__main__":
    main()
