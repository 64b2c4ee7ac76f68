"""The best current estimate of this engine's step times, and its error.

It is a profile where the deployment names one, corrected by the engine's steps; else what the steps alone have taught.
Either is trusted as far as two figures go. *Error*: each step is predicted before it is observed, and the usual error
widens every promise. *Coverage*: the largest loads seen; a step of more prefill is promised at most ``_PROBE`` times as
large, so that a wrong extrapolation costs one step of bounded length, and a few steps reach any size. A profile's grid
counts as seen.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sloserve.estimator.step_time.inverse import MOST_TOKENS, quadratic_root
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.learned import Learned
from sloserve.estimator.step_time.profile import Profile
from sloserve.estimator.step_time.recalibrate import Recalibrated

_PROBE = 2.0
_SHARE_STEPS = 256.0
_DRAFT_STEPS = 32.0
"""Steps with decodes over which the number of drafts of a decode is averaged."""


@dataclass(slots=True)
class Coverage:
    """The largest load seen, in each direction; at first, the largest that any engine may be asked for."""

    prefill_tokens: int = 256
    prefill_attention_tokens2: int = 256**2
    decode_seqs: int = 8
    decode_context_tokens: int = 8192

    @classmethod
    def of(cls, profile: Profile) -> "Coverage":
        """Return the coverage of the steps on which a profile was measured."""
        grid = profile.grid
        return cls(
            grid.max_step_tokens,
            grid.max_prefill_attention_tokens2,
            grid.max_decode_seqs,
            grid.max_decode_context_tokens,
        )

    def covers(self, load: StepLoad) -> bool:
        return (
            load.prefill_tokens <= self.prefill_tokens
            and load.prefill_attention_tokens2 <= self.prefill_attention_tokens2
            and load.decode_seqs <= self.decode_seqs
            and load.decode_context_tokens <= self.decode_context_tokens
        )

    def add(self, load: StepLoad) -> None:
        self.prefill_tokens = max(self.prefill_tokens, load.prefill_tokens)
        self.prefill_attention_tokens2 = max(self.prefill_attention_tokens2, load.prefill_attention_tokens2)
        self.decode_seqs = max(self.decode_seqs, load.decode_seqs)
        self.decode_context_tokens = max(self.decode_context_tokens, load.decode_context_tokens)

    def excess(self, base: StepLoad) -> float:
        """Return how many times as large as the largest seen the load's decodes are; 1 where they are no larger."""
        seqs = base.decode_seqs / self.decode_seqs
        return max(seqs, base.decode_context_tokens / self.decode_context_tokens, 1.0)

    def most_prefill(self, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk that probe no further than allowed; may be below 0."""
        pairs = max(_PROBE * self.prefill_attention_tokens2 - base.prefill_attention_tokens2, 0.0)
        tokens = min(_PROBE * self.prefill_tokens - base.prefill_tokens, float(MOST_TOKENS))
        return int(min(tokens, quadratic_root(pairs, 2.0 * prefix_tokens, 1.0)))


class OnlineLatency:
    """The step latency of the engine in use.

    Args:
        profile: What is known before the first step; ``None`` for nothing.
    """

    def __init__(self, profile: Profile | None = None) -> None:
        self.fit: Recalibrated | Learned = Learned() if profile is None else Recalibrated(profile)
        self.coverage = Coverage() if profile is None else Coverage.of(profile)
        self.covered = 0.0
        """Share of the last few hundred steps that were no larger than the steps before them."""
        self.drafts = 0.0
        """Mean number of draft tokens that a decode has had in a recent step."""
        self.timed = 0
        """Steps observed since this engine started; :attr:`observed` counts the ones of an earlier run as well."""
        self.seconds = 0.0
        """Seconds that these steps took."""

    @property
    def observed(self) -> int:
        """Steps observed so far."""
        return self.fit.observed

    @property
    def relative_error(self) -> float:
        """Usual relative error of one step's prediction, made before it was observed."""
        return self.fit.relative_error

    def step_s(self, load: StepLoad) -> float:
        """Return the seconds that the engine is expected to take for the step; 0 for a step without tokens."""
        return self.fit.step_s(self._drafted(load))

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk in a step of ``seconds``; see StepLatency.

        The result is less than the expected time allows, by the usual error, and more so beyond what was seen.
        """
        base = self._drafted(base)
        margin = self.relative_error * self.coverage.excess(base)
        tokens = self.fit.prefill_within(seconds / (1.0 + margin), base, prefix_tokens)
        return max(min(tokens, self.coverage.most_prefill(base, prefix_tokens)), 0) if tokens else 0

    def observe(self, load: StepLoad, duration_s: float) -> None:
        """Record that a step of ``load`` took ``duration_s``."""
        self.timed += 1
        self.seconds += duration_s
        if load.decode_seqs and (load.draft_tokens or self.drafts):
            drafts = (load.draft_tokens or 0) / load.decode_seqs
            # The first drafts count at once: until then the engine had none, and none of its steps says how many.
            self.drafts += (drafts - self.drafts) / (_DRAFT_STEPS if self.drafts else 1.0)
        self.covered += (self.coverage.covers(load) - self.covered) / min(self.observed + 1.0, _SHARE_STEPS)
        self.fit.observe(load, duration_s)
        self.coverage.add(load)

    def _drafted(self, load: StepLoad) -> StepLoad:
        """Return the load with the usual number of drafts, where the question leaves that open."""
        if load.draft_tokens is not None or not self.drafts or not load.decode_seqs:
            return load
        return replace(load, draft_tokens=round(self.drafts * load.decode_seqs))

    def figures(self) -> Mapping[str, float]:
        """Return how far the estimate can be trusted, by names of the page's figures.

        Factors are a profile's; they are 0 without a profile.
        """
        fit = self.fit
        constant, prefill, decode, draft = fit.factors if isinstance(fit, Recalibrated) else (0.0, 0.0, 0.0, 0.0)
        return {
            "step_error": self.relative_error,
            "step_coverage": self.covered,
            "step_factor_constant": constant,
            "step_factor_prefill": prefill,
            "step_factor_decode": decode,
            "step_factor_draft": draft,
            "step_drafts": self.drafts,
            "step_seconds": self.seconds,
            "step_timed": float(self.timed),
        }

    def state(self) -> Mapping[str, Any]:
        """Return all that was learnt, as plain values: with the profile, a replay begins with them."""
        return {
            "fit": self.fit.state(),
            "coverage": asdict(self.coverage),
            "covered": self.covered,
            "drafts": self.drafts,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], profile: Profile | None = None) -> "OnlineLatency":
        """Return the latency with this :meth:`state`, of the same profile.

        Raises: KeyError for a state that is not complete.
        """
        made = cls(profile)
        made.fit = (
            Learned.from_state(state["fit"]) if profile is None else Recalibrated.from_state(state["fit"], profile)
        )
        made.coverage, made.covered = Coverage(**state["coverage"]), state["covered"]
        made.drafts = state["drafts"]
        return made
