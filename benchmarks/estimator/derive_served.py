"""Derives the shipped profiles of models that are served today on H100, H200 and B200: no step was measured.

A step is the sum of its kernels: matrix products, attention, elementwise kernels, experts, all-reduces (see
:mod:`benchmarks.estimator.kernel_times` for where their times come from). Experts are read as often as tokens chosen
at random would have them read. A latency form is fitted to such steps. Each profile is then compared with times per
output token that somebody published of a server (:mod:`benchmarks.estimator.published_timings`), and states the error;
nothing is fitted to those. The same rule is applied where steps are known: the shipped profiles that are composed of
measured kernels, and decode steps that this project measured on an H100. SLOSERVE_DATA names the folder with the
measured tables. Writes ``--out``/NAME.yaml, and both comparisons to results/served_profiles.json.gz.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.estimator import kernel_times
from benchmarks.estimator.derive_profiles import misses
from benchmarks.estimator.derived_text import Comparison, derived_text, folded
from benchmarks.estimator.latency_text import latency_text
from benchmarks.estimator.published_timings import TIMINGS, Point
from benchmarks.estimator.served_models import LLAMA3_8B, NUMBER_BYTES, SETUPS, Setup
from benchmarks.publish import RESULTS, write_result
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.estimator.step_time.fit import MeasuredStep, fit_distserve, fit_hinge, score
from sloserve.estimator.step_time.latency import DecodeLine, DistServe, Hinge, StepLatency, StepLoad
from sloserve.estimator.step_time.profile import load_profile

CONTEXT = 8192
"""Tokens of the requests for which capacity is stated."""
STEP_TOKENS = 8192
"""Most tokens of a step, vLLM's default for a server on these GPUs."""
SEQS = 256
MEASURED = DecodeLine(base_ms=6.26, seq_ms=0.0125, context_token_ms=0.042e-3)
"""Decode steps of Llama-3.1-8B on an H100 as measured: docs/benchmarks/gpu.md."""


def step_s(setup: Setup, prefills: tuple[int, int, int], decodes: tuple[int, int]) -> float:
    """Return the time of a step. prefills: number, chunk and prefix of each; decodes: number and context of each."""
    model, device, gpus = setup.model, setup.device, setup.gpus
    tokens = prefills[0] * prefills[1] + decodes[0]
    dense = kernel_times.products(device, model.dense)
    layer = sum(
        dense.seconds(
            device,
            inputs * outputs / gpus * NUMBER_BYTES[model.dense],
            2.0 * tokens * inputs * outputs / gpus,
            kernel_times.SPEED[model.dense],
        )
        for inputs, outputs in model.layer_products
    )
    layer += _experts_s(setup, tokens) + _exchange_s(setup, tokens)
    if setup.latent is None:
        layer += kernel_times.elementwise_s(device, gpus, tokens, model.hidden, dense=model.experts is None)
    head = kernel_times.products(device, "bf16")
    sampled, numbers = prefills[0] + decodes[0], model.hidden * model.vocabulary / gpus
    found = model.layers * layer + _attention_s(setup, prefills, decodes)
    return found + head.seconds(device, 2.0 * numbers, 2.0 * sampled * numbers, 1.0)


def _experts_s(setup: Setup, tokens: int) -> float:
    """Return the time of a layer's routed experts, of which each token chooses some at random, and of the router."""
    model, device, experts = setup.model, setup.device, setup.model.experts
    if experts is None:
        return 0.0
    everywhere, spread = tokens * setup.ranks, setup.gpus * setup.ranks
    weights = 3.0 * model.hidden * experts.width / spread
    touched = experts.number * (1.0 - (1.0 - experts.chosen / experts.number) ** everywhere)
    routed = kernel_times.PUBLISHED[device, f"experts {experts.format}"].seconds(
        device,
        touched * weights * NUMBER_BYTES[experts.format],
        2.0 * everywhere * experts.chosen * weights,
        # On Hopper fp4 is computed in bf16, on B200 in fp8.
        2.0 if experts.format == "fp8" or device is kernel_times.B200 else 1.0,
    )
    router = float(model.hidden * experts.number)
    return routed + kernel_times.products(device, "bf16").seconds(device, 2 * router, 2 * tokens * router, 1.0)


