"""Models and set-ups of today for which profiles are derived: shapes from model cards and ``config.json`` files."""

from dataclasses import dataclass, field

from benchmarks.estimator.kernel_times import B200, H100, H200, Device, LatentAttention
from sloserve.core.kernels.kv_layout import KVGroups

GIB = 2**30
NUMBER_BYTES = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 4.25 / 8}
"""Bytes of a weight; mxfp4 has a scale of one byte for 32 weights."""


@dataclass(frozen=True)
class Experts:
    """The mixture of experts of each layer.

    Args:
        number: routed experts of a layer.
        chosen: experts that a token is sent to.
        width: of an expert's inner product.
        format: number format of their weights.
        shared: width of the expert that every token passes, in the format of the dense weights.
    """

    number: int
    chosen: int
    width: int
    format: str
    shared: int = 0


@dataclass(frozen=True)
class Model:
    """One model.

    Args:
        title: name and number formats, for the profile.
        short: name in comments.
        layers, hidden, vocabulary: as in ``config.json``.
        heads, kv_heads, head_size: of attention.
        ffn: width of a dense layer's inner product; 0 with experts.
        dense: number format of the weights outside the experts; the head is in bf16.
        weights_bytes: of all weights.
        windowed: layers whose attention sees ``window`` tokens alone.
        experts: None for a dense model.
        latent: None, or DeepSeek-V4's numbers of layers by kind of attention: ``(csa, hca)``.
        max_model_len: longest context.
    """

    title: str
    short: str
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    dense: str
    weights_bytes: int
    max_model_len: int
    ffn: int = 0
    windowed: int = 0
    window: int = 0
    experts: Experts | None = None
    latent: tuple[int, int] | None = None

    @property
    def layer_products(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the matrix products of a layer outside its routed experts, in the dense format."""
        attention = [(self.hidden, (self.heads + 2 * self.kv_heads) * self.head_size)]
        attention += [(self.heads * self.head_size, self.hidden)]
        width = self.experts.shared if self.experts else self.ffn
        mlp = [(self.hidden, 2 * width), (width, self.hidden)] if width else []
        return mlp if self.latent else attention + mlp  # latent attention is timed as a whole


LLAMA3_8B = Model(
    "Llama-3.1-8B, bf16",
    "Llama 3.1 8B in bf16",
    32,
    4096,
    128_256,
    32,
    8,
    128,
    "bf16",
    2 * 8_030_261_248,
    131_072,
    ffn=14_336,
)
LLAMA3_70B = Model(
    "Llama-3.1-70B, fp8",
    "Llama 3.1 or 3.3 70B in fp8",
    80,
    8192,
    128_256,
    64,
    8,
    128,
    "fp8",
    # fp8 but for embedding and head.
    70_553_706_496 + 2 * 128_256 * 8192,
    131_072,
    ffn=28_672,
)
GPT_OSS_120B = Model(
    "gpt-oss-120b, bf16 with MXFP4 experts",
    "gpt-oss-120b",
    36,
    2880,
    201_088,
    64,
    8,
    64,
    "bf16",
    65_248_815_744,
    131_072,
    windowed=18,
    window=128,
    experts=Experts(128, 4, 2880, "mxfp4"),
)
QWEN3_235B = Model(
    "Qwen3-235B-A22B, fp8",
    "Qwen3-235B-A22B in fp8",
    94,
    4096,
    151_936,
    64,
    4,
    128,
    "fp8",
    # 235,093,634,560 weights of one byte; embedding and head have two.
    235_093_634_560 + 2 * 151_936 * 4096,
    262_144,
    experts=Experts(128, 8, 1536, "fp8"),
)


def _v4(
    title: str, layers: int, hidden: int, heads: int, experts: Experts, dense: int, latent: tuple[int, int]
) -> Model:
    """Return a DeepSeek-V4 with ``dense`` weights outside the routed experts, embedding and head included in bf16."""
    routed = int(layers * experts.number * 3 * hidden * experts.width * NUMBER_BYTES[experts.format])
    weights = routed + dense + 129_280 * hidden * 2
    short = title.split(",")[0]
    return Model(
        title,
        short,
        layers,
        hidden,
        129_280,
        heads,
        1,
        512,
        "fp8",
        weights,
        1_048_576,
        experts=experts,
        latent=latent,
    )


V4_FLASH = _v4(
    "DeepSeek-V4-Flash, fp8 with MXFP4 experts",
    43,
    4096,
    64,
    Experts(256, 6, 2048, "mxfp4", shared=2048),
    7_500_000_000,
    (21, 22),
)
V4_PRO = _v4(
    "DeepSeek-V4-Pro, fp8 with MXFP4 experts",
    61,
    7168,
    128,
    Experts(384, 6, 3072, "mxfp4", shared=3072),
    26_500_000_000,
    (30, 31),
)

V4_GROUPS = (
    KVGroups(1, 256),
    KVGroups(2, 64, window_tokens=128),
    KVGroups(1, 4, window_tokens=8),
    KVGroups(1, 8, window_tokens=128),
)
"""vLLM's groups of DeepSeek-V4's layers on a GPU: compressed keys and their index, windows, compressors' states."""

V4_BLOCK_BYTES = {"DeepSeek-V4-Flash": 1_002_240, "DeepSeek-V4-Pro": 1_435_968}
"""Bytes of a block on one rank: those of its largest group, the compressed keys."""


@dataclass(frozen=True)
class Setup:
    """One model on some GPUs.

    Args:
        gpus: of the engine's tensor parallelism.
        kv: number format of keys and values.
        expert_parallel: whether whole experts are spread over the GPUs (``--enable-expert-parallel``).
        ranks: of data parallel attention, all with experts of the same model; the profile is that of one rank.
        latent: times of DeepSeek-V4's two kinds of layers, CSA and HCA, and of its hyper-connections: constant and
            microseconds a token.
    """

    name: str
    device: Device
    gpus: int
    model: Model
    kv: str = "bf16"
    expert_parallel: bool = False
    ranks: int = 1
    latent: tuple[LatentAttention, LatentAttention, tuple[float, float]] | None = field(default=None, repr=False)

    @property
    def hardware(self) -> str:
        """The GPUs, as text."""
        if self.ranks > 1:
            return f"1 of {self.ranks} ranks of data parallel attention, each {self.gpus}x {self.device.title}"
        return f"{self.gpus}x {self.device.title}"

    @property
    def weights_bytes(self) -> int:
        """Bytes of weights on the engine's GPUs; a rank of data parallel attention has its share of the experts."""
        routed = self._routed_bytes
        return int(self.model.weights_bytes - routed + routed / self.ranks)

    @property
    def _routed_bytes(self) -> float:
        one = self.model.experts
        if one is None:
            return 0.0
        return self.model.layers * one.number * 3.0 * self.model.hidden * one.width * NUMBER_BYTES[one.format]

    @property
    def kv_bytes(self) -> int:
        """Bytes that vLLM has for KV on all the engine's GPUs; ranks hold a part of the weights each."""
        return int(self.gpus * (0.9 * self.device.memory_gib - 2.0) * GIB - self.weights_bytes)

    @property
    def groups(self) -> tuple[KVGroups, ...] | None:
        """The KV cache's groups; None where all layers keep the whole context."""
        if self.model.latent:
            return V4_GROUPS
        if self.model.windowed:
            return (KVGroups(1, 16), KVGroups(1, 16, window_tokens=self.model.window))
        return None

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on all the engine's GPUs; latent keys are kept whole on each."""
        if self.model.latent:
            return V4_BLOCK_BYTES[self.model.short] * self.gpus
        layers = self.model.layers - self.model.windowed
        return int(layers * 16 * 2 * self.model.kv_heads * self.model.head_size * NUMBER_BYTES[self.kv])

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV of a token in all layers, where all keep the whole context."""
        return self.block_bytes // 16

    @property
    def blocks(self) -> int:
        """Blocks of the pool, without vLLM's own."""
        return self.kv_bytes // self.block_bytes - 1


def _latent(
    seen: int, csa: list[tuple[float, ...]], hca: list[tuple[float, ...]], mhc: tuple[float, float]
) -> tuple[LatentAttention, LatentAttention, tuple[float, float]]:
    first, second = (LatentAttention(tokens, *kind) for tokens, kind in ((seen, csa), (128, hca)))  # type: ignore[arg-type]
    return first, second, mhc


SETUPS = (
    Setup("b200-llama3-8b", B200, 1, LLAMA3_8B),
    Setup("h100x4-llama3-70b-fp8", H100, 4, LLAMA3_70B, kv="fp8"),
    Setup("h200x2-llama3-70b-fp8", H200, 2, LLAMA3_70B, kv="fp8"),
    Setup("b200-llama3-70b-fp8", B200, 1, LLAMA3_70B, kv="fp8"),
    Setup("h100x2-gpt-oss-120b", H100, 2, GPT_OSS_120B),
    Setup("h200-gpt-oss-120b", H200, 1, GPT_OSS_120B),
    Setup("b200-gpt-oss-120b", B200, 1, GPT_OSS_120B, kv="fp8"),
    Setup("h200x4-qwen3-235b", H200, 4, QWEN3_235B),
    Setup("b200x4-qwen3-235b", B200, 4, QWEN3_235B),
    Setup(
        "h200x4-deepseek-v4-flash",
        H200,
        4,
        V4_FLASH,
        kv="fp8",
        expert_parallel=True,
        latent=_latent(
            2048,
            [(79.7, 0.229, 9.34e-5, 4.11e-5), (91.2, 0.242, 8.56e-5, 0.0)],
            [(53.5, 0.17, 5.0e-4, 1.52e-5), (60.7, 0.22, 0.0, 1.07e-6)],
            (21.6, 0.069),
        ),
    ),
    Setup(
        "b200x4-deepseek-v4-flash",
        B200,
        4,
        V4_FLASH,
        kv="fp8",
        expert_parallel=True,
        latent=_latent(
            2048,
            [(72.4, 0.154, 3.84e-5, 3.26e-5), (86.1, 0.14, 5.49e-5, 0.0)],
            [(51.2, 0.117, 2.5e-4, 3.71e-6), (57.6, 0.132, 0.0, 7.18e-7)],
            (7.7, 0.064),
        ),
    ),
    Setup(
        "h200x8-deepseek-v4-pro",
        H200,
        8,
        V4_PRO,
        kv="fp8",
        expert_parallel=True,
        latent=_latent(
            4096,
            [(87.5, 0.292, 6.74e-5, 5.19e-5), (101.0, 0.282, 9.36e-5, 1.09e-7)],
            [(66.2, 0.204, 4.5e-4, 2.1e-6), (70.0, 0.256, 0.0, 1.06e-6)],
            (26.2, 0.123),
        ),
    ),
    Setup(
        "b200x8-deepseek-v4-pro",
        B200,
        8,
        V4_PRO,
        kv="fp8",
        expert_parallel=True,
        latent=_latent(
            4096,
            [(80.9, 0.175, 3.13e-5, 3.83e-5), (97.6, 0.15, 5.6e-5, 2.66e-8)],
            [(55.3, 0.136, 2.32e-4, 8.97e-6), (63.2, 0.146, 0.0, 6.89e-7)],
            (29.3, 0.080),
        ),
    ),
    Setup(
        "b200-deepseek-v4-pro-dp8",
        B200,
        1,
        V4_PRO,
        kv="fp8",
        expert_parallel=True,
        ranks=8,
        latent=_latent(
            4096,
            [(124.0, 0.438, 8.49e-5, 1.84e-5), (137.0, 0.432, 7.51e-5, 0.0)],
            [(102.0, 0.382, 3.13e-4, 0.0), (105.0, 0.422, 0.0, 1.04e-6)],
            (29.3, 0.080),
        ),
    ),
)
"""Usual set-ups: of vLLM's recipes, and of InferenceX. DeepSeek-V4's times are fits to the published tables, see
:mod:`benchmarks.estimator.kernel_times`; they meet them to 3 to 7 % (decode) and 4 to 16 % (prefill).
"""
