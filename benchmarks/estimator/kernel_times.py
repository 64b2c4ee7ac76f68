"""Times of single GPU kernels, from which the profiles of today's models are derived.

A kernel takes a constant time, and on top of it the time of reading its bytes or of its arithmetic at a share of the
device's peak. For bf16 on H100 and H200 the constants and shares are least squares fits to the measured tables in the
folder that SLOSERVE_DATA names. For fp8 and fp4, for B200, for experts, and for the attention of DeepSeek-V4 they are
fits to the tables that ai-dynamo/aiconfigurator publishes at commit 095f58a51c4c (Apache-2.0,
``systems/data/{h200_sxm,b200_sxm}``, vLLM 0.24.0): those tables are not in that folder, so the fitted numbers stand
here.
"""

import csv
import functools
import gzip
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

VLLM = "0.24.0"
"""vLLM's version in the measured tables."""


@dataclass(frozen=True)
class Device:
    """One GPU, from its data sheet.

    Args:
        title: name for the profile.
        bandwidth: of its memory, bytes/s.
        bf16: dense bf16 operations/s; fp8 has twice as many, fp4 four times on Blackwell.
        memory_gib: as CUDA reports it.
        table: name of the device in the measured tables.
        link_gb_per_s: rate of the link to the host that is reached, in 1e9 bytes/s.
        reduce_floor_s: least time of an all-reduce.
        reduce_speed: how many times as fast as the table's an all-reduce above that floor is.
    """

    title: str
    bandwidth: float
    bf16: float
    memory_gib: float
    table: str
    link_gb_per_s: float = 50.0
    reduce_floor_s: float = 0.0
    reduce_speed: float = 1.0


H100 = Device("NVIDIA H100 SXM 80 GB", 3.35e12, 989.5e12, 79.1, "h100_sxm")
H200 = Device("NVIDIA H200 SXM 141 GB", 4.8e12, 989.5e12, 139.8, "h200_sxm")
B200 = Device("NVIDIA B200 SXM 180 GB", 8.0e12, 2250e12, 178.4, "h200_sxm", reduce_floor_s=7e-6, reduce_speed=1.65)
"""Its table is not in the folder: an all-reduce is that of H200, with the floor and the ratio of the published one."""


@dataclass(frozen=True)
class Kernel:
    """One kind of kernel.

    Args:
        start_s: time that it takes whatever its size.
        memory: share of the memory bandwidth that it reaches.
        arithmetic: share of the arithmetic of its number format that it reaches.
        added: whether reading and computing add up, as they do in the experts' kernels, where some experts wait for
            bytes and others compute; otherwise the longer of the two counts.
    """

    start_s: float
    memory: float
    arithmetic: float
    added: bool = False

    def seconds(self, device: Device, read_bytes: float, operations: float, speed: float) -> float:
        """Return the time for these bytes and operations; ``speed``: of the number format, in multiples of bf16's."""
        read_s = read_bytes / (device.bandwidth * self.memory)
        compute_s = operations / (device.bf16 * speed * self.arithmetic)
        return self.start_s + (read_s + compute_s if self.added else max(read_s, compute_s))


_FP8_HOPPER, _FP8_B200 = Kernel(6.5e-6, 0.73, 0.60), Kernel(6.6e-6, 0.68, 0.54)
PUBLISHED = {
    (H100, "fp8"): _FP8_HOPPER,
    (H200, "fp8"): _FP8_HOPPER,
    (B200, "bf16"): Kernel(3.2e-6, 0.79, 0.70),
    (B200, "fp8"): _FP8_B200,
    (H100, "decode fp8"): Kernel(15.1e-6, 0.54, 1.0),
    (H200, "decode fp8"): Kernel(15.1e-6, 0.54, 1.0),
    (B200, "decode bf16"): Kernel(10.0e-6, 0.86, 1.0),
    (B200, "decode fp8"): Kernel(10.6e-6, 0.83, 1.0),
    (B200, "prefill"): Kernel(13.8e-6, 1.0, 0.42),
    # Experts. MXFP4 has bf16 activations on Hopper (the shape of gpt-oss-120b), and mxfp8 ones on B200 (the shapes of
    # DeepSeek-V4); fp8 is of the shape of Qwen3-235B.
    (H100, "experts mxfp4"): Kernel(60e-6, 0.68, 0.30, added=True),
    (H200, "experts mxfp4"): Kernel(60e-6, 0.68, 0.30, added=True),
    (B200, "experts mxfp4"): Kernel(32e-6, 0.92, 0.28, added=True),
    (H200, "experts fp8"): Kernel(33e-6, 0.91, 0.21, added=True),
    (B200, "experts fp8"): Kernel(35e-6, 0.98, 0.14, added=True),
}
"""Fits to published tables: of H200 for H100 too. Over all shapes of a table their mean error is 15 to 23 % (experts),
11 to 28 % (dense products) and 19 to 37 % (attention, with many small shapes).
"""

SPEED = {"bf16": 1.0, "fp8": 2.0}
"""Arithmetic of a number format, in multiples of bf16's."""


@dataclass(frozen=True)
class LatentAttention:
    """One layer's attention of DeepSeek-V4 with all that belongs to it: projections, compressor, indexer.

    A decode step of B sequences takes ``decode[0] + B * (decode[1] + decode[2] * min(context, seen) + decode[3] *
    context)`` microseconds. A chunk of T prompt tokens, with ``before = prefix + T / 2``, takes ``prefill[0] + T *
    (prefill[1] + prefill[2] * min(before, 6144) + prefill[3] * before)``.
    """

    seen: int
    decode: tuple[float, float, float, float]
    prefill: tuple[float, float, float, float]

    def seconds(self, prefills: tuple[int, int, int], decodes: tuple[int, int]) -> float:
        """Return the time of both; they are separate kernels."""
        number, chunk, prefix = prefills
        seqs, context = decodes
        found = 0.0
        if seqs:
            start, seq, near, far = self.decode
            found += start + seqs * (seq + near * min(context, self.seen) + far * context)
        if number:
            start, token, near, far = self.prefill
            before = prefix + chunk / 2
            found += start + number * chunk * (token + near * min(before, 6144) + far * before)
        return found * 1e-6


