"""Derives profiles of devices and models of the papers that nobody published step times of, from data sheets alone.

Every coefficient of ``a100-llama2-7b``, which is composed of measured kernels, is scaled: what reads weights by their
bytes and the device's bandwidth, what reads KV by its bytes, matrix products and attention by their operations and the
device's arithmetic. Tensor parallel adds two all-reduces a layer. Then the same rule is applied where step times are
known: the other composed profiles, and DistServe's fits to steps that it measured; the error there is what each derived
profile states. OPT-66B on four A100 is DistServe's fit itself. SLOSERVE_DATA names the folder with that fit. Writes
``--out``/NAME.yaml, and the errors to results/derived_profiles.json.gz.
"""

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.estimator.derived_text import derived_text, folded
from benchmarks.estimator.latency_text import latency_text
from benchmarks.publish import RESULTS, write_result
from sloserve.estimator.step_time.latency import DecodeLine, DistServe, Hinge, StepLatency, StepLoad
from sloserve.estimator.step_time.profile import load_profile

REFERENCE = "a100-llama2-7b"
GIB = 2**30
ALL_REDUCES = 2
FITS = "gpu_distserve_a100_fits.json.gz"
METHOD = (
    f"{REFERENCE}, which is composed of measured kernels, scaled by bytes, bandwidth and arithmetic of the data sheets"
)


@dataclass(frozen=True)
class Device:
    """bandwidth: bytes/s. arithmetic: dense fp16 operations/s. memory_gib: as CUDA reports it. host: GB/s of the link
    to the host that are reached. peer: bytes/s between GPUs, and reduce_s: least time of an all-reduce.
    """

    title: str
    bandwidth: float
    arithmetic: float
    memory_gib: float
    host: float
    peer: float
    reduce_s: float


_NVLINK, _PCIE_4, _PCIE_3 = (200e9, 9e-6), (20e9, 30e-6), (10e9, 30e-6)
A100 = Device("NVIDIA A100 SXM 80 GB", 2.039e12, 312e12, 79.1, 25.0, *_NVLINK)
A800 = Device("NVIDIA A800 80 GB", 2.039e12, 312e12, 79.1, 25.0, *_NVLINK)
H100 = Device("NVIDIA H100 SXM 80 GB", 3.35e12, 989.5e12, 79.1, 50.0, *_NVLINK)
A40 = Device("NVIDIA A40 48 GB", 0.696e12, 149.7e12, 44.4, 25.0, *_PCIE_4)
A10 = Device("NVIDIA A10 24 GB", 0.6e12, 125e12, 22.1, 25.0, *_PCIE_4)
V100 = Device("NVIDIA V100 32 GB, PCIe 3.0", 0.9e12, 112e12, 31.7, 12.5, *_PCIE_3)


@dataclass(frozen=True)
class Model:
    """hidden: width of the residual, and of all query heads together. kv: width of all keys of a token and layer.
    weight_bytes: of one weight; KV is of 2 bytes.
    """

    title: str
    layers: int
    hidden: int
    kv: int
    weights: int
    max_model_len: int
    weight_bytes: int = 2

    @classmethod
    def opt(cls, size: str, layers: int, hidden: int, weight_bytes: int = 2) -> "Model":
        weights = (50272 + 2050 + 2) * hidden + layers * (12 * hidden**2 + 13 * hidden)
        return cls(f"OPT-{size}", layers, hidden, hidden, weights, 2048, weight_bytes)

    @property
    def bytes(self) -> int:
        return self.weights * self.weight_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv * 2


