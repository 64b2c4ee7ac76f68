"""All checks, with the ones that packages register, in the order in which they are shown."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from sloserve.cli import registered
from sloserve.cli.doctor import cpu, cuda, host, software
from sloserve.cli.doctor.finding import Finding, warning

Check = Callable[[], Iterable[Finding]]

OWN: dict[str, Check] = {
    "Python": software.python,
    "sloserve": software.own_extension,
    cpu.CHECK: cpu.instructions,
    "CUDA driver": cuda.gpus,
    "shared memory": host.shared_memory,
    "processors": host.processors,
    "clock": host.clock_synchronised,
    "clock source": host.clock_source,
    "extras": software.extras,
}
ORDER = (
    *("Python", "sloserve", "vLLM", cpu.CHECK, "CUDA driver", "KV copies on GPU", "memory", "shared memory"),
    *("locked memory", "open files", "processors", "clock", "clock source", "extras"),
)
"""Names of checks; a registered check with another name is shown after these."""


def examine(address: str, ports: Sequence[int]) -> Iterator[Finding]:
    """Yield what each check finds, ``ports`` of ``address`` last."""
    for name, check in (*checks().items(), ("ports", lambda: host.ports(address, ports))):
        yield from attempted(name, check)


def checks() -> dict[str, Check]:
    """Return all checks by name, in the order in which they are shown."""
    found = dict(OWN)
    for entry in registered.names(registered.CHECKS):
        found[entry.replace("-", " ")] = _Registered(entry)
    places = {name: place for place, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: places.get(item[0], len(places))))


class _Registered:
    """A check of another package, which is imported when it is called, so that its failure is a finding."""

    def __init__(self, entry: str) -> None:
        self._entry = entry

    def __call__(self) -> Iterable[Finding]:
        found: Iterable[Finding] = registered.load(registered.CHECKS, self._entry)()
        return found


def attempted(name: str, check: Check) -> list[Finding]:
    """Return what ``check`` finds; if it fails, a warning about that, so that the other checks still run."""
    try:
        return list(check())
    except Exception as error:
        return [warning(name, f"could not be checked: {error!r}", "a fault of sloserve doctor; please report it")]
