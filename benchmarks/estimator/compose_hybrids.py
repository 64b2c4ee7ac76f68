"""Composes the shipped profiles of models whose layers keep KV in several ways, from data sheets: no step was measured.

A step is bound by memory or by matrix products, whichever takes longer, and attention comes on top. How much of the
device's peaks is reached is what the shipped h100-llama3-8b, composed of measured kernels, reaches. Experts are read as
often as tokens chosen at random would have them read. The latency form is fitted to such steps. Prints what it found,
and writes ``--out``/h100*.yaml.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import parser_for
from benchmarks.estimator.derived_text import derived_text
from benchmarks.estimator.latency_text import latency_text
from sloserve.core.kernels.kv_layout import KVGroups, KVLayout
from sloserve.estimator.step_time.fit import MeasuredStep, fit_hinge, score
from sloserve.estimator.step_time.latency import Hinge, StepLoad
from sloserve.estimator.step_time.profile import load_profile

GIB = 2**30
BYTES_PER_S, FLOPS_PER_S, USABLE_GIB = 3.35e12, 989.5e12, 0.9 * 79.1 - 2.0
METHOD = (
    "bytes and operations of the model's shape, at the shares of the data sheet's peaks that h100-llama3-8b reaches, "
    "which is composed of measured kernels"
)
CONTEXT = 8192
"""Tokens of the requests for which capacity is stated."""
FEWEST = 8
"""Decoding sequences of a step that the form is fitted to."""

_LLAMA = load_profile("h100-llama3-8b")
_LLAMA_BYTES = 2 * (8_030_261_248 - 128_256 * 4096)  # but for the embedding, of which a step reads a few rows
_LLAMA_PAIR_FLOPS = 2 * 32 * 32 * 128


@dataclass(frozen=True)
class ModelShape:
    """One model, from its card and ``config.json``.

    weights_bytes: on the devices. always_bytes: read in every step. expert_bytes: of one expert. active: parameters
    that a token is multiplied with. full, window, linear: layers. states_bytes: of a linear layer's state.
    """

    name: str
    title: str
    model: str
    gpus: int
    weights_bytes: int
    always_bytes: float
    active: float
    heads: int
    kv_heads: int
    head_size: int
    full: int
    windowed: int = 0
    window: int = 0
    linear: int = 0
    state_bytes: int = 0
    experts: int = 0
    chosen: int = 0
    expert_bytes: float = 0.0
    moe_layers: int = 0
    block_size: int = 16
    max_model_len: int = 131_072
    assumed: str = ""

    @property
    def groups(self) -> tuple[KVGroups, ...]:
        """As vLLM makes them: as many layers in each as there are of the rarest kind."""
        groups = [KVGroups(1, self.block_size)]
        if self.windowed:
            groups.append(KVGroups(self.windowed // self.full, self.block_size, window_tokens=self.window))
        if self.linear:
            groups.append(KVGroups(self.linear // self.full, self.block_size, states=2))
        return tuple(groups)

    @property
    def layer_bytes(self) -> int:
        """KV of a token in one layer of attention."""
        return 2 * self.kv_heads * self.head_size * 2

    @property
    def block_bytes(self) -> int:
        return self.full * self.block_size * self.layer_bytes

    @property
    def blocks(self) -> int:
        return int((self.gpus * USABLE_GIB * GIB - self.weights_bytes) // self.block_bytes) - 1


SHAPES = (
    ModelShape(
        name="h100-gpt-oss-20b",
        title="gpt-oss-20b on an H100: windows of 128 tokens in every other layer, experts in MXFP4.",
        model="gpt-oss-20b, bf16 with MXFP4 experts",
        gpus=1,
        weights_bytes=13_761_300_984,
        # 24 layers of attention (2880 to 5120, and 4096 back), and the head; embedding is not read.
        always_bytes=2 * (24 * (2880 * 5120 + 4096 * 2880 + 2880 * 32) + 201_088 * 2880),
        active=3.61e9 - 201_088 * 2880,
        heads=64,
        kv_heads=8,
        head_size=64,
        full=12,
        windowed=12,
        window=128,
        experts=32,
        chosen=4,
        expert_bytes=3 * 2880 * 2880 * 4.25 / 8,
        moe_layers=24,
    ),
    ModelShape(
        name="h100-gemma3-12b",
        title="Gemma 3 12B on an H100: windows of 1024 tokens in five layers of six.",
        model="Gemma-3-12b, bf16",
        gpus=1,
        weights_bytes=2 * 12_187_325_040,
        # Text only: the vision tower is loaded, and not read.
        always_bytes=2 * 11.77e9,
        active=11.77e9,
        heads=16,
        kv_heads=8,
        head_size=256,
        full=8,
        windowed=40,
        window=1024,
    ),
    ModelShape(
        name="h100x2-qwen3-next-80b",
        title="Qwen3-Next-80B-A3B on two H100: linear attention in three layers of four, 512 experts.",
        model="Qwen3-Next-80B-A3B, fp8",
        gpus=2,
        weights_bytes=82_000_000_000,
        always_bytes=1.6e9 + 151_936 * 2048 * 2,
        active=3.0e9,
        heads=16,
        kv_heads=2,
        head_size=256,
        full=12,
        linear=36,
        state_bytes=32 * 128 * 128 * 4 + 8192 * 3 * 2,
        experts=512,
        chosen=10,
        expert_bytes=3 * 2048 * 512,
        moe_layers=48,
        block_size=1056,
        max_model_len=262_144,
        assumed="fp8 weights compute as bf16 ones do; the two ranks' all-reduce takes no time; ",
    ),
    ModelShape(
        name="h100-granite4-small",
        title="Granite 4.0 H Small on an H100: Mamba-2 in nine layers of ten, 72 experts.",
        model="Granite-4.0-H-Small (32B-A9B), bf16",
        gpus=1,
        weights_bytes=2 * 32_207_337_984,
        always_bytes=2 * (32.21e9 - 40 * 72 * 3 * 4096 * 768 - 100_352 * 4096),
        active=9.0e9 - 100_352 * 4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        full=4,
        linear=36,
        state_bytes=128 * 64 * 128 * 2 + 8448 * 3 * 2,
        experts=72,
        chosen=10,
        expert_bytes=2 * 3 * 4096 * 768,
        moe_layers=40,
        block_size=528,
    ),
)


@dataclass(frozen=True)
class Reached:
    """Shares of the device's peaks: of its bandwidth, for weights and KV; of its arithmetic, in matrix products, and in
    attention to a prompt's own chunk and to its prefix.
    """

    weights: float
    kv: float
    products: float
    chunk: float
    prefix: float

    @classmethod
    def by_llama(cls) -> "Reached":
        """Those of h100-llama3-8b."""
        found = _LLAMA.latency
        assert isinstance(found, Hinge) and found.prefix_attention_token2_ms is not None
        pair_ms = _LLAMA_PAIR_FLOPS / FLOPS_PER_S * 1e3
        return cls(
            weights=_LLAMA_BYTES / BYTES_PER_S * 1e3 / found.decode.base_ms,
            kv=_LLAMA.kv_bytes_per_token / BYTES_PER_S * 1e3 / found.decode.context_token_ms,
            products=_LLAMA_BYTES / FLOPS_PER_S * 1e3 / found.token_ms,  # 2 bytes and 2 operations a weight
            chunk=pair_ms / found.attention_token2_ms,
            prefix=pair_ms / found.prefix_attention_token2_ms,
        )


def step_ms(shape: ModelShape, reached: Reached, prefills: tuple[int, int, int], decodes: tuple[int, int]) -> float:
    """prefills: number, chunk and prefix; decodes: number and context."""
    (prompts, chunk, prefix), (seqs, context) = prefills, decodes
    tokens = prompts * chunk + seqs
    missed = (1.0 - shape.chosen / shape.experts) ** tokens if shape.experts else 1.0
    read = shape.always_bytes + shape.moe_layers * shape.experts * (1.0 - missed) * shape.expert_bytes
    bandwidth, arithmetic = shape.gpus * BYTES_PER_S, shape.gpus * FLOPS_PER_S
    products_s = max(
        read / (bandwidth * reached.weights),
        2.0 * shape.active * tokens / (arithmetic * reached.products),
    )
    seen = shape.full * context + shape.windowed * min(context, shape.window)
    kv = seqs * (seen * shape.layer_bytes + 2 * shape.linear * shape.state_bytes)
    pairs_of = 2.0 * shape.heads * shape.head_size
    own = prompts * (shape.full * chunk**2 + shape.windowed * min(chunk**2, 2 * chunk * shape.window))
    before = prompts * (2 * chunk * (shape.full * prefix + shape.windowed * min(prefix, shape.window)))
    attention_s = pairs_of * (own / reached.chunk + before / reached.prefix) / arithmetic
    return 1e3 * (products_s + kv / (bandwidth * reached.kv) + attention_s)


def steps(shape: ModelShape, reached: Reached) -> list[MeasuredStep]:
    """The grid of the shipped Llama profiles, with long contexts and prefixes beside it; FEWEST sequences at least,
    since no line describes how the experts that are read grow with the first few.
    """
    prefills = [(0, 0, 0)] + [(1, 2**i, 0) for i in range(6, 13)] + [(4, 256, 0), (4, 512, 0), (8, 256, 0)]
    prefills += [(1, 2048, prefix) for prefix in (8192, 32768)]
    contexts = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    decodes = [(0, 0)] + [(FEWEST * 2**i, c) for i in range(6) for c in contexts if FEWEST * 2**i * c <= 2**20]
    return [
        MeasuredStep(StepLoad.of([(p[1], p[2])] * p[0], [d[1]] * d[0]), step_ms(shape, reached, p, d) / 1e3)
        for p in prefills
        for d in decodes
        if p[0] + d[0]
    ]


def profile(shape: ModelShape, reached: Reached) -> str:
    """The text of its file."""
    modelled = steps(shape, reached)
    form = fit_hinge(modelled)
    decode_only = [s for s in modelled if not s.load.prefill_tokens]
    mixed = [s for s in modelled if s.load.prefill_tokens]
    whole, decode, prefill = (score(form, part).mape_percent for part in (modelled, decode_only, mixed))
    layout = KVLayout(shape.groups)
    capacity = int(layout.capacity_tokens(shape.blocks, CONTEXT))
    print(f"{shape.name}: MAPE {whole:.1f} % (decode only {decode:.1f} %, with prefill {prefill:.1f} %); {form}")
    groups = "\n".join(
        "    - {" + ", ".join(f"{name}: {value}" for name, value in one._asdict().items() if value) + "}"
        for one in shape.groups
    )
    gpus = f"{shape.gpus}x NVIDIA H100 SXM 80 GB"
    return f"""# {shape.title} From data sheets alone, by benchmarks/estimator/compose_hybrids.py.