@dataclass(frozen=True)
class MeasuredKernels:
    """Fits to the measured tables of one device, in bf16."""

    products: Kernel
    decode: Kernel
    prefill: Kernel


def _rows(name: str, device: str) -> list[dict[str, str]]:
    with gzip.open(Path(os.environ["SLOSERVE_DATA"]) / name, "rt", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["device"] == device and row["vllm"] == VLLM]


def _line(x: list[float], seconds: list[float]) -> tuple[float, float]:
    """Return constant and slope of the non-negative line of least relative error."""
    y = np.array(seconds)
    found, _ = nnls(np.array([np.ones(len(y)), x]).T / y[:, None], np.ones(len(y)))
    return float(found[0]), float(found[1])


@functools.cache
def measured(device: Device) -> MeasuredKernels:
    """Return the fits for H100 or H200. Products below 2**22 weights are left out: no layer here has any."""
    small, large = [], []
    for row in _rows("gpu_gemm_bf16.csv.gz", device.table):
        m, n, k = (int(row[name]) for name in ("m", "n", "k"))
        seconds = float(row["latency_ms"]) / 1e3
        if n * k >= 2**22 and m <= 64:
            small.append((2.0 * (n * k + m * k + m * n) / device.bandwidth, seconds))
        elif n * k >= 2**22 and m >= 2048:
            large.append((2.0 * m * n * k / device.bf16, seconds))
    start, per_byte = _line(*map(list, zip(*small, strict=True)))
    _, per_operation = _line(*map(list, zip(*large, strict=True)))
    decode, prefill = [], []
    for row in _rows("gpu_attention_bf16.csv.gz", device.table):
        batch, length, heads, kv = (int(row[x]) for x in ("batch_size", "isl", "num_heads", "num_key_value_heads"))
        seconds = float(row["latency_ms"]) / 1e3
        if row["phase"] == "generation":
            decode.append((batch * (int(row["step"]) + 1) * kv * 128 * 2 * 2.0 / device.bandwidth, seconds))
        else:
            prefill.append((2.0 * batch * length**2 * heads * 128 / device.bf16, seconds))
    decode_start, per_kv = _line(*map(list, zip(*decode, strict=True)))
    prefill_start, per_pair = _line(*map(list, zip(*prefill, strict=True)))
    return MeasuredKernels(
        Kernel(start, 1 / per_byte, 1 / per_operation),
        Kernel(decode_start, 1 / per_kv, 1.0),
        Kernel(prefill_start, 1.0, 1 / per_pair),
    )


def products(device: Device, number: str) -> Kernel:
    """Return the kernel of dense matrix products with weights of this number format."""
    return PUBLISHED.get((device, number)) or measured(device).products


def decode_attention(device: Device, number: str) -> Kernel:
    """Return the kernel of decode attention on KV of this number format."""
    return PUBLISHED.get((device, f"decode {number}")) or measured(device).decode


def prefill_attention(device: Device) -> Kernel:
    """Return the kernel of prefill attention, which computes in bf16."""
    return PUBLISHED.get((device, "prefill")) or measured(device).prefill


@functools.cache
def _all_reduces(device: str, gpus: int) -> tuple[list[float], list[float]]:
    rows = [r for r in _rows("gpu_allreduce.csv.gz", device) if int(r["num_gpus"]) == gpus]
    found = sorted((float(r["message_size"]), float(r["latency_ms"]) / 1e3) for r in rows if "graph" in r["backend"])
    return [size for size, _ in found], [seconds for _, seconds in found]


def all_reduce_s(device: Device, gpus: int, numbers: float) -> float:
    """Return the time of vLLM's all-reduce of so many bf16 numbers over the GPUs, launched by a CUDA graph."""
    if gpus == 1:
        return 0.0
    sizes, seconds = _all_reduces(device.table, gpus)
    return max(float(np.interp(numbers, sizes, seconds)) / device.reduce_speed, device.reduce_floor_s)


@functools.cache
def _elementwise(gpus: int, dense: bool) -> tuple[list[float], list[float]]:
    """Seconds by tokens of norms, rope, residual, and activation where ``dense``: one layer of Llama-2-70B on H100."""
    operations = ["input_layernorm_ms", "post_attention_layernorm_ms", "attn_rope_ms", "add_ms"]
    operations += ["mlp_act_ms"] if dense else []
    found: dict[int, list[float]] = {}
    with gzip.open(Path(os.environ["SLOSERVE_DATA"]) / "gpu_vidur_mlp_ops.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["device"] == "h100" and "70b" in row["model"].lower() and int(row["tp"]) == gpus:
                found.setdefault(int(row["num_tokens"]), []).append(sum(float(row[name]) for name in operations) / 1e3)
    tokens = sorted(found)
    return [float(n) for n in tokens], [float(np.median(found[n])) for n in tokens]


def elementwise_s(device: Device, gpus: int, tokens: int, hidden: int, *, dense: bool) -> float:
    """Return the time of a layer's elementwise kernels: at least that of one token, beyond it by width and bytes/s."""
    sizes, seconds = _elementwise(gpus, dense)
    ratio = hidden / 8192 * H100.bandwidth / device.bandwidth
    return max(float(np.interp(tokens, sizes, seconds)) * ratio, seconds[0])
