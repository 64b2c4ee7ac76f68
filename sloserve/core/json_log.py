"""Logs as one JSON object a line, of sloserve, vLLM and uvicorn alike: ``--log-format json``.

``json_log.json`` is the configuration, in the form of ``logging.config.dictConfig``. It is a file because vLLM reads
it by name, in each of its processes. What a command tells its operator beside the log becomes part of it. The log is on
standard output, alone: on standard error are words of libraries that do not log (torch's C++, bars of progress).
The three have a handler apart from the root's, which a library that vLLM 0.30 imports sets to errors alone.
"""

import json
import logging
import logging.config
import os
import sys
from pathlib import Path
from typing import Any, Final

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from sloserve.core.errors import ConfigError

CONFIG: Final = Path(__file__).with_suffix(".json")
VARIABLE: Final = "SLOSERVE_LOG_FORMAT"
"""Variable by which a process learns the log format of the process that started it."""
_VLLM_CONFIG: Final = "VLLM_LOGGING_CONFIG_PATH"
LEVEL: Final = os.environ.get("VLLM_LOGGING_LEVEL", "INFO")
"""The least level that is logged by the loggers of sloserve, vLLM and uvicorn."""

_logger = logging.getLogger("sloserve")


def formatter() -> logging.Formatter:
    """Make a formatter with the fields timestamp (ISO 8601, UTC), level, logger, process, message and exc_info."""
    return JsonFormatter(
        "%(levelname)s %(name)s %(process)d %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp=True,
        reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's message once more, with codes of a terminal
    )


def handler() -> logging.Handler:
    """Make a handler that writes to standard output below the text layer.

    There, older versions of vLLM put the name of the process before each line.
    """
    made = logging.StreamHandler(open(1, "w", encoding="utf-8", buffering=1, closefd=False))
    made.setFormatter(formatter())
    return made


def use_json_logs() -> None:
    """Make this process, and the processes that it starts from here on, log JSON to standard output.

    Raises: ConfigError if the environment names another logging configuration for vLLM.
    """
    other = os.environ.get(_VLLM_CONFIG)
    if other not in (None, "", str(CONFIG)):
        raise ConfigError(
            f"--log-format json and {_VLLM_CONFIG}={other} cannot be used together; leave one of them out"
        )
    os.environ |= {VARIABLE: "json", _VLLM_CONFIG: str(CONFIG)}
    logging.config.dictConfig(json.loads(CONFIG.read_text(encoding="utf-8")))


def logs_are_json() -> bool:
    return os.environ.get(VARIABLE) == "json"


def say(line: str, **fields: Any) -> None:
    """Write ``line`` for the operator, to standard output or as a log record with ``fields``."""
    if logs_are_json():
        _logger.info(line, extra=fields)
        return
    try:
        print(f"sloserve: {line}", flush=True)
    except OSError as error:  # its reader is gone, or the disk full: that ends no server
        _logger.warning("%s (standard output cannot be written: %s)", line, error)


def warn(line: str) -> None:
    """Warn the operator, on standard error or by a log record."""
    if logs_are_json():
        _logger.warning(line)
    else:
        print(f"sloserve: warning: {line}", file=sys.stderr)
