"""Chooses the model of a request that names none, without clock, I/O or global random state.

Models that cannot serve the request are left out, then models that would hardly be in time. Of the rest a conversation
stays with its model; else the policy decides: masked greedy, or a trained net over the same models. If the settings say
so, a small share of requests goes to another of these models. A shadow policy only says what it would have chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.fleet.router.candidates import Barred, Candidate, RequestFacts
from sloserve.fleet.router.conversations import Conversations
from sloserve.fleet.router.decision import Arm, Decision, Trial
from sloserve.fleet.router.environment import RATE_MEMORY
from sloserve.fleet.router.exploring import explored, propensity
from sloserve.fleet.router.features import RawFeatures, Schema, features
from sloserve.fleet.router.greedy import greedy
from sloserve.fleet.router.guard import PolicyGuard
from sloserve.fleet.router.masks import feasible, in_time
from sloserve.fleet.router.network import Network, load_network
from sloserve.fleet.router.settings import RouterSettings

GREEDY, SHIPPED = "greedy", "shipped"
SHIPPED_FILE = "opt-a100x4.safetensors"


class RoutedBy(StrEnum):
    """The reason why a request went to its model, short enough for a header and a metric's label."""

    ONLY = "only"
    """No other model can serve the request, or takes requests of its class."""
    CONVERSATION = "conversation"
    """The earlier requests of the conversation went to this model, and the request should be in time there."""
    BEST = "best"
    """The model is the best for the task among the models that should be in time."""
    POLICY = "policy"
    """The model is the one that the trained policy values most, among the models that should be in time."""
    EXPLORED = "explored"
    """The model was drawn evenly from the models that should be in time, so that a log shows its outcomes."""
    SOONEST = "soonest"
    """No model should be in time; this one is least late."""
    NONE = "none"
    """No model can serve the request."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice for one request.

    Args:
        model: The chosen model; ``None`` if none can serve the request.
        barred: The models that cannot serve it, and why.
        shadow: What the shadow policy would have chosen; ``None`` without one, or if there was nothing to choose.
        decision: How the model was chosen; ``None`` if nothing was, or for a second choice for the same request.
    """

    model: str | None
    why: RoutedBy
    barred: Mapping[str, Barred]
    shadow: str | None = None
    decision: Decision | None = None


