"""``--log-format``, the same for all commands that serve."""

import enum
from typing import Annotated

import typer

from sloserve.core.json_log import VARIABLE, use_json_logs


class LogFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


LogFlag = Annotated[
    LogFormat, typer.Option(envvar=VARIABLE, help="text, or json: one JSON object a line, on standard output.")
]


def begin_logging(wanted: LogFormat) -> None:
    """Sets the format of this process and of those that it starts. Raises: ConfigError where it was set otherwise."""
    if wanted is LogFormat.JSON:
        use_json_logs()
