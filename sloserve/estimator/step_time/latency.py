"""How long one engine step takes, as a function of the tokens in it.

Three forms, each from a published fit: a hinge over the token count (fitted to per-kernel tables), DistServe's two
linear fits, and the bilinear fits of the simulated-annealing paper. Coefficients are in milliseconds, results in
seconds.

Guarantees: a step without tokens costs 0; any other step costs a positive, finite time. Coefficients are checked when
a form is built, so that ``step_s`` does arithmetic only. No form is required to be monotone: hinge's decode-only set
is a fit of its own.

Steps that mix prefill and decode. DistServe and the simulated-annealing paper measured the two apart, on engines that
did not mix them. Here such a step costs prefill + decode - the smaller of the two constants: the constant stands for
reading the weights and launching the kernels, which a fused step does once. The result is never below either part.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

_MS_PER_S = 1000.0
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one engine step computes.

    prefill_tokens: prompt tokens computed, summed over num_prefills chunks. decode_seqs: sequences that get one token
    each. decode_context_tokens: tokens those attend to, summed. prefill_attention_tokens2: sum over the chunks of
    ``chunk * (chunk + 2 * prefix)``, twice the pairs attended; equals the sum of squared lengths where no chunk has a
    prefix.
    """

    prefill_tokens: int = 0
    num_prefills: int = 0
    decode_seqs: int = 0
    decode_context_tokens: int = 0
    prefill_attention_tokens2: int = 0

    @classmethod
    def of(cls, prefills: Iterable[tuple[int, int]] = (), decode_contexts: Iterable[int] = ()) -> "StepLoad":
        """The load of a step with these ``(chunk, prefix)`` prefills and decode context lengths, all in tokens."""
        chunks = list(prefills)
        contexts = list(decode_contexts)
        return cls(
            prefill_tokens=sum(chunk for chunk, _ in chunks),
            num_prefills=len(chunks),
            decode_seqs=len(contexts),
            decode_context_tokens=sum(contexts),
            prefill_attention_tokens2=sum(chunk * (chunk + 2 * prefix) for chunk, prefix in chunks),
        )

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return self.prefill_tokens + self.decode_seqs