class ModelChooser:
    """Chooses models for one gateway.

    Args:
        settings: Settings of the router.
        network: The trained policy; ``None`` for masked greedy.
        shadow: a policy that only says what it would choose; ``None`` for masked greedy if ``settings.shadow`` is set.
        seed: Seed that says which requests explore, at most 64 bytes.

    The attribute ``guard`` compares the trained policy with greedy; it is ``None`` without a trained policy, or if the
    settings switch it off.
    """

    def __init__(
        self,
        settings: RouterSettings,
        network: Network | None = None,
        shadow: Network | None = None,
        *,
        seed: bytes = b"",
    ) -> None:
        self._settings, self._network, self._shadow, self._seed = settings, network, shadow, seed
        self.guard = PolicyGuard() if settings.rollback and network is not None else None
        self._models = tuple(settings.models)
        self._table = settings.table
        self._conversations = Conversations(settings.conversations)
        self._gap_s: float | None = None
        self._last_s: float | None = None
        self._num_arrived = 0

    @classmethod
    def of(cls, settings: RouterSettings, folder: Path = Path(), *, seed: bytes = b"") -> "ModelChooser":
        """Make a chooser with the policies that ``settings`` name; their files are relative to ``folder``.

        Raises: ConfigError for a file that is no policy, or one for other models or features.
        """
        loaded: list[Network | None] = []
        for key, name in (("policy", settings.policy), ("shadow", settings.shadow)):
            try:
                loaded.append(None if name is None else load_policy(settings, name, folder))
            except ConfigError as error:
                raise ConfigError(f"{key}: {error}") from None
        return cls(settings, *loaded, seed=seed)

    def choose(
        self,
        facts: RequestFacts,
        candidates: Sequence[Candidate],
        now_s: float,
        asked: Sequence[str] | None = None,
        *,
        again: bool = False,
    ) -> Choice:
        """Return the model for a request.

        Args:
            facts: Facts about the request.
            candidates: The models; one that the settings do not list is passed over.
            now_s: Arrival time in seconds, never less than in an earlier call.
            asked: Models of the set that the request names; ``None`` for all.
            again: Whether the request arrived before, and a model is chosen once more.
        """
        if not again:
            self._arrived(now_s)
        listed = [c for c in candidates if c.model in self._models and (asked is None or c.model in asked)]
        barred = {c.model: reason for c in listed if (reason := c.barred(facts)) is not None}
        able = {c.model: c for c in listed if c.model not in barred}
        if not able:
            return Choice(None, RoutedBy.NONE, barred)
        able = {model: c for model, c in able.items() if not c.full} or able
        limit_s = max(facts.limit_s(self._settings.token_ms / 1e3) - facts.elapsed_s, 1e-9)
        left_s = limit_s - facts.network_s
        predicted_s = np.array(
            [[able[m].predicted_s(facts, left_s) if m in able else np.inf for m in self._models]], np.float64
        )
        errors = [None if m not in able else able[m].error for m in self._models]
        error = np.array([[self._settings.error if e is None else e for e in errors]])
        allowed = feasible(predicted_s, np.array([left_s]), error)
        task = self._table.task(facts.task, facts.slo_class)
        quality = self._table.of(task, self._models)[None, :]
        seen = _Seen(facts, able, predicted_s, quality, allowed, limit_s)
        trial = None if again or self.guard is None else self.guard.arrived(now_s, limit_s)
        network = self._network if self._trusts_policy(trial) else None
        preferred = self._decide(seen, network)
        shadow = None if self._settings.shadow is None else self._models[self._decide(seen, self._shadow)]
        why = RoutedBy.BEST if network is None else RoutedBy.POLICY
        if len(able) == 1:
            why = RoutedBy.ONLY
        elif not in_time(predicted_s, np.array([left_s]), error).any():
            why = RoutedBy.SOONEST
        index, chance = preferred, 1.0
        stays_on = self._stays_on(facts)
        if stays_on in able and allowed[0, self._models.index(stays_on)]:
            index, why, trial = self._models.index(stays_on), RoutedBy.CONVERSATION, None
        elif not again and (options := np.flatnonzero(allowed[0])).size > 1:
            index, chance = self._explored(preferred, options)
            why = why if index == preferred else RoutedBy.EXPLORED
        model = self._models[index]
        if facts.conversation is not None:
            self._conversations.went_to(facts.conversation, model)
        decision = None
        if not again:
            decision = Decision(
                facts=facts,
                token_s=self._settings.token_ms / 1e3,
                arm=Arm.GREEDY if network is None else Arm.TRAINED,
                number=self._num_arrived - 1,
                at_s=now_s,
                task=task,
                weight=self._weight(facts),
                allowed=allowed[0],
                best=self._decide(seen, None),
                chosen=index,
                quality=float(quality[0, index]),
                propensity=chance,
                features=None if self._settings.log is None else self._features(seen)[0],
                trial=trial,
            )
        return Choice(model, why, barred, shadow, decision)

    def _trusts_policy(self, trial: Trial | None) -> bool:
        """Return whether the trained policy, if there is one, decides about a request with this trial."""
        if trial is None:
            return self.guard is None or not self.guard.has_lost
        return trial.arm is Arm.TRAINED

    def _stays_on(self, facts: RequestFacts) -> str | None:
        """Return the model of the earlier requests of the conversation, if there are any and it is still known."""
        if facts.conversation is None or facts.begins:
            return None
        return self._conversations.model_of(facts.conversation)

    def _explored(self, preferred: int, options: IntArray) -> tuple[int, float]:
        """Return the index of the model of a request that may explore ``options``, and its probability."""
        share = self._settings.explore
        drawn = explored(self._seed, self._num_arrived - 1, share, options.size) if share > 0.0 else None
        index = preferred if drawn is None else int(options[drawn])
        return index, propensity(share, options.size, is_preferred=index == preferred)

    def _decide(self, seen: "_Seen", network: Network | None) -> int:
        values = None if network is None else network.values(self._features(seen))
        if values is None or not np.isfinite(values).all():
            return int(greedy(seen.quality, seen.predicted_s, seen.allowed)[0])
        return int(np.where(seen.allowed, values, -np.inf).argmax())

    def _weight(self, facts: RequestFacts) -> float:
        return self._settings.weights.get(facts.slo_class, 1.0)

    def _features(self, seen: "_Seen") -> FloatArray:
        batches = [seen.able[m].batches if m in seen.able else () for m in self._models]
        raw = RawFeatures(
            least=np.array([[min(batch, default=0) for batch in batches]], np.float64),
            mean=np.array([[sum(batch) / max(len(batch), 1) for batch in batches]], np.float64),
            predicted_s=seen.predicted_s,
            quality=seen.quality,
            rate_per_s=np.array([1.0 / max(self._gap_s or np.inf, 1e-9)]),
            replicas=np.array([max(1, *map(len, batches))]),
            limit_s=np.array([seen.limit_s]),
            network_s=np.array([seen.facts.network_s]),
            weight=np.array([self._weight(seen.facts)]),
        )
        return features(raw)

    def _arrived(self, now_s: float) -> None:
        """Estimate the rate in the same way as the environment of the training."""
        if self._last_s is not None:
            gap_s = max(now_s - self._last_s, 0.0)
            self._gap_s = gap_s if self._gap_s is None else self._gap_s + (gap_s - self._gap_s) / RATE_MEMORY
        self._last_s = now_s
        self._num_arrived += 1


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    facts: RequestFacts
    able: Mapping[str, Candidate]
    predicted_s: FloatArray
    quality: FloatArray
    allowed: BoolArray
    limit_s: float


def load_policy(settings: RouterSettings, name: str, folder: Path = Path()) -> Network | None:
    """Return the policy called ``name``.

    It is ``None`` for ``greedy``, the one that comes with the package for ``shipped``, else a file's.

    Raises: ConfigError for a file that is no policy, or one for other models or features.
    """
    if name == GREEDY:
        return None
    schema = Schema(len(settings.models)).as_text()
    if name != SHIPPED:
        return load_network(folder / name, schema, settings.models)
    with resources.as_file(resources.files("sloserve.fleet.router") / "data" / SHIPPED_FILE) as path:
        try:
            return load_network(path, schema, settings.models)
        except ConfigError as error:
            raise ConfigError(f"{SHIPPED}: {error}") from None
