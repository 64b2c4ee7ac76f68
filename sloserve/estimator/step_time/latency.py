"""The time of one engine step, as a function of the tokens in it.

There are three forms, each from a published fit: a hinge over the token count (fitted to per-kernel tables),
DistServe's two linear fits, and the bilinear fits of the simulated-annealing paper. Coefficients are in milliseconds,
results in seconds.

Guarantees: a step without tokens costs 0; any other step costs a positive, finite time. Coefficients are checked when a
form is built, so that ``step_s`` does arithmetic only. A form need not be monotone: hinge's decode-only set is a fit of
its own. Its inverse, ``prefill_within``, is monotone: it uses each form's monotone bound.

Draft tokens of speculative decoding pass through the model beside the token of their sequence. They read no weights and
no context that the decode does not read anyway, so each costs at most its matrix products. Drafting them costs time of
its own, which depends on the draft model: no form knows it; a recalibrated or learnt latency does.

Steps may mix prefill and decode. The papers of DistServe and of simulated annealing measured the two apart, on engines
that did not mix them. Here such a step costs prefill + decode - the smaller of the two constants: the constant stands
for reading the weights and launching the kernels, which a fused step does once. The result is never below either part.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from sloserve.core.files.model import NOT_TINY
from sloserve.estimator.step_time.inverse import ROUNDING, most_tokens, quadratic_root

_MS_PER_S = 1000.0
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Positive = Annotated[float, Field(gt=0.0), NOT_TINY]
NotNegative = Annotated[float, Field(ge=0.0)]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one engine step computes.

    Args:
        prefill_tokens: Prompt tokens computed, summed over num_prefills chunks.
        num_prefills: Number of chunks of prompts.
        decode_seqs: Sequences that decode, each one token and its draft tokens.
        decode_context_tokens: Tokens that the decodes attend to, summed.
        prefill_attention_tokens2: Sum over the chunks of ``chunk * (chunk + 2 * prefix)``, twice the attended pairs;
            equal to the sum of squared lengths where no chunk has a prefix.
        draft_tokens: Draft tokens that are verified beside the decodes, summed. ``None`` leaves them open:
            :class:`~sloserve.estimator.step_time.online.OnlineLatency` then takes the mean of the engine's recent
            decodes, and a profile takes none.
    """

    prefill_tokens: int = 0
    num_prefills: int = 0
    decode_seqs: int = 0
    decode_context_tokens: int = 0
    prefill_attention_tokens2: int = 0
    draft_tokens: int | None = None

    @classmethod
    def of(
        cls,
        prefills: Iterable[tuple[int, int]] = (),
        decode_contexts: Iterable[int] = (),
        draft_tokens: int | None = None,
    ) -> "StepLoad":
        """Return the load of a step with these ``(chunk, prefix)`` prefills and decode context lengths, in tokens."""
        chunks = list(prefills)
        contexts = list(decode_contexts)
        return cls(
            prefill_tokens=sum(chunk for chunk, _ in chunks),
            num_prefills=len(chunks),
            decode_seqs=len(contexts),
            decode_context_tokens=sum(contexts),
            prefill_attention_tokens2=sum(chunk * (chunk + 2 * prefix) for chunk, prefix in chunks),
            draft_tokens=draft_tokens,
        )

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return self.prefill_tokens + self.decode_seqs + (self.draft_tokens or 0)

    @property
    def decodes(self) -> "StepLoad":
        """The load of the decodes alone."""
        return StepLoad(0, 0, self.decode_seqs, self.decode_context_tokens, 0, self.draft_tokens)