name: {shape.name}
hardware: {gpus}
model: {shape.model}
tensor_parallel: {shape.gpus}
vllm_version: null
source: >-
  Not measured. NVIDIA's data sheet (3.35e12 bytes/s, 989.5e12 bf16 operations/s a GPU), the model's card and
  config.json; the shares of both that are reached are those of h100-llama3-8b; this project's least squares fit to such
  steps, weighted by 1/t
licence: "Facts of data sheets and model cards; no data of them is included"
error:
  mape_percent: null
  text: >-
    Unknown: no step was measured. The form is within {whole:.1f} % of the composed steps that it was fitted to
    (decode-only
    {decode:.1f} %, with prefill {prefill:.1f} %), of {FEWEST} decodes or more. Assumed: {shape.assumed}experts
    are chosen evenly and by chance, and reach what dense products reach; linear attention takes the time of reading and
    writing its states; what a window does not see costs nothing.
{derived_text(METHOD)}

# {shape.block_bytes:,} bytes a block of any group of {shape.full} layers; on average at kv_cache's context_tokens.
kv_bytes_per_token: {round(shape.block_bytes * shape.blocks / capacity)}
# What kv_cache's blocks hold of requests of its context_tokens.
kv_capacity_tokens: {capacity}
block_size: {shape.block_size}
kv_cache:
  # As vLLM groups the layers: {shape.full} in each.
  groups:
{groups}
  # 0.9 of each GPU's 79.1 GiB, as CUDA reports it, less {shape.weights_bytes:,} bytes of weights, less 2 GiB a GPU for
  # activations and workspaces (an assumption), less vLLM's own block.
  blocks: {shape.blocks}
  block_bytes: {shape.block_bytes}
  context_tokens: {CONTEXT}
# PCIe 5.0 x16, 63 GB/s in theory; about 80 % is reached with pinned memory.
link_bandwidth_gb_per_s: {50.0 * shape.gpus}
# Scheduling, sampling, launch gaps: not in the composed steps. Real engines add 1 to 2 ms.
engine_overhead_ms: 1.0
max_model_len: {shape.max_model_len}
max_num_seqs: 256
max_num_batched_tokens: 2048
weights_bytes: {shape.weights_bytes}

grid:
  max_step_tokens: {max(s.load.tokens for s in modelled)}
  max_prefills: 8
  max_prefill_attention_tokens2: {max(s.load.prefill_attention_tokens2 for s in modelled)} # 2048 tokens on 32768
  max_decode_seqs: 256
  max_decode_context_tokens: {max(s.load.decode_context_tokens for s in modelled)}

{latency_text(form)}"""


def main() -> None:
    out = parser_for(__doc__, out=Path("sloserve/estimator/profiles")).parse_args().out
    reached = Reached.by_llama()
    print(reached)
    for shape in SHAPES:
        (out / f"{shape.name}.yaml").write_text(profile(shape, reached), encoding="utf-8")


if __name__ == "__main__":
    main()
