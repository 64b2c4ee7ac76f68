"""Values of a body as vLLM's pydantic models read them: ``"2"`` is a number, and ``1`` and ``"true"`` are true.

Code that reads a field of vLLM's besides vLLM reads it here, so that both see the same request. Fields of our own are
read strictly, and names (``service_tier``, ``tool_choice``) are strings to vLLM as well.
"""

from typing import Final

from pydantic import TypeAdapter, ValidationError

_INT: Final = TypeAdapter(int)
_BOOL: Final = TypeAdapter(bool)


def number(value: object) -> int | None:
    """Return a whole number as vLLM reads it; None for what it refuses."""
    try:
        return _INT.validate_python(value)
    except ValidationError:
        return None


def flag(value: object) -> bool | None:
    """Return whether a switch is on, as vLLM reads it; None for what it refuses, and where nothing is stated."""
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        return None
