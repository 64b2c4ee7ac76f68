"""Dispatchers by name, and names of runs: ``dispatcher:option=value/engine policy:option=value``.

``collate:max_wait_s=20/edf`` is the dispatcher collate in front of engines that run edf. Without a policy, ``static``
and ``on-demand`` have stock's scheduler in their engines, since they stand for what there is without this package, and
the others the policy of the fleet's file. ``lengths=oracle`` lets any of them know how long outputs will be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.files.model import unknown
from sloserve.fleet.planner_rule import COLLATE, EDF, ON_DEMAND, QLM, SA
from sloserve.fleet.simulated.dispatcher import Dispatcher
from sloserve.fleet.simulated.dispatchers.assigned import LeastLoaded, Random, Static
from sloserve.fleet.simulated.dispatchers.shepherd import Shepherd
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import AT_ONCE, Balance, Options
from sloserve.scheduler.registry import make_policy, parse_policy

STOCK = "stock"
"""The engine policy that stands for vLLM's own scheduler."""


def _number(text: str) -> float:
    """Return a number >= 0. Raises: ValueError that says what is wrong."""
    try:
        value = numbers.number(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{text!r} is not a number >= 0")
    return value


def _positive(text: str) -> float:
    """Return a number above 0. Raises: ValueError that says what is wrong."""
    if not (value := _number(text)):
        raise ValueError(f"{text!r} is not a number above 0")
    return value


def _flag(text: str) -> bool:
    """Return a boolean. Raises: ValueError that says what is wrong."""
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _balance(text: str) -> Balance:
    """Return a kind of balance. Raises: ValueError that says what is wrong."""
    if text not in tuple(Balance):
        raise ValueError(f"{text!r} is none of {', '.join(Balance)}")
    return Balance(text)


_FLAGS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("pull", "preempt", "swap", "warm"), _flag),
    "balance": _balance,
}
"""Options of QLM's operations."""


def _live(planner: str) -> Callable[[Mapping[str, Any], int], Dispatcher]:
    """Return a factory of the live fleet with this planner."""

    def make(options: Mapping[str, Any], seed: int) -> Dispatcher:
        given = dict(options)
        bound_s = given.pop("max_wait_s", None)
        text = planner if bound_s is None else f"{planner}:max_wait_s={bound_s}"
        return LiveFleet(text, Options(**given), seed)

    return make


def _one_queue(planner: str) -> Callable[[Mapping[str, Any], int], Dispatcher]:
    """Return a factory of a rival: the live fleet with one queue for all requests and loops that never wait."""

    def make(options: Mapping[str, Any], seed: int) -> Dispatcher:
        rest = {name: value for name, value in options.items() if name != "delta"}
        own = Options(**rest, one_queue=True, periods=AT_ONCE)
        return LiveFleet(planner, own, seed, delta=options.get("delta", 4.0))

    return make


@dataclass(frozen=True, slots=True)
class Entry:
    """A dispatcher of the table.

    Args:
        make: Makes a dispatcher from options and seed.
        question: a reader's description of the dispatcher.
        options: Parser of each option's text.
        stock: Whether engines have stock's scheduler by default.
    """

    make: Callable[[Mapping[str, Any], int], Dispatcher]
    question: str
    options: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    stock: bool = False


_PREFIXES: Final[dict[str, Callable[[str], Any]]] = {"prefixes": _flag}
DISPATCHERS: dict[str, Entry] = {
    "static": Entry(lambda options, seed: Static(), "each instance keeps one model", stock=True),
    "on-demand": Entry(_live(ON_DEMAND), "swap on demand, first come, first served", _PREFIXES, stock=True),
    "collate": Entry(
        _live(COLLATE), "one model after another, within a bound of the wait", _PREFIXES | {"max_wait_s": _number}
    ),
    "edf": Entry(_live(EDF), "earliest deadline first, with affinity", _PREFIXES),
    "sa": Entry(_live(SA), "shared by free memory, each instance's order annealed", _PREFIXES),
    "least-loaded": Entry(lambda options, seed: LeastLoaded(), "assigned on arrival to the instance with the fewest"),
    "qlm": Entry(
        _live(QLM), "request groups in virtual queues, re-planned where one would be late", _PREFIXES | _FLAGS
    ),
    "qlm-paper": Entry(
        _one_queue(QLM),
        "QLM as published: one queue for all, and requests give way to a new first group",
        _FLAGS | {"delta": _positive, "park": _flag},
    ),
    "fifo": Entry(_one_queue(ON_DEMAND), "one queue for all, first come, first served, swap on demand", stock=True),
    "random": Entry(lambda options, seed: Random(seed), "assigned on arrival to any instance"),
    "shepherd": Entry(
        lambda options, seed: Shepherd(**options),
        "static batches, shared among instances by a linear program, the running one preempted for a better one",
        {"batch": _positive, "preempt": _flag},
        stock=True,
    ),
}


@dataclass(frozen=True, slots=True)
class FleetRunName:
    """The parts of a run's name.

    Args:
        policy: Policy of the engines; ``None`` for the default.
        oracle: Whether output lengths are known.
    """

    dispatcher: str
    options: Mapping[str, Any]
    policy: str | None
    oracle: bool

    @classmethod
    def parse(cls, text: str) -> "FleetRunName":
        """Parse a run's name. Raises: ConfigError for an unknown dispatcher, option or policy."""
        front, _, policy = text.partition("/")
        name, given = parse_policy(front)
        if name not in DISPATCHERS:
            raise ConfigError(f"dispatcher {name!r} {unknown(name, tuple(DISPATCHERS))}")
        allowed = (*DISPATCHERS[name].options, "lengths")
        options, oracle = {}, False
        for key, value in given.items():
            if key not in allowed:
                raise ConfigError(f"dispatcher {text!r}: option {key!r} {unknown(key, allowed)}")
            if key == "lengths":
                if value != "oracle":
                    raise ConfigError(
                        f"dispatcher {text!r}: lengths: {value!r} is not oracle; leave it out to learn them"
                    )
                oracle = True
                continue
            try:
                options[key] = DISPATCHERS[name].options[key](value)
            except ValueError as error:
                raise ConfigError(f"dispatcher {text!r}: {key}: {error}") from None
        if policy and policy != STOCK:
            make_policy(*parse_policy(policy))
        return cls(name, options, policy or None, oracle)

    def make(self, seed: int) -> Dispatcher:
        """Make a new dispatcher for one run."""
        return DISPATCHERS[self.dispatcher].make(self.options, seed)

    def engine_policy(self, default: str) -> str | None:
        """Return the policy of its engines, or ``None`` for stock's scheduler; ``default`` is the fleet's."""
        chosen = self.policy or (STOCK if DISPATCHERS[self.dispatcher].stock else default)
        return None if chosen == STOCK else chosen
