"""Read the vLLM flags that our checks need without vLLM, which takes ten CPU seconds to load.

Only vLLM's parser knows all flags, so the same checks run again on what it has read. Here a flag counts only where it
is written in full, and a check that depends on what may stand elsewhere (``--config``, an abbreviation) waits for vLLM.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from sloserve.core.errors import ConfigError

VLLM_FLAGS: Final = Path(__file__).with_name("vllm_flags.txt")
"""Long flags of ``vllm serve`` in all tested versions, one a line; a test compares it with the installed version."""

DEFAULT_HOST: Final = "127.0.0.1"
ADDITIONAL: Final = "--additional-config"

_TEXTS: Final = (
    "--uds",
    "--config",
    "--scheduler-cls",
    ADDITIONAL,
    "--kv-transfer-config",
    "--kv-offloading-size",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--ssl-ca-certs",
)
_NUMBERS: Final = (
    ("--pipeline-parallel-size", "-pp"),
    ("--api-server-count", "-asc"),
    ("--data-parallel-size", "-dp"),
    ("--data-parallel-rank", "-dpn"),
    ("--data-parallel-start-rank", "-dpr"),
    ("--data-parallel-size-local", "-dpl"),
)
_SWITCHES: Final = (
    ("--headless",),
    ("--enable-ssl-refresh",),
    ("--data-parallel-external-lb", "-dpe"),
    ("--data-parallel-hybrid-lb", "-dph"),
    ("--data-parallel-multi-port-external-lb", "-dpm"),
)
_DEFAULTS: Final = {
    "host": DEFAULT_HOST,
    "port": 8000,
    "scheduling_policy": "fcfs",
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "ssl_cert_reqs": 0,
}


def known_flags() -> list[str]:
    """Return the long flags of vLLM."""
    return VLLM_FLAGS.read_text(encoding="utf-8").split()


def long_flag(argument: str) -> str | None:
    """Return the flag that an argument gives, as vLLM reads it: ``--max_num.x=1`` as ``--max-num``; None for none.

    An argument with a space in its name is a value, whatever it begins with.
    """
    if " " in argument.partition("=")[0]:
        return None
    name = re.split(r"[=.]", argument, maxsplit=1)[0].replace("_", "-")
    return name if name.startswith("--") and name != "--" else None


def read_flags(vllm_args: Sequence[str]) -> argparse.Namespace:
    """Return the flags of vLLM that our checks need, as its own parser would name them.

    ``is_whole`` says whether nothing else can set them: no file of ``--config``, and no flag that is abbreviated.

    Raises: ConfigError for a malformed number, and for a value that is not JSON where JSON is needed.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for name in _TEXTS:
        parser.add_argument(name, type=_optional)
    for names in (("--port",), ("--ssl-cert-reqs",), *_NUMBERS):
        parser.add_argument(*names, type=int)
    for names in _SWITCHES:
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--host", type=_optional)
    parser.add_argument("--scheduling-policy")
    parser.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction)
    parser.set_defaults(**_DEFAULTS)
    args, _ = parser.parse_known_args([_dashed(argument) for argument in vllm_args])
    known = set(known_flags())
    args.is_whole = args.config is None and all(
        flag in known for flag in map(long_flag, vllm_args) if flag is not None and "." not in flag
    )
    args.additional_config = _additional_config(args.additional_config, vllm_args)
    args.kv_transfer_config = _kv_transfer_config(args.kv_transfer_config)
    return args


class _Parser(argparse.ArgumentParser):
    """A parser that raises our errors, also for the ambiguous beginning of a short flag."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _optional(text: str) -> str | None:
    """Return the value of a flag that may have none, which vLLM reads from an empty value and from ``None``."""
    return None if text in ("", "None") else text


def _dashed(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def _additional_config(text: str | None, vllm_args: Sequence[str]) -> Any:
    """Return the value of ``--additional-config``, with what is given as ``--additional-config.KEY.KEY VALUE``.

    Raises: ConfigError for a value that is no JSON object.
    """
    try:
        config = {} if text is None else json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{ADDITIONAL}: {text!r} is not JSON ({error})") from None
    if config is None:
        config = {}
    if not isinstance(config, dict):
        raise ConfigError(f"{ADDITIONAL}: {text!r} is not a JSON object")
    for at, argument in enumerate(vllm_args):
        name, equals, value = argument.partition("=")
        flag, _, keys = name.partition(".")
        if keys and not keys.endswith("+") and long_flag(flag) == ADDITIONAL:  # vLLM alone reads KEY+ as a list
            _put(config, keys.split("."), value if equals else "".join(vllm_args[at + 1 : at + 2]))
    return config


def _put(config: dict[str, Any], keys: Sequence[str], value: str) -> None:
    inner: Any = config
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            return  # vLLM judges what contradicts itself
    try:
        inner[keys[-1]] = json.loads(value)
    except ValueError:
        inner[keys[-1]] = value


def _kv_transfer_config(text: str | None) -> SimpleNamespace | None:
    """Return what ``--kv-transfer-config`` says of connectors; None where it says nothing, or vLLM will refuse it."""
    try:
        given = {} if text is None else json.loads(text)
    except ValueError:
        return None
    if not isinstance(given, dict) or not given:
        return None
    defaults: dict[str, Any] = {"kv_connector": None, "kv_role": None, "kv_connector_extra_config": {}}
    return SimpleNamespace(**{name: given.get(name, default) for name, default in defaults.items()})
