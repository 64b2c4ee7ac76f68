"""Logs as JSON: what a record becomes, and that nothing else of a process is on standard output."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from sloserve.core import json_log
from sloserve.core.errors import ConfigError

PROGRAM = """
import logging
from sloserve.core.json_log import say, use_json_logs, warn
use_json_logs()
logging.getLogger().handlers[0].setLevel("ERROR")  # as a library does that vLLM 0.30 imports
say("ready", port=5)
warn("low on disk")
logging.getLogger("uvicorn.access").info('%s - "GET"', "me", extra={"color_message": "x"})
logging.getLogger("vllm.engine").info("two\\nlines")
logging.getLogger("other.library").info("not shown")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("sloserve.engine").exception("failed")
"""


def formatted(**of: Any) -> dict[str, Any]:
    made = {"name": "sloserve.x", "levelno": 30, "levelname": "WARNING", "msg": "it %s", "args": ("is",), **of}
    return dict(json.loads(json_log.formatter().format(logging.makeLogRecord(made))))


def test_a_record_is_one_object_with_time_level_logger_process_and_fields() -> None:
    found = formatted(created=1.5, process=7, color_message="\x1b[1mit is", tenant="acme")
    assert found == {
        "timestamp": "1970-01-01T00:00:01.500000+00:00",
        "level": "WARNING",
        "logger": "sloserve.x",
        "process": 7,
        "message": "it is",
        "tenant": "acme",
    }


def test_another_configuration_of_vllm_contradicts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "/etc/log.json")
    with pytest.raises(ConfigError, match="VLLM_LOGGING_CONFIG_PATH=/etc/log.json cannot be used together"):
        json_log.use_json_logs()


@pytest.mark.parametrize("tell", [json_log.say, json_log.warn])
def test_text_stays_text(tell: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    tell("hello")
    out, err = capsys.readouterr()
    assert (out, err) == (("sloserve: hello\n", "") if tell is json_log.say else ("", "sloserve: warning: hello\n"))


@pytest.mark.slow
def test_a_process_logs_json_alone_and_so_does_one_that_it_starts() -> None:
    spawn = "\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', '''%s'''], check=True)"
    inner = 'import logging.config, json, os\nlogging.config.dictConfig(json.load(open(os.environ["VLLM_LOGGING_CONFIG_PATH"])))\nfrom sloserve.core.json_log import say\nsay("child")'  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + spawn % inner], capture_output=True, text=True, check=True, timeout=240
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    told = [(one["logger"], one["level"], one["message"]) for one in lines]
    assert done.stderr == ""
    assert told == [
        ("sloserve", "INFO", "ready"),
        ("sloserve", "WARNING", "low on disk"),
        ("uvicorn.access", "INFO", 'me - "GET"'),
        ("vllm.engine", "INFO", "two\nlines"),
        ("sloserve.engine", "ERROR", "failed"),
        ("sloserve", "INFO", "child"),
    ]
    assert lines[0]["port"] == 5 and "ZeroDivisionError" in lines[4]["exc_info"]
