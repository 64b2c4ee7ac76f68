"""All checks, in the order in which they are shown."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from sloserve.cli.doctor import cpu, cuda, host, software
from sloserve.cli.doctor.finding import Finding, warning

Check = Callable[[], Iterable[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("Python", software.python),
    ("sloserve", software.own_extension),
    ("vLLM", software.vllm),
    (cpu.CHECK, cpu.instructions),
    ("CUDA driver", cuda.gpus),
    ("KV copies on GPU", cuda.kv_copies),
    ("memory", host.memory),
    ("shared memory", host.shared_memory),
    ("locked memory", host.locked_memory),
    ("open files", host.open_files),
    ("processors", host.processors),
    ("clock", host.clock_synchronised),
    ("clock source", host.clock_source),
    ("extras", software.extras),
)


def examine(address: str, ports: Sequence[int]) -> Iterator[Finding]:
    """What each check finds, ``ports`` of ``address`` last."""
    for name, check in (*CHECKS, ("ports", lambda: host.ports(address, ports))):
        yield from attempted(name, check)


def attempted(name: str, check: Check) -> list[Finding]:
    """What ``check`` finds; that it failed, where it did: the other checks are then still of use."""
    try:
        return list(check())
    except Exception as error:
        return [warning(name, f"could not be checked: {error!r}", "a fault of sloserve doctor; please report it")]
