"""Names of runs: ``policy:options@engine options+admission``; a part that is not named is the experiment's own.

``edf@max_num_batched_tokens=1024:max_num_seqs=128+cap:max_waiting=16`` is the policy edf, on an engine with these two
flags of vLLM, behind that admission. Stock takes engine options as any policy does; plain ``stock`` is the baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.files.model import unknown
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.scheduler.registry import parse_policy, policy_text
from sloserve.sim.admissions import NONE, limit_queue

STOCK = "stock"
"""The name of vLLM's AsyncScheduler; every other name is the name of a policy."""

ENGINE_OPTIONS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
"""The flags of vLLM that a run may set for itself.

The size of the KV cache is not one of them: memory is the same for all runs.
"""
SWAP_OPTIONS = ("swap_space_gib", "link_gb_per_s", "swapping")
"""The options of our swap space; stock has none."""


@dataclass(frozen=True, slots=True)
class RunName:
    """The parts of a run's name.

    Args:
        policy: Name of the policy with its options.
        engine: Flags of vLLM's engine and their values.
        admission: Name of the admission with its options; ``none`` for none.
    """

    policy: str
    engine: Mapping[str, int | float | str] = field(default_factory=dict)
    admission: str = NONE

    @classmethod
    def parse(cls, text: str) -> "RunName":
        """Return the parts of ``text``, without a check of the policy and the admission.

        Raises: ConfigError for an engine option that is unknown or not a whole number >= 1.
        """
        rest, _, admission = text.partition("+")
        policy, at, options = rest.partition("@")
        engine: dict[str, int | float | str] = {}
        for name, value in parse_policy(f"@:{options}")[1].items() if at else ():
            swaps = name in SWAP_OPTIONS
            engine[name] = (_swap_option if swaps else check_option)(f"policy {text!r}", name, value)
        return cls(policy.strip(), engine, admission.strip() or NONE)

    def __str__(self) -> str:
        engine = policy_text("@", self.engine).replace(":", "", 1) if self.engine else ""
        return self.policy + engine + ("" if self.admission == NONE else f"+{self.admission}")

    @property
    def unrestricted(self) -> "RunName":
        """The same name without its admission."""
        return replace(self, admission=NONE)

    def with_option(self, name: str, value: int) -> "RunName":
        """Return the same name with one engine option added or replaced."""
        return replace(self, engine={**self.engine, name: value})

    def engine_settings(self, settings: EngineSettings) -> EngineSettings:
        """Return ``settings`` with this run's own flags, and vLLM's caps that its admission asks for.

        Raises: ConfigError for options that do not go together.
        """
        options: dict[str, Any] = dict(self.engine)
        if self.policy == STOCK:
            if not options.keys().isdisjoint(SWAP_OPTIONS):
                raise ConfigError(f"policy {str(self)!r}: stock never swaps; fcfs is its order with swapping")
            options["swap_space_gib"] = 0.0
        return limit_queue(replace(settings, **options), self.admission)


def check_option(where: str, name: str, value: str) -> int:
    """Return the value of an engine flag of vLLM.

    Raises: ConfigError for a flag that is unknown or not a whole number >= 1.
    """
    if name not in ENGINE_OPTIONS:
        raise ConfigError(f"{where}: engine option {name!r} {unknown(name, ENGINE_OPTIONS + SWAP_OPTIONS)}")
    try:
        found = numbers.whole(value)
    except ValueError:
        found = 0
    if found < 1:
        raise ConfigError(f"{where}: {name}: {value!r} is not a whole number >= 1")
    return found


def _swap_option(where: str, name: str, value: str) -> float | str:
    if name == "swapping":
        return value
    try:
        return numbers.whole(value) if numbers.is_whole(value) else numbers.number(value)
    except ValueError as error:
        raise ConfigError(f"{where}: {name}: {error}") from None


def run_names(policies: Sequence[str], admissions: Sequence[str]) -> tuple[str, ...]:
    """Return the names of every policy under every admission, the bare policies first."""
    return tuple(p if a == NONE else f"{p}+{a}" for p in policies for a in sorted(admissions, key=lambda a: a != NONE))
