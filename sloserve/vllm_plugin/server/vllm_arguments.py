"""Read the model and the flags of ``vllm serve`` on our command line: all but mistyped flags of ours are passed on."""

from collections.abc import Container
from typing import Annotated

import typer

from sloserve.core.errors import ConfigError
from sloserve.core.nearest import nearest
from sloserve.vllm_plugin.server.early import known_flags, long_flag

VLLMArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL [VLLM_FLAG]", help="Model and flags exactly as for `vllm serve`.", show_default=False
    ),
]


SLO_PREFIX = "--slo-"
TARGETS = ("ttft-ms", "tpot-ms", "e2e-ms", "tds")
OUR_PREFIXES = (SLO_PREFIX, "--sloserve", "--admission", "--admin-", "--shadow", "--swap", "--http3", "--quic")
"""Prefixes of flags that vLLM does not have; what vLLM's plugins add to its parser begins otherwise."""

SLO_FILE = "--slo"
"""Flag of other commands for what ``--slo-config`` is here."""
NEARLY = 0.85
"""Likeness from which a flag that vLLM does not have is taken for a misspelt flag of ours."""


def our_flags(context: typer.Context) -> list[str]:
    """Return the long flags of the command that runs."""
    return [flag for parameter in context.command.params for flag in parameter.opts if flag.startswith("--")]


def vllm_arguments(context: typer.Context, arguments: list[str] | None) -> list[str]:
    """Return what is passed on to vLLM, which knows all flags but takes seconds to say so.

    Raises: ConfigError for a flag that is nearly one of the command's, or begins as only ours do.
    """
    theirs, ours = set(known_flags()), our_flags(context)
    for argument in arguments or []:
        if argument == "--":
            break
        flag = long_flag(argument)
        if flag is None or flag in theirs:
            continue
        written = argument.partition("=")[0]
        close = nearest(flag.replace("_", "-"), ours, NEARLY)
        if close is not None:
            raise ConfigError(f"no such flag: {written}; did you mean {close}?")
        if flag.removeprefix(SLO_PREFIX) in TARGETS:
            key, header = flag.removeprefix(SLO_PREFIX).replace("-", "_"), flag.removeprefix("--")
            raise ConfigError(
                f"no such flag: {written}; a class has its targets in --slo-config FILE, as classes.NAME.{key}, and a "
                f"request in its header x-{header}"
            )
        if flag == SLO_FILE:
            raise ConfigError(
                f"no such flag: {written}; a server's settings are in --slo-config FILE, and --slo FILE is of "
                "simulate, bench and advise"
            )
        if (key := flag.removeprefix("--").replace("-", "_")) in _settings():
            raise ConfigError(f"no such flag: {written}; it is a setting: write {key} into --slo-config FILE")
        if flag.startswith(OUR_PREFIXES):
            raise ConfigError(f"no such flag: {written}; see sloserve {context.info_name} --help")
    return arguments or []


def _settings() -> Container[str]:
    """Return the names of the settings, for an unknown flag: they load the kernels, which no help needs."""
    from sloserve.scheduler.settings import PluginSettings

    return PluginSettings.model_fields
