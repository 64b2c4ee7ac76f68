"""Errors that name the flag that the user wrote, for checks below the command line that know names of settings."""

from collections.abc import Iterator
from contextlib import contextmanager

from sloserve.core.errors import ConfigError


@contextmanager
def about_flag(flag: str) -> Iterator[None]:
    """Put ``flag`` before what a ConfigError raised inside says, as in ``--profile: unknown profile 'x'``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from error


@contextmanager
def named_as_flags() -> Iterator[None]:
    """Write the name of the setting at the beginning of a ConfigError raised inside as a flag.

    ``kv_blocks: 0 is not ...`` becomes ``--kv-blocks: 0 is not ...``.
    """
    try:
        yield
    except ConfigError as error:
        name, colon, said = str(error).partition(": ")
        if not colon or not name.isidentifier():
            raise
        raise ConfigError(f"--{name.replace('_', '-')}: {said}") from error
