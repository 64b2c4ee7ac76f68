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
    """Set the format of the logs of this process and of the processes that it starts.

    Raises: ConfigError if another format was set before.
    """
    if wanted is LogFormat.JSON:
        use_json_logs()
