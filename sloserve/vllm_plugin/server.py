"""``sloserve serve``: vLLM's own OpenAI server, in this process, with our scheduler in its engine.

Flags are parsed by vLLM's own parser, so that every flag of ``vllm serve`` works, ``--config`` included. What can be
checked without loading a model is checked first, and fails with one message.
"""

import argparse
import difflib
import importlib.util
import os
import re
import socket
from collections.abc import Sequence
from typing import Any, NoReturn

from sloserve.core.errors import ConfigError
from sloserve.scheduler.registry import make_policy
from sloserve.vllm_plugin import tiny_model
from sloserve.vllm_plugin.config import KEY, PluginSettings, plugin_settings

SCHEDULER_CLS = "sloserve.vllm_plugin.SLOScheduler"
DEFAULT_HOST = "127.0.0.1"

TINY_FLAGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": tiny_model.CONTEXT_TOKENS,
    "served_model_name": [tiny_model.NAME],
}
"""Defaults of vLLM's flags for ``builtin:tiny``: nothing to compile, ready in seconds."""

TINY_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
"""1 GiB of KV cache is a million tokens of the tiny model; without a bound vLLM takes its share of the whole memory."""


def serve(policy: str | None, vllm_args: Sequence[str]) -> None:
    """Serves until it is told to stop. policy: ``name:option=value``. vllm_args: model and flags as for ``vllm serve``.

    Raises: ConfigError for anything wrong that shows before the model is loaded.
    """
    make_configured_policy(plugin_settings({KEY: {} if policy is None else {"policy": policy}}))
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("vLLM is not installed; install sloserve[gpu], or sloserve[cpu] where there is no GPU")
    if tiny_model.NAME in vllm_args:
        for name, value in TINY_ENVIRONMENT.items():  # read by libraries when they are imported
            os.environ.setdefault(name, value)
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as the vllm command does

    from vllm.entrypoints.cli.serve import ServeSubcommand

    from sloserve.vllm_plugin import compat

    compat.check_version()
    args = parse_vllm_args(vllm_args)
    configure(args, policy)
    compat.configure_logging(args)
    command = ServeSubcommand()
    try:
        command.validate(args)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if not args.uds and not args.headless:
        check_port_free(args.host, args.port)
    command.cmd(args)


def make_configured_policy(settings: PluginSettings) -> None:
    """Raises: ConfigError unless the engine will be able to make the policy that ``settings`` name."""
    make_policy(settings.policy, settings.policy_options, seed=settings.seed)


def parse_vllm_args(vllm_args: Sequence[str]) -> argparse.Namespace:
    """The arguments as ``vllm serve`` would read them; ``builtin:tiny`` is replaced by its folder and sets defaults.

    Raises: ConfigError for an unknown flag, a malformed value, or no model.
    """
    parser, serve_parser = _parsers()
    serve_parser.set_defaults(host=DEFAULT_HOST)
    try:
        args = parser.parse_args(["serve", *vllm_args])
        if args.model_tag == tiny_model.NAME:
            serve_parser.set_defaults(**TINY_FLAGS)
            args = parser.parse_args(["serve", *vllm_args])
            args.model_tag = tiny_model.resolve_model(tiny_model.NAME)
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(str(error)) from error
    if args.model_tag is None:
        raise ConfigError(f"no model given; for example: sloserve serve {tiny_model.NAME}")
    return args


def configure(args: argparse.Namespace, policy: str | None) -> None:
    """Sets our scheduler and its settings in ``args``, beside whatever else ``--additional-config`` holds.

    Raises: ConfigError for flags that would set another scheduler, or settings that are wrong or contradict each other.
    """
    if args.scheduler_cls is not None:
        raise ConfigError(
            f"--scheduler-cls {args.scheduler_cls}: sloserve serve sets the scheduler; use `vllm serve` for another"
        )
    if args.scheduling_policy != "fcfs":
        raise ConfigError(
            f"--scheduling-policy {args.scheduling_policy} makes vLLM order its own queues; "
            f"use --policy {args.scheduling_policy}"
        )
    additional = dict(args.additional_config or {})
    section: Any = additional.get(KEY, {})
    if isinstance(section, dict) and policy is not None:
        if "policy" in section and section["policy"] != policy:
            raise ConfigError(
                f"--policy {policy}, but --additional-config has {KEY}.policy {section['policy']!r}; give one"
            )
        section = {**section, "policy": policy}
    make_configured_policy(plugin_settings({KEY: section}))
    args.additional_config = {**additional, KEY: section}
    args.scheduler_cls = SCHEDULER_CLS


def check_port_free(host: str, port: int) -> None:
    """Raises: ConfigError when the server could not listen there. vLLM binds the port itself, right after."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --port or --host"
            ) from error


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        """vLLM's parser, which answers a mistake with one line rather than with 200 lines of usage."""

        def error(self, message: str) -> NoReturn:
            raise ConfigError(message + _did_you_mean(message, known_flags))

    parser = Parser(prog="sloserve")
    serve_parser = ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    known_flags = [flag for action in serve_parser._actions for flag in action.option_strings]
    return parser, serve_parser


def _did_you_mean(message: str, known_flags: Sequence[str]) -> str:
    unknown = re.search(r"unrecognized arguments:.*?(--[\w.-]+)", message)
    close = difflib.get_close_matches(unknown[1], known_flags, n=1) if unknown else []
    return f"; did you mean {close[0]}?" if close else ""
