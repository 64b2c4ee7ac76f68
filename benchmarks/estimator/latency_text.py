"""The section ``latency`` of a profile's file."""

from collections.abc import Iterator
from dataclasses import fields

from sloserve.estimator.step_time.latency import DistServe, Hinge


def latency_text(form: Hinge | DistServe, digits: int = 4) -> str:
    """The form's fields as YAML, numbers to so many digits."""
    return "latency:\n" + "".join(_lines(form, digits, "  "))


def _lines(one: object, digits: int, indent: str) -> Iterator[str]:
    for field in fields(one):  # type: ignore[arg-type]
        value = getattr(one, field.name)
        if isinstance(value, float):
            yield f"{indent}{field.name}: {value:.{digits}g}\n"
        elif hasattr(value, "__dataclass_fields__"):
            yield f"{indent}{field.name}:\n"
            yield from _lines(value, digits, indent + "  ")
        elif value is not None:
            yield f"{indent}{field.name}: {value}\n"