LLAMA2_7B = Model("Llama-2-7B", 32, 4096, 4096, 6_738_415_616, 4096)
LLAMA3_8B = Model("Llama-3.1-8B", 32, 4096, 1024, 8_030_261_248, 131072)
LLAMA3_70B = Model("Llama-3.1-70B", 80, 8192, 1024, 70_553_706_496, 131072)
MISTRAL_7B = Model("Mistral-7B", 32, 4096, 1024, 7_241_732_096, 32768)
VICUNA_13B = Model("Vicuna-13B", 40, 5120, 5120, 13_015_864_320, 4096)
LLAMA_33B = Model("Llama-33B", 60, 6656, 6656, 32_528_943_616, 2048)
QWEN_7B = Model("Qwen2.5-7B", 28, 3584, 512, 7_615_616_512, 32768)
QWEN_32B = Model("Qwen2.5-32B", 64, 5120, 1024, 32_763_876_352, 32768)
OPT_6_7B = Model.opt("6.7B", 32, 4096)
OPT_13B = Model.opt("13B", 40, 5120)
OPT_30B = Model.opt("30B", 48, 7168)
OPT_66B = Model.opt("66B", 64, 9216)


@dataclass(frozen=True)
class Setup:
    """One model on ``gpus`` devices, tensor parallel. paper: who ran it."""

    name: str
    device: Device
    gpus: int
    model: Model
    paper: str

    @property
    def capacity_tokens(self) -> int:
        free = self.gpus * (0.9 * self.device.memory_gib - 2.0) * GIB - self.model.bytes
        return int(free // self.model.kv_bytes_per_token)


DERIVED = (
    Setup("a10-mistral-7b", A10, 1, MISTRAL_7B, "QLM, Fig. 14"),
    Setup("a10x2-vicuna-13b", A10, 2, VICUNA_13B, "QLM, Fig. 14"),
    Setup("a100-mistral-7b", A100, 1, MISTRAL_7B, "QLM, Sec. 8"),
    Setup("a100-vicuna-13b", A100, 1, VICUNA_13B, "QLM, Sec. 8"),
    Setup("a100x2-llama-33b", A100, 2, LLAMA_33B, "EconoServe, Sec. 4"),
    Setup("a100x4-opt-30b", A100, 4, OPT_30B, "Andes, Table 3"),
    Setup("a100x4-opt-175b-int8", A100, 4, Model.opt("175B", 96, 12288, weight_bytes=1), "Andes, Table 3"),
    Setup("a100x8-opt-175b", A100, 8, Model.opt("175B", 96, 12288), "EconoServe, Sec. 4"),
    Setup("a40x4-opt-66b", A40, 4, OPT_66B, "Andes, Fig. 15a"),
    Setup("a800-qwen2.5-7b", A800, 1, QWEN_7B, "simulated annealing, Fig. 15"),
    Setup("a800-qwen2.5-32b", A800, 1, QWEN_32B, "simulated annealing, Fig. 17"),
    Setup("v100x4-qwen2.5-32b", V100, 4, QWEN_32B, "simulated annealing, Fig. 13"),
)
FITTED = Setup("a100x4-opt-66b", A100, 4, OPT_66B, "Andes, Table 3")
"""Of which DistServe measured whole steps."""


def derive(setup: Setup) -> Hinge:
    """The reference's form, each coefficient in proportion to what its part reads or computes."""
    found = load_profile(REFERENCE).latency
    assert isinstance(found, Hinge) and found.prefix_attention_token2_ms is not None
    device, model, n = setup.device, setup.model, setup.gpus
    bandwidth, arithmetic = n * device.bandwidth / A100.bandwidth, n * device.arithmetic / A100.arithmetic
    reads = model.bytes / LLAMA2_7B.bytes / bandwidth
    products = model.weights / LLAMA2_7B.weights / arithmetic
    kv = model.kv_bytes_per_token / LLAMA2_7B.kv_bytes_per_token / bandwidth
    pairs = model.layers * model.hidden / (LLAMA2_7B.layers * LLAMA2_7B.hidden) / arithmetic
    reduce_ms = token_reduce_ms = 0.0
    if n > 1:
        reduce_ms = 1e3 * ALL_REDUCES * model.layers * device.reduce_s
        token_reduce_ms = 1e3 * ALL_REDUCES * model.layers * model.hidden * 2 * 2 * (n - 1) / n / device.peer
    return Hinge(
        free_tokens=round(found.free_tokens * reads / products),
        base_ms=found.base_ms * reads + reduce_ms,
        token_ms=found.token_ms * products + token_reduce_ms,
        seq_ms=found.seq_ms * products,
        context_token_ms=found.context_token_ms * kv,
        attention_token2_ms=found.attention_token2_ms * pairs,
        prefix_attention_token2_ms=found.prefix_attention_token2_ms * pairs,
        decode=DecodeLine(
            base_ms=found.decode.base_ms * reads + reduce_ms,
            seq_ms=found.decode.seq_ms * products + token_reduce_ms,
            context_token_ms=found.decode.context_token_ms * kv,
        ),
    )


def distserve_fit(model: str, gpus: int) -> DistServe:
    with gzip.open(Path(os.environ["SLOSERVE_DATA"]) / FITS, "rt", encoding="utf-8") as file:
        fit = json.load(file)["vllm"][model][str(gpus)]
    small, large = (
        DecodeLine(base_ms=base, context_token_ms=context, seq_ms=seq)
        for base, context, seq in (fit["decoding_smallbs"], fit["decoding_largebs"])
    )
    base, token, pair = fit["prefill"]
    return DistServe(
        prefill_base_ms=base,
        prefill_token_ms=token,
        prefill_attention_token2_ms=pair,
        small_batch_below=fit["decoding_large_small_bs_threshold"],
        decode_small=small,
        decode_large=large,
    )


def loads() -> dict[str, list[StepLoad]]:
    """Steps of usual size, by kind."""
    decodes = [StepLoad.of(decode_contexts=[c] * b) for b in (1, 8, 32, 64, 128) for c in (128, 512, 1024)]
    prefills = [StepLoad.of([(p, 0)] * k) for p, k in ((128, 1), (512, 1), (1024, 1), (2048, 1), (512, 4))]
    return {"decode": decodes, "prefill": prefills}


def misses(form: StepLatency, truth: StepLatency) -> dict[str, float]:
    """MAPE in % and mean ratio of ``form`` to ``truth``, by kind of step."""
    found = {}
    for kind, steps in loads().items():
        ratio = np.array([form.step_s(step) / truth.step_s(step) for step in steps])
        found[f"{kind}_mape_percent"] = float(np.abs(ratio - 1.0).mean() * 100.0)
        found[f"{kind}_ratio"] = float(ratio.mean())
    return found


def checks() -> list[dict[str, Any]]:
    """The rule where the steps are known."""
    composed = (
        Setup("a100-opt-6.7b", A100, 1, OPT_6_7B, ""),
        Setup("a100-llama3-70b-tp4", A100, 4, LLAMA3_70B, ""),
        Setup("h100-llama2-7b", H100, 1, LLAMA2_7B, ""),
        Setup("h100-llama3-8b", H100, 1, LLAMA3_8B, ""),
    )
    rows = [
        {"steps": setup.name, "kind": "composed of measured kernels"}
        | misses(derive(setup), load_profile(setup.name).latency)
        for setup in composed
    ]
    for gpus, model, name in ((1, OPT_13B, "facebook/opt-13b"), (4, OPT_66B, "facebook/opt-66b")):
        setup = Setup(f"{name} on {gpus} A100", A100, gpus, model, "")
        rows.append(
            {"steps": setup.name, "kind": "DistServe's fit to steps measured on an engine"}
            | misses(derive(setup), distserve_fit(name, gpus))
        )
    return rows


def profile(setup: Setup, latency: Hinge | DistServe, source: str, error: str, licence: str, overhead_ms: float) -> str:
    device, model, n = setup.device, setup.model, setup.gpus
    seqs = 192 if isinstance(latency, DistServe) else 256
    derived = "" if isinstance(latency, DistServe) else derived_text(METHOD) + "\n"
    return f"""# {model.title} on {n} {device.title}, by benchmarks/estimator/derive_profiles.py. Ran in: {setup.paper}.
name: {setup.name}
hardware: {n}x {device.title}
model: {model.title}, {"fp16" if model.weight_bytes == 2 else "int8 weights"}
tensor_parallel: {n}
vllm_version: null
source: >-
{folded(source, "  ")}
licence: "{licence}"
error:
  mape_percent: null
  text: >-
{folded(error, "    ")}
{derived}
# 2 * {model.layers} layers * {model.kv} * 2 bytes: keys and values, layers, width of the keys, fp16.
kv_bytes_per_token: {model.kv_bytes_per_token}
# 0.9 of each GPU's {device.memory_gib} GiB, as CUDA reports it, less {model.weight_bytes} bytes for each of
# {model.weights:,} weights, less 2 GiB a GPU for activations and workspaces (an assumption).
kv_capacity_tokens: {setup.capacity_tokens}
block_size: 16
# About 80 % of the link's rate in theory, one link a GPU.
link_bandwidth_gb_per_s: {device.host * n}
engine_overhead_ms: {overhead_ms}
max_model_len: {model.max_model_len}
max_num_seqs: {seqs}
max_num_batched_tokens: 2048
weights_bytes: {model.bytes}

grid:
  max_step_tokens: 4352
  max_prefills: 8
  max_prefill_attention_tokens2: 16777216 # one prompt of 4096 tokens
  max_decode_seqs: {seqs}
  max_decode_context_tokens: 65536

{latency_text(latency, digits=5)}"""


def error_text(rows: list[dict[str, Any]]) -> str:
    """rows: see :func:`checks`."""
    decode, prefill = (max(row[f"{kind}_mape_percent"] for row in rows) for kind in ("decode", "prefill"))
    measured = [row for row in rows if row["kind"].startswith("DistServe")]
    small, large = (f"{row['decode_ratio']:.2f} and {row['prefill_ratio']:.2f}" for row in measured)
    return (
        f"Unknown: derived, no step was measured. Where steps are known the same rule is off by at most {decode:.0f} % "
        f"(decode) and {prefill:.0f} % (prefill) on average. Of steps measured on an engine of 2023 it has {small} "
        f"times the time (decode and prefill, OPT-13B on one A100), and {large} (OPT-66B on four): "
        "benchmarks/results/derived_profiles.json.gz."
    )


def texts(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The profiles by name."""
    source = (
        "Not measured. Data sheets (bandwidth, dense fp16 arithmetic, memory) and the model's shape; the shares of the "
        f"peaks that are reached are those of {REFERENCE}; two all-reduces a layer where there are several GPUs"
    )
    error, facts = error_text(rows), "Facts of data sheets and model cards; no data of them is included"
    found = {one.name: profile(one, derive(one), source, error, facts, 1.0) for one in DERIVED}
    found[FITTED.name] = profile(
        FITTED,
        distserve_fit("facebook/opt-66b", FITTED.gpus),
        "LLMServe/DistServe @ 82831f1604cc, simdistserve/estimators/profile_data, vLLM engine, OPT-66B, four GPUs: its "
        "least squares fit to whole steps it measured on A100 80 GB",
        "None published. Prefill and decode were measured apart, on vLLM of 2023; the cost of a step that mixes them "
        "is this project's rule: prefill + decode - the smaller constant.",
        "Apache-2.0 (DistServe)",
        0.0,
    )
    return found


def main() -> None:
    out = parser_for(__doc__, out=Path(__file__).parent / "profiles").parse_args().out
    rows = checks()
    for row in rows:
        print(json.dumps(row))
    for name, text in texts(rows).items():
        (out / f"{name}.yaml").write_text(text, encoding="utf-8")
    write_result(RESULTS / "derived_profiles.json.gz", {"reference": REFERENCE, "rows": rows})


if __name__ == "__main__":
    main()