class StepLatency(Protocol):
    """How long does the engine take for this step, in seconds?"""

    def step_s(self, load: StepLoad) -> float: ...


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class DecodeLine:
    """``base + context * context_tokens + seq * sequences``, in ms."""

    base_ms: Positive
    context_token_ms: NotNegative
    seq_ms: NotNegative

    def ms(self, load: StepLoad) -> float:
        return self.base_ms + self.context_token_ms * load.decode_context_tokens + self.seq_ms * load.decode_seqs


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Hinge:
    """Weight reads bound small steps, so the first ``free_tokens`` cost nothing beyond the base.

    With prefill: ``base + token * max(0, tokens - free_tokens) + seq * decode_seqs + context_token * context +
    attention * Q0 + prefix_attention * Q1 + prefill * num_prefills``; without: ``decode``. Q1 is the part of the
    attention term that is surely due to prefixes, above ``prefill_tokens ** 2``; Q0 is the rest. The shipped fits saw
    no prefixes, and their attention coefficient also absorbs curvature of the matrix products, which long prefixes do
    not bring: hence a coefficient of its own, the attention kernel's. prefill_ms is what each prompt in the step costs
    by itself, its row in the batch and its own attention; sums of kernel times have none. seq_ms may be negative (a
    decode token's own cost is in token_ms already); the
    set is valid as a whole only.
    """

    form: Literal["hinge"] = "hinge"
    free_tokens: Annotated[int, Field(ge=0)]
    base_ms: Positive
    token_ms: NotNegative
    seq_ms: float
    context_token_ms: NotNegative
    attention_token2_ms: NotNegative
    prefix_attention_token2_ms: NotNegative
    prefill_ms: NotNegative = 0.0
    decode: DecodeLine

    def __post_init__(self) -> None:
        if self.token_ms + self.seq_ms < 0.0 or self.base_ms + min(self.seq_ms, 0.0) * self.free_tokens <= 0.0:
            raise ValueError(f"seq_ms: {self.seq_ms:g} makes a step of many decode sequences cost less than nothing")

    def step_s(self, load: StepLoad) -> float:
        if load.prefill_tokens == 0:
            return self.decode.ms(load) / _MS_PER_S if load.decode_seqs else 0.0
        fresh = min(load.prefill_attention_tokens2, load.prefill_tokens**2)
        ms = (
            self.base_ms
            + self.token_ms * max(0, load.tokens - self.free_tokens)
            + self.seq_ms * load.decode_seqs
            + self.context_token_ms * load.decode_context_tokens
            + self.attention_token2_ms * fresh
            + self.prefix_attention_token2_ms * (load.prefill_attention_tokens2 - fresh)
            + self.prefill_ms * load.num_prefills
        )
        return ms / _MS_PER_S


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class DistServe:
    """DistServe's profiler: prefill linear in tokens and squared lengths, decode linear with two sets by batch size.

    Source: DistServe (OSDI 2024), simdistserve/estimators/time_estimator.py. Differs: squared lengths are generalised
    to chunks with a prefix; mixed steps follow the module's rule.
    """

    form: Literal["distserve"] = "distserve"
    prefill_base_ms: Positive
    prefill_token_ms: NotNegative
    prefill_attention_token2_ms: NotNegative
    small_batch_below: Annotated[int, Field(ge=1)]
    decode_small: DecodeLine
    decode_large: DecodeLine

    def step_s(self, load: StepLoad) -> float:
        ms = 0.0
        line = self.decode_small if load.decode_seqs < self.small_batch_below else self.decode_large
        if load.decode_seqs:
            ms += line.ms(load)
        if load.prefill_tokens:
            ms += self.prefill_base_ms + self.prefill_token_ms * load.prefill_tokens
            ms += self.prefill_attention_token2_ms * load.prefill_attention_tokens2
        if load.decode_seqs and load.prefill_tokens:
            ms -= min(self.prefill_base_ms, line.base_ms)
        return ms / _MS_PER_S


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class BatchFit:
    """``alpha * b * l + beta * b + gamma * l + delta`` for a batch of ``b`` requests of length ``l``, in ms."""

    alpha_ms: NotNegative
    beta_ms: NotNegative
    gamma_ms: NotNegative
    delta_ms: Positive

    def ms(self, requests: int, tokens: int) -> float:
        """The batch's time when its ``requests`` have ``tokens`` in all; their mean stands for the common length."""
        return self.alpha_ms * tokens + self.beta_ms * requests + self.gamma_ms * tokens / requests + self.delta_ms


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Bilinear:
    """The simulated-annealing paper's predictor, bilinear in batch size and length.

    Source: SLO-aware scheduling by simulated annealing, Eq. 14 (prefill of a batch) and 15 (one decode step of a
    batch). Its Eq. 16 sums Eq. 15 over the output's tokens, so Eq. 15 is one step. Differs: lengths within a batch
    may be unequal (mean); a chunk of a longer prompt counts by its own tokens, as the form has no attention term;
    mixed steps follow the module's rule.
    """

    form: Literal["bilinear"] = "bilinear"
    prefill: BatchFit
    decode: BatchFit

    def step_s(self, load: StepLoad) -> float:
        ms = 0.0
        if load.decode_seqs:
            ms += self.decode.ms(load.decode_seqs, load.decode_context_tokens)
        if load.prefill_tokens:
            ms += self.prefill.ms(max(load.num_prefills, 1), load.prefill_tokens)
        if load.decode_seqs and load.prefill_tokens:
            ms -= min(self.prefill.delta_ms, self.decode.delta_ms)
        return ms / _MS_PER_S
