"""Targets of goodput: ``ttft:500 tpot:50 e2el:2000`` in milliseconds, as ``vllm bench serve --goodput`` takes it.

Given for all requests or for a class, they replace the targets by which requests are judged. The SLO that is sent to
the server with a request stays the workload's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.nearest import did_you_mean
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import MAX_TARGET_S, SLO, Targets

KEYS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s"}
"""vLLM's names, and ours."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Targets by which requests are judged.

    Args:
        overall: Targets of every class that ``by_class`` does not name; ``None`` for the requests' own.
        by_class: Targets that replace all targets of a class: a target that is not named is not required.
    """

    overall: Targets | None = None
    by_class: Mapping[str, Targets] = field(default_factory=dict)

    def judged(self, requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
        """Return ``requests`` with the targets by which they are judged.

        Raises: ConfigError for a class that none of them has.
        """
        known = {request.slo.slo_class.name for request in requests}
        for name in self.by_class:
            if name not in known:
                raise ConfigError(f"--goodput-class: no request is of class {name!r}; they are of {_list(known)}")
        return [self._judge(request) for request in requests]

    def _judge(self, request: WorkloadRequest) -> WorkloadRequest:
        slo_class = request.slo.slo_class
        targets = self.by_class.get(slo_class.name, self.overall)
        return request if targets is None else replace(request, slo=SLO(slo_class, targets))


def parse_goodput(overall: Iterable[str], by_class: Iterable[str] = ()) -> Goodput:
    """Return the targets that command line flags state.

    Args:
        overall: Texts of ``--goodput``: ``ttft:500``, or several targets separated by blanks or commas.
        by_class: Texts of ``--goodput-class``: ``interactive=ttft:500,tpot:50``.

    Raises: ConfigError for an unknown key, a value that is not a positive number, or a class or key given twice.
    """
    pairs = [pair for text in overall for pair in text.replace(",", " ").split()]
    classes: dict[str, Targets] = {}
    for text in by_class:
        name, equals, targets = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"--goodput-class: {text!r} is not of the form class=ttft:500,tpot:50")
        if name in classes:
            raise ConfigError(f"--goodput-class: class {name!r} is given twice")
        classes[name] = _targets("--goodput-class", targets.replace(",", " ").split(), text)
    return Goodput(_targets("--goodput", pairs, " ".join(pairs)) if pairs else None, classes)


def _targets(flag: str, pairs: Sequence[str], text: str) -> Targets:
    found: dict[str, float] = {}
    for pair in pairs:
        key, colon, value = pair.partition(":")
        if not colon:
            raise ConfigError(f"{flag}: {pair!r} is not of the form key:milliseconds, as in ttft:500")
        if key not in KEYS:
            raise ConfigError(f"{flag}: {key!r} is not a known key; known: {', '.join(KEYS)}{did_you_mean(key, KEYS)}")
        if KEYS[key] in found:
            raise ConfigError(f"{flag}: {key} is given twice in {text!r}")
        try:
            found[KEYS[key]] = numbers.number(value) / 1e3
            Targets(**{KEYS[key]: found[KEYS[key]]})
        except ValueError:
            limit = f"a number of milliseconds above 0, at most {MAX_TARGET_S * 1e3:.0f}"
            raise ConfigError(f"{flag}: {key}: {value!r} is not {limit}") from None
    if not found:
        raise ConfigError(f"{flag}: {text!r} names no target; known: {', '.join(KEYS)}")
    return Targets(**found)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