def _exchange_s(setup: Setup, tokens: int) -> float:
    """Return the time in which a layer's GPUs exchange tokens.

    Two all-reduces with tensor parallelism, with expert parallelism too: each GPU has all tokens. With data parallel
    attention vLLM's default gathers the tokens of all ranks and scatters the sums, which is taken to last as long as
    one all-reduce over the tokens of all ranks.
    """
    reduces = 2 * kernel_times.all_reduce_s(setup.device, setup.gpus, tokens * setup.model.hidden)
    everywhere = tokens * setup.ranks * setup.model.hidden
    return reduces + kernel_times.all_reduce_s(setup.device, setup.ranks, everywhere)


def _attention_s(setup: Setup, prefills: tuple[int, int, int], decodes: tuple[int, int]) -> float:
    """Return the time of attention in all layers."""
    model, device, gpus = setup.model, setup.device, setup.gpus
    if setup.latent is not None and model.latent is not None:
        csa, hca, (start, token) = setup.latent
        tokens = prefills[0] * prefills[1] + decodes[0]
        connections = model.layers * (start + token * tokens) * 1e-6
        return connections + sum(
            layers * kind.seconds(prefills, decodes) for layers, kind in zip(model.latent, (csa, hca), strict=True)
        )
    found = 0.0
    for layers, window in ((model.layers - model.windowed, model.max_model_len), (model.windowed, model.window)):
        if layers and decodes[0]:
            kv = 2.0 * max(model.kv_heads / gpus, 1.0) * model.head_size * NUMBER_BYTES[setup.kv]
            kernel = kernel_times.decode_attention(device, setup.kv)
            found += layers * kernel.seconds(device, decodes[0] * min(decodes[1], window) * kv, 0.0, 1.0)
        if layers and prefills[0]:
            number, chunk, prefix = prefills
            pairs = number * min(chunk * (chunk + 2.0 * prefix), 2.0 * chunk * window)
            kernel = kernel_times.prefill_attention(device)
            found += layers * kernel.seconds(device, 0.0, 2.0 * pairs * model.heads / gpus * model.head_size, 1.0)
    return found


def steps(setup: Setup) -> list[MeasuredStep]:
    """Return the grid that the form is fitted to: what the KV cache holds, up to 256 sequences and 8192 step tokens."""
    most = min(capacity_tokens(setup), 2**20)
    prefills = [(0, 0, 0)] + [(1, 2**i, 0) for i in range(6, 14)] + [(4, 256, 0), (4, 512, 0), (8, 256, 0)]
    prefills += [(1, chunk, prefix) for chunk in (2048, 8192) for prefix in (8192, 32768)]
    contexts = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    decodes = [(0, 0)] + [(2**i, c) for i in range(9) for c in contexts if 2**i * c <= most]
    return [
        MeasuredStep(StepLoad.of([(p[1], p[2])] * p[0], [d[1]] * d[0]), step_s(setup, p, d))
        for p in prefills
        for d in decodes
        if p[0] + d[0]
    ]


def capacity_tokens(setup: Setup) -> int:
    """Return the tokens that the KV cache holds, of requests of CONTEXT where it depends on them."""
    if setup.groups is None:
        return setup.kv_bytes // setup.kv_bytes_per_token
    return int(KVLayout(setup.groups).capacity_tokens(setup.blocks, CONTEXT))