class StepLatency(Protocol):
    """Seconds that the engine takes for a step, and the step that fits into a given time."""

    def step_s(self, load: StepLoad) -> float: ...

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk, after ``prefix_tokens`` tokens, beside ``base`` in ``seconds``.

        The result is 0 if not even one fits, and at most 2 ** 20. ``step_s`` of the two together is within ``seconds``
        wherever the result is above 0. The result never falls with ``seconds``, and never rises with ``prefix_tokens``,
        nor with ``base`` if each of its decodes has as many drafts; so it may be below the largest chunk where
        ``step_s`` itself is not monotone.
        """
        ...


class FittedLatency(StepLatency, Protocol):
    """A latency form, or a profile: known before the engine runs."""

    def decode_bound_s(self, load: StepLoad) -> float:
        """Return the time of the load's decodes alone, in seconds.

        The result never falls with them, and is never below their ``step_s``.
        """
        ...

    def decode_floor_s(self, load: StepLoad) -> float:
        """Return the seconds that the load's decodes surely add to the smallest step; never falls with them.

        The result is not above what they add to a step without prompts, nor does it grow faster than the bound that
        ``prefill_within`` keeps to.
        """
        ...


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

    With prefill the time is ``base + token * max(0, tokens - free_tokens) + seq * decode_seqs + context_token * context
    + attention * Q0 + prefix_attention * Q1 + prefill * num_prefills``; without, it is ``decode``. Q1 is the part of
    the attention term that is surely due to prefixes, above ``prefill_tokens ** 2``; Q0 is the rest. The shipped fits
    saw no prefixes, and their attention coefficient also absorbs curvature of the matrix products, which long prefixes
    do not bring: so prefixes have a coefficient of their own, the attention kernel's. prefill_ms is what each prompt in
    the step costs by itself, its row in the batch and its own attention; sums of kernel times have none. seq_ms may be
    negative (a decode token's own cost is in token_ms already); the set is valid as a whole only. Draft tokens count
    among the tokens; without prefill each of them that is beyond ``free_tokens`` costs ``token``.
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
            raise ValueError(f"seq_ms: {self.seq_ms:g} gives a step of many decode sequences a negative time")

    def step_s(self, load: StepLoad) -> float:
        if load.prefill_tokens == 0:
            return self.decode_bound_s(load)
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

    def decode_bound_s(self, load: StepLoad) -> float:
        if not load.decode_seqs:
            return 0.0
        beyond = 0
        if load.draft_tokens:
            free = max(self.free_tokens - load.decode_seqs, 0)
            beyond = max(load.draft_tokens - free, 0)
        return (self.decode.ms(load) + self.token_ms * beyond) / _MS_PER_S

    def decode_floor_s(self, load: StepLoad) -> float:
        context_ms = min(self.context_token_ms, self.decode.context_token_ms) * max(load.decode_context_tokens - 1, 0)
        seqs_ms = min(max(self.seq_ms, 0.0), self.decode.seq_ms) * max(load.decode_seqs - 1, 0)
        return (context_ms + seqs_ms) / _MS_PER_S

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk, see :meth:`StepLatency.prefill_within`.

        The bound is not below the time of the decodes alone. A negative seq_ms makes no step cheaper than the same step
        without decodes, and attention to a prefix is never cheaper than attention within a chunk.
        """
        limit_ms = seconds * _MS_PER_S * ROUNDING
        if self.decode_bound_s(base) * _MS_PER_S > limit_ms:
            return 0
        seqs, before, attention = base.decode_seqs, base.prefill_tokens, base.prefill_attention_tokens2
        drafts = base.draft_tokens or 0
        rises, falls = max(self.seq_ms, 0.0), min(self.seq_ms, 0.0)
        both = self.prefix_attention_token2_ms
        fresh_extra = max(self.attention_token2_ms - both, 0.0)
        fixed_ms = (
            self.base_ms
            + self.context_token_ms * base.decode_context_tokens
            + self.prefill_ms * (base.num_prefills + 1)
            + rises * seqs
        )

        def bound_ms(chunk: int) -> float:
            tokens, pairs = before + chunk, attention + chunk * (chunk + 2 * prefix_tokens)
            free = max(self.free_tokens - tokens - drafts, 0)
            decodes_ms = (self.token_ms + falls) * max(seqs - free, 0) + falls * min(seqs, free)
            return (
                fixed_ms
                + self.token_ms * max(tokens + drafts - self.free_tokens, 0)
                + max(decodes_ms, 0.0)
                + both * pairs
                + fresh_extra * min(pairs, tokens * tokens)
            )

        spare_ms = limit_ms - bound_ms(0)
        if spare_ms <= 0.0:
            return 0
        # From its own time at no chunk on, the bound is a square in the chunk once the free tokens are used up.
        linear = 2.0 * (both * prefix_tokens + fresh_extra * before)
        left = max(self.free_tokens - before - drafts - seqs, 0)
        square = both + fresh_extra
        guess = min(
            quadratic_root(spare_ms, linear, square),
            quadratic_root(spare_ms + self.token_ms * left, linear + self.token_ms, square),
        )
        return most_tokens(bound_ms, limit_ms, guess)


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class DistServe:
    """DistServe's profiler: prefill linear in tokens and squared lengths, decode linear with two sets by batch size.

    Source: DistServe (OSDI 2024), simdistserve/estimators/time_estimator.py. Differs: squared lengths are generalised
    to chunks with a prefix; a draft token counts as one more sequence without context, which is at least its matrix
    products; mixed steps follow the module's rule.
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
        drafts = load.draft_tokens or 0
        line = self.decode_small if load.decode_seqs + drafts < self.small_batch_below else self.decode_large
        if load.decode_seqs:
            ms += line.ms(load) + line.seq_ms * drafts
        if load.prefill_tokens:
            ms += self.prefill_base_ms + self.prefill_token_ms * load.prefill_tokens
            ms += self.prefill_attention_token2_ms * load.prefill_attention_tokens2
        if load.decode_seqs and load.prefill_tokens:
            ms -= min(self.prefill_base_ms, line.base_ms)
        return ms / _MS_PER_S

    def decode_bound_s(self, load: StepLoad) -> float:
        return self._decodes_bound_ms(load, 0.0) / _MS_PER_S if load.decode_seqs else 0.0

    def decode_floor_s(self, load: StepLoad) -> float:
        """Return the seconds that decodes surely add: of the context alone.

        One more sequence may select the cheaper of the two sets, so sequences do not count.
        """
        small, large = self.decode_small, self.decode_large
        context_ms = min(small.context_token_ms, large.context_token_ms) * max(load.decode_context_tokens - 1, 0)
        return max(context_ms - max(small.base_ms + small.seq_ms - large.base_ms, 0.0), 0.0) / _MS_PER_S

    def _decodes_bound_ms(self, load: StepLoad, least_base_ms: float) -> float:
        """Return the time of the decodes, in ms, with a constant of at least ``least_base_ms``.

        It is a bound: a large batch costs no less than the largest small one with the same context.
        """
        positions = load.decode_seqs + (load.draft_tokens or 0)
        small, context = min(positions, self.small_batch_below - 1), load.decode_context_tokens
        most_ms = least_base_ms
        if small:
            line = self.decode_small
            most_ms = max(line.base_ms, least_base_ms) + line.context_token_ms * context + line.seq_ms * small
        if positions > small:
            line = self.decode_large
            large_ms = max(line.base_ms, least_base_ms) + line.context_token_ms * context + line.seq_ms * positions
            most_ms = max(most_ms, large_ms)
        return most_ms

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk, see :meth:`StepLatency.prefill_within`.

        The bound of the decodes is ``_decodes_bound_ms``; prefill is monotone by itself.
        """
        limit_ms = seconds * _MS_PER_S * ROUNDING
        decodes_ms = self._decodes_bound_ms(base, self.prefill_base_ms)

        def bound_ms(chunk: int) -> float:
            pairs = base.prefill_attention_tokens2 + chunk * (chunk + 2 * prefix_tokens)
            tokens_ms = self.prefill_token_ms * (base.prefill_tokens + chunk)
            return decodes_ms + tokens_ms + self.prefill_attention_token2_ms * pairs

        spare_ms = limit_ms - bound_ms(0)
        if spare_ms <= 0.0:
            return 0
        linear = self.prefill_token_ms + 2.0 * self.prefill_attention_token2_ms * prefix_tokens
        return most_tokens(bound_ms, limit_ms, quadratic_root(spare_ms, linear, self.prefill_attention_token2_ms))


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class BatchFit:
    """``alpha * b * l + beta * b + gamma * l + delta`` for a batch of ``b`` requests of length ``l``, in ms."""

    alpha_ms: NotNegative
    beta_ms: NotNegative
    gamma_ms: NotNegative
    delta_ms: Positive

    def ms(self, requests: int, tokens: int) -> float:
        """Return the batch's time in ms if ``requests`` requests of equal length have ``tokens`` tokens in all."""
        return self.alpha_ms * tokens + self.beta_ms * requests + self.gamma_ms * tokens / requests + self.delta_ms


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Bilinear:
    """The simulated-annealing paper's predictor, bilinear in batch size and length.

    Source: SLO-aware scheduling by simulated annealing, Eq. 14 (prefill of a batch) and 15 (one decode step of a
    batch). Its Eq. 16 sums Eq. 15 over the output's tokens, so Eq. 15 is one step. Differs: lengths within a batch
    may be unequal (mean); a chunk of a longer prompt counts by its own tokens, as the form has no attention term; a
    draft token costs as much as one more request without context; mixed steps follow the module's rule.
    """

    form: Literal["bilinear"] = "bilinear"
    prefill: BatchFit
    decode: BatchFit

    def step_s(self, load: StepLoad) -> float:
        ms = 0.0
        if load.decode_seqs:
            ms += self._decodes_ms(load)
        if load.prefill_tokens:
            ms += self.prefill.ms(max(load.num_prefills, 1), load.prefill_tokens)
        if load.decode_seqs and load.prefill_tokens:
            ms -= min(self.prefill.delta_ms, self.decode.delta_ms)
        return ms / _MS_PER_S

    def decode_bound_s(self, load: StepLoad) -> float:
        """Return the time of the load's decodes alone, in seconds.

        Differs from the protocol: a decode of less than the mean context may lower the result, as it lowers the form.
        """
        return self._decodes_ms(load) / _MS_PER_S if load.decode_seqs else 0.0

    def _decodes_ms(self, load: StepLoad) -> float:
        drafts_ms = self.decode.beta_ms * (load.draft_tokens or 0)
        return self.decode.ms(load.decode_seqs, load.decode_context_tokens) + drafts_ms

    def decode_floor_s(self, load: StepLoad) -> float:
        """Return ``decode_bound_s`` minus the time of the smallest step, in seconds."""
        return max(self.decode_bound_s(load) - self.decode.ms(1, 1) / _MS_PER_S, 0.0)

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk, see :meth:`StepLatency.prefill_within`; a prefix costs nothing.

        It is a bound: the mean prompt is taken to be as long as all of them together.

        Differs: a decode is more load if its context is at least the mean. A bound for any other would charge a batch
        as one sequence of the whole context, several times its time.
        """
        limit_ms = seconds * _MS_PER_S * ROUNDING
        fit, decodes_ms = self.prefill, 0.0
        if base.decode_seqs:
            decodes_ms = self._decodes_ms(base) - self.decode.delta_ms
        fixed_ms = max(fit.delta_ms, self.decode.delta_ms if base.decode_seqs else 0.0) + max(decodes_ms, 0.0)
        fixed_ms += fit.beta_ms * (base.num_prefills + 1)
        token_ms = fit.alpha_ms + fit.gamma_ms

        def bound_ms(chunk: int) -> float:
            return fixed_ms + token_ms * (base.prefill_tokens + chunk)

        spare_ms = limit_ms - bound_ms(0)
        return most_tokens(bound_ms, limit_ms, quadratic_root(spare_ms, token_ms, 0.0)) if spare_ms > 0.0 else 0