def tpot_ms(form: StepLatency, point: Point) -> float:
    """Return the time per output token that the form foresees where so many streams run at a time.

    While one request decodes, each of the other streams starts one prompt, since all last as long: a token takes the
    step of the decodes, and its share of what those prompts add, in chunks of at most STEP_TOKENS.
    """
    contexts = [point.prompt + point.output // 2] * point.streams
    decode_s = form.step_s(StepLoad.of([], contexts))
    added_s = 0.0
    for prefix in range(0, point.prompt, STEP_TOKENS):
        chunk = min(STEP_TOKENS, point.prompt - prefix)
        added_s += form.step_s(StepLoad.of([(chunk, prefix)], contexts)) - decode_s
    return 1e3 * (decode_s + (point.streams - 1) * added_s / point.output)


@dataclass(frozen=True)
class Derived:
    """One derived profile before it is written.

    Args:
        form: the latency form, and of its fit to the derived steps: MAPE in % of all, of those that only decode, and
            of those with prompts.
        ratios: foreseen by published time per output token, one for each published figure.
    """

    setup: Setup
    form: Hinge | DistServe
    grid: list[MeasuredStep]
    fit_mape: tuple[float, float, float]
    ratios: list[float]

    @property
    def mape_percent(self) -> float:
        """Mean absolute percentage error against the published figures."""
        return 100.0 * sum(abs(ratio - 1.0) for ratio in self.ratios) / len(self.ratios)

    @property
    def ratio(self) -> float:
        """Mean of foreseen by published."""
        return sum(self.ratios) / len(self.ratios)


def derive(setup: Setup) -> Derived:
    """Return the form whose larger error, of steps that only decode and of steps with prompts, is the smaller one."""
    grid = steps(setup)
    decode_only = [s for s in grid if not s.load.prefill_tokens]
    mixed = [s for s in grid if s.load.prefill_tokens]

    def errors(form: StepLatency) -> tuple[float, float]:
        return score(form, decode_only).mape_percent, score(form, mixed).mape_percent

    forms: list[Hinge | DistServe] = [fit_hinge(grid), fit_distserve(grid)]
    form = min(forms, key=lambda one: max(errors(one)))
    timings = TIMINGS.get(setup.name)
    ratios = [tpot_ms(form, point) / point.tpot_ms for point in timings.points()] if timings else []
    return Derived(setup, form, grid, (score(form, grid).mape_percent, *errors(form)), ratios)


def checks() -> list[dict[str, Any]]:
    """Return how far the rule is from steps that are known."""
    rows: list[dict[str, Any]] = []
    for name, device in (("h100-llama3-8b", kernel_times.H100), ("h200-llama3-8b", kernel_times.H200)):
        form = derive(Setup(name, device, 1, LLAMA3_8B)).form
        rows.append({"steps": f"{name}, composed of measured kernels", **misses(form, load_profile(name).latency)})
        if device is kernel_times.H100:
            loads = [StepLoad.of([], [c] * n) for n in (1, 8, 32, 64, 128, 256) for c in (128, 512, 1024, 2048)]
            ratios = [1e3 * form.step_s(load) / MEASURED.ms(load) for load in loads]
            error = 100.0 * sum(abs(ratio - 1.0) for ratio in ratios) / len(ratios)
            decode = {"decode_mape_percent": error, "decode_ratio": sum(ratios) / len(ratios)}
            rows.append({"steps": f"{name}, decode steps measured on an H100", **decode})
    return [{key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()} for row in rows]


_SOURCE = (
    "Not measured. Sums of kernel times, one sum a step: fits to the tables of ai-dynamo/aiconfigurator @ 095f58a51c4c "
    "for vLLM 0.24.0 and of microsoft/vidur @ 7d47513363ec, data sheets, and the model's card and config.json; this "
    "project's least squares fit to the sums, weighted by 1/t"
)
METHOD = "sums of kernel times from published tables and data sheets, for the model's shape"


def _assumed(setup: Setup) -> str:
    """Return what is assumed of this set-up, in one sentence each."""
    found = []
    if setup.model.experts:
        found.append("Experts are chosen evenly and by chance.")
    if setup.ranks > 1:
        found.append(
            "All ranks have the same load, and exchanging tokens takes as long as one all-reduce over the tokens of "
            "all ranks (vLLM's default gathers and reduce-scatters them)."
        )
    elif setup.expert_parallel:
        found.append("Expert parallelism needs no exchange beside the all-reduces: each GPU has all tokens.")
    if setup.model.latent:
        if setup.device is not kernel_times.B200:
            found.append("Experts reach the shares of the peaks that those of gpt-oss-120b reach.")
        found.append("Layers with windows alone take as long as those that compress most.")
    elif setup.model.windowed:
        found.append("What a window does not see costs nothing.")
    if setup.device is kernel_times.B200:
        found.append("Elementwise kernels are those of an H100, by bandwidth.")
    return " ".join(found)


def _error(one: Derived) -> str:
    whole, decode, prefill = one.fit_mape
    fit = (
        f"Unknown: no step was measured. The form is within {whole:.1f} % of the sums that it was fitted to "
        f"(decode-only {decode:.1f} %, with prefill {prefill:.1f} %)."
    )
    return f"{fit} {_assumed(one.setup)}".strip()


def profile_text(one: Derived) -> str:
    """Return the text of the profile's file."""
    setup, model, device = one.setup, one.setup.model, one.setup.device
    timings = TIMINGS.get(setup.name)
    published = Comparison(timings.source, len(one.ratios), one.mape_percent, one.ratio) if timings else None
    capacity, most = capacity_tokens(setup), [s.load for s in one.grid]
    per_token = setup.kv_bytes_per_token if setup.groups is None else round(setup.block_bytes * setup.blocks / capacity)
    loaded = f"{setup.weights_bytes:,} bytes of weights"
    cache, block_size = "", 16
    memory = (
        f"# 0.9 of each GPU's {device.memory_gib} GiB, as CUDA reports it, less {loaded}, less 2 GiB a GPU for\n"
        "# activations and workspaces (an assumption)"
    )
    if setup.groups is not None:
        block_size = max(group.block_size for group in setup.groups)
        groups = "\n".join(
            "    - {" + ", ".join(f"{name}: {value}" for name, value in group._asdict().items() if value) + "}"
            for group in setup.groups
        )
        cache = (
            f"kv_cache:\n  # As vLLM groups the layers.\n  groups:\n{groups}\n  blocks: {setup.blocks}\n"
            f"  block_bytes: {setup.block_bytes}\n  context_tokens: {CONTEXT}\n"
        )
        memory += f".\n# Blocks of {setup.block_bytes:,} bytes; tokens are those of requests of context_tokens"
    named = [model.title, *(["fp8 KV"] if setup.kv == "fp8" else [])]
    named += ["expert parallel"] if setup.expert_parallel else []
    title = f"{model.short} on {setup.hardware.replace('x ', ' ')}"
    return f"""# {title}: derived by benchmarks/estimator/derive_served.py.
name: {setup.name}
hardware: {setup.hardware}
model: {", ".join(named)}
tensor_parallel: {setup.gpus}
vllm_version: null
source: >-
{folded(_SOURCE, "  ")}
licence: "Apache-2.0 (aiconfigurator, NVIDIA), MIT (Vidur, Microsoft)"
error:
  mape_percent: null
  text: >-
{folded(_error(one), "    ")}
{derived_text(METHOD, published)}

kv_bytes_per_token: {per_token}
{memory}.
kv_capacity_tokens: {capacity}
block_size: {block_size}
{cache}# PCIe 5.0 x16, 63 GB/s in theory; about 80 % is reached with pinned memory.
link_bandwidth_gb_per_s: {device.link_gb_per_s * setup.gpus}
# Asynchronous scheduling, vLLM's default, hides it: on an H100 sums of kernels alone were 7 % above measured steps.
engine_overhead_ms: 0.0
max_model_len: {model.max_model_len}
max_num_seqs: {SEQS}
max_num_batched_tokens: {STEP_TOKENS}
weights_bytes: {setup.weights_bytes}

grid:
  max_step_tokens: {max(load.tokens for load in most)}
  max_prefills: {max(load.num_prefills for load in most)}
  max_prefill_attention_tokens2: {max(load.prefill_attention_tokens2 for load in most)} # 8192 tokens on 32768
  max_decode_seqs: {max(load.decode_seqs for load in most)}
  max_decode_context_tokens: {max(load.decode_context_tokens for load in most)}

{latency_text(one.form)}"""


def main() -> None:
    out = parser_for(__doc__, out=Path("sloserve/estimator/profiles")).parse_args().out
    found = [derive(setup) for setup in SETUPS]
    rows: list[dict[str, Any]] = []
    for one in found:
        (out / f"{one.setup.name}.yaml").write_text(profile_text(one), encoding="utf-8")
        timings = TIMINGS.get(one.setup.name)
        rows.append(
            {
                "profile": one.setup.name,
                "form": one.form.form,
                "fit_mape_percent": [round(mape, 1) for mape in one.fit_mape],
                "published": timings.source if timings else None,
                "mape_percent": round(one.mape_percent, 1) if timings else None,
                "ratio": round(one.ratio, 3) if timings else None,
                "figures": [
                    [*point, round(point.tpot_ms * ratio, 2)]
                    for point, ratio in zip(timings.points() if timings else (), one.ratios, strict=True)
                ],
            }
        )
        print(json.dumps({name: value for name, value in rows[-1].items() if name != "figures"}))
    columns = {"fit_mape_percent": ["all", "decode", "prefill"], "figures": [*Point._fields, "derived_ms"]}
    write_result(RESULTS / "served_profiles.json.gz", {"columns": columns, "checks": checks(), "profiles": rows})


if __name__ == "__main__":
    main()
