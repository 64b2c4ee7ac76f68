"""``sloserve serve``: vLLM's own OpenAI server, in this process, with our scheduler in its engine.

Flags are parsed by vLLM's own parser, so that every flag of ``vllm serve`` works, ``--config`` included. What can be
checked without loading a model is checked first, and fails with one message.
"""

import argparse
import atexit
import gc
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sloserve.core.addresses import is_exposed
from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import otherwise
from sloserve.core.json_log import warn
from sloserve.core.listening import check_port_free
from sloserve.core.nearest import nearest
from sloserve.core.user_folders import folder_for_sockets
from sloserve.scheduler.config import SOURCE
from sloserve.scheduler.settings import ADMIN_KEY, KEY, PluginSettings, check_engine_flags
from sloserve.vllm_plugin.server import rust_front_end, tiny_model
from sloserve.vllm_plugin.server.early import DEFAULT_HOST, known_flags, long_flag, read_flags
from sloserve.vllm_plugin.versions import Support, installed_vllm, require_vllm, support_of

SCHEDULER_CLS = "sloserve.vllm_plugin.SLOScheduler"
API_KEY = "VLLM_API_KEY"
"""Environment variable with vLLM's own key."""
MIDDLEWARE = "sloserve.api.middleware.SLOMiddleware"
"""Path of our middleware, not imported here: vLLM imports it, outside all of its own layers."""

TINY_FLAGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": tiny_model.CONTEXT_TOKENS,
    "served_model_name": [tiny_model.NAME],
}
"""Defaults of vLLM's flags for ``builtin:tiny``: nothing to compile, ready in seconds."""

TINY_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
"""Environment of the tiny model: 1 GiB of KV cache is a million tokens.

Without a bound vLLM takes its share of the whole memory.
"""

SOCKETS = "VLLM_RPC_BASE_PATH"
"""Environment variable with the folder of the sockets between vLLM's processes; by default the temporary folder."""
_SOCKET_NAME_BYTES = len("/2b5a6928-e176-4d4a-b8a4-837f40fa60b7")


def prepare(vllm_args: Sequence[str], our_flags: Sequence[str] = ()) -> argparse.Namespace:
    """Return the arguments, model and flags as ``vllm serve`` would have them; imports vLLM, starts nothing.

    Args:
        vllm_args: Arguments for vLLM.
        our_flags: Our own flags, which a mistyped one may have meant.

    Raises: ConfigError for a vLLM that is missing or untested, wrong arguments, and flags that are not ours to share.
    """
    require_vllm()
    check_front_end()
    if tiny_model.NAME in vllm_args:
        for name, value in TINY_ENVIRONMENT.items():  # read by libraries when they are imported
            os.environ.setdefault(name, value)
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as the vllm command does
    # A long TMPDIR would end the start in a traceback of vLLM's, which names no remedy.
    os.environ[SOCKETS] = folder_for_sockets(SOCKETS, _SOCKET_NAME_BYTES)

    from sloserve.vllm_plugin.engine import private_names

    private_names.check_version()
    args = parse_vllm_args(vllm_args, our_flags)
    check_scheduler_flags(args)
    return args


def run(
    args: argparse.Namespace, section: Mapping[str, Any], admin_key: str | None = None, source: str | None = None
) -> None:
    """Serve with the settings in ``section`` until the process is asked to stop.

    Args:
        args: Parsed arguments of ``vllm serve``.
        section: The settings of sloserve.
        admin_key: Key that opens the admin routes; ``None`` for no such routes.
        source: Text of :func:`~sloserve.scheduler.config.source_text`, by which the settings are read again;
            ``None`` without a file of settings.

    Raises: ConfigError for anything else that shows before the model is loaded.
    """
    from vllm.entrypoints.cli.serve import ServeSubcommand

    from sloserve.vllm_plugin.engine import compat
    from sloserve.vllm_plugin.server.live_settings import pass_on_hangups

    configure(args, section)
    if admin_key is not None:
        os.environ[ADMIN_KEY] = admin_key  # API processes inherit it, and no log shows it
    os.environ.pop(SOURCE, None)
    if source is not None:
        os.environ[SOURCE] = source
        pass_on_hangups()
    compat.configure_logging(args)
    # Our middleware serves the routes that this warning of vLLM's finds missing.
    logging.getLogger("vllm.plugins").addFilter(_is_no_needless_warning)
    command = ServeSubcommand()
    try:
        command.validate(args)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if not args.uds and not args.headless:
        if is_exposed(args.host):
            has_key = any(args.api_key or [os.environ.get(API_KEY)])
            if section.get("keys") is None:
                warn(exposure(args.host, args.port, has_key))
        check_port_free(args.host, args.port)
    # vLLM freezes what it has loaded, which then is never collected: Triton complains of it, in 29 lines, at the end.
    atexit.register(gc.unfreeze)
    command.cmd(args)


def _is_no_needless_warning(record: logging.LogRecord) -> bool:
    """Return whether to log a record: not the warning that the one endpoint plugin is ours, and not loaded."""
    return not record.getMessage().startswith("Found endpoint plugin(s) ['sloserve'] but")


NO_MODEL = f"no model given; name one, a folder, or {tiny_model.NAME}"


def parse_vllm_args(vllm_args: Sequence[str], our_flags: Sequence[str] = ()) -> argparse.Namespace:
    """Return the arguments as ``vllm serve`` would read them.

    ``builtin:tiny`` is replaced by its folder and sets defaults.

    Raises: ConfigError for an unknown flag, a malformed value, or no model.
    """
    parser, serve_parser = _parsers(our_flags)
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
        raise ConfigError(NO_MODEL)
    return args


def check_front_end() -> None:
    """Raise ConfigError if vLLM would serve without Python, and SLOs in headers and bodies would be lost."""
    if rust_front_end.is_used():
        raise ConfigError(
            f"{rust_front_end.RUST_FRONT_END} is set, and vLLM's Rust front end reads no SLOs in headers or in the "
            f"field slo, and admits every request; unset it, or run `vllm serve MODEL --scheduler-cls {SCHEDULER_CLS} "
            """--additional-config '{"sloserve": {"policy": "auto"}}'` and state SLOs in vllm_xargs"""
        )


def check_scheduler_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for flags that would set another scheduler, or another order than the policy's."""
    if args.scheduler_cls is not None:
        raise ConfigError(
            f"--scheduler-cls {args.scheduler_cls}: sloserve serve sets the scheduler; use `vllm serve` for another"
        )
    if args.scheduling_policy != "fcfs":
        raise ConfigError(
            f"--scheduling-policy {args.scheduling_policy} makes vLLM order its own queues; "
            f"use --policy {args.scheduling_policy}"
        )


def check_keys(args: argparse.Namespace, settings: PluginSettings) -> None:
    """Raise ConfigError for a file of keys beside vLLM's own key: a request has room for one of them."""
    if settings.keys is None:
        return
    shown = "--api-key" if any(getattr(args, "api_key", None) or []) else API_KEY
    if shown == "--api-key" or os.environ.get(API_KEY):
        raise ConfigError(
            f"--keys {settings.keys} beside {shown}: a request can show one key only; put the hash of that key into "
            f"the file, and leave {shown} out"
        )


def check_policies(args: argparse.Namespace, settings: PluginSettings) -> None:
    """Raise ConfigError for a policy that needs chunked prefill where flags of vLLM turn it off."""
    check_engine_flags(settings, chunked_prefill=args.enable_chunked_prefill is not False)


def configure(args: argparse.Namespace, section: Mapping[str, Any]) -> None:
    """Set our scheduler, its settings and our middleware in ``args``, beside what else the user configured there."""
    args.additional_config = {**(args.additional_config or {}), KEY: dict(section)}
    args.scheduler_cls = SCHEDULER_CLS
    if MIDDLEWARE not in args.middleware:
        args.middleware = [*args.middleware, MIDDLEWARE]


def exposure(host: str | None, port: int, has_key: bool) -> str:
    """Return what machines that reach an exposed server may do.

    Args:
        host: Host on which the server listens.
        port: Port on which the server listens.
        has_key: Whether the server requires vLLM's API key.
    """
    if has_key:
        return (
            f"every client that reaches {host} port {port} may use the model without the API key on routes that vLLM "
            "does not guard, such as /invocations; let a proxy pass on only the routes that clients need, or use --keys"
        )
    asks = "--keys FILE, --api-key or VLLM_API_KEY asks for a key"
    return f"every client that reaches {host} port {port} may use the model; {asks}"


def _parsers(our_flags: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        """vLLM's parser, with one line for a mistake rather than 200 lines of usage."""

        def error(self, message: str) -> NoReturn:
            raise ConfigError(message + _did_you_mean(message, every_flag))

    parser = Parser(prog="sloserve")
    serve_parser = ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    every_flag = [*our_flags, *(flag for action in serve_parser._actions for flag in action.option_strings)]
    return parser, serve_parser


def check_arguments(vllm_args: Sequence[str], our_flags: Sequence[str]) -> argparse.Namespace:
    """Check what can be known of vLLM's arguments without vLLM, which takes ten seconds to load.

    Returns the flags that further checks need, see :func:`~sloserve.vllm_plugin.server.early.read_flags`.

    Raises: ConfigError for a missing model, a mistyped flag, and flags that are not ours to share.
    """
    check_model(vllm_args)
    check_flags(vllm_args, our_flags)
    flags = read_flags(vllm_args)
    check_scheduler_flags(flags)
    return flags


def check_model(vllm_args: Sequence[str]) -> None:
    """Check the model at first sight.

    Raises: ConfigError where there is none, where it is a path and nothing or a file of ours is there, and for an
    unknown built-in one.
    """
    named = {arg.partition("=")[0] for arg in vllm_args}
    if named & {"--model", "--config", "--help", "-h"}:
        return
    model = next((arg for arg in vllm_args if not arg.startswith("-")), None)
    if model is None:
        raise ConfigError(NO_MODEL)
    if model != vllm_args[0]:
        return  # it may be the value of a flag
    tiny_model.check_name(model)
    if model.startswith(("/", "./", "../", "~")) and not os.path.exists(os.path.expanduser(model)):
        raise ConfigError(f"model {model}: there is no such folder or file; give one, or a name on the model hub")
    path = Path(model).expanduser()
    found = otherwise("model", "a model", path) if path.is_file() else None
    if found is not None:
        raise ConfigError(found)


def listens_on(flags: argparse.Namespace) -> tuple[str, int] | None:
    """Return host and port as these flags state them; ``None`` if there is no port, or a file may state more."""
    return None if flags.uds or flags.headless or flags.config else (flags.host, flags.port)


def check_flags(vllm_args: Sequence[str], our_flags: Sequence[str]) -> None:
    """Find mistyped flags without vLLM: near a flag of vLLM's or ours, and not one of them.

    Other unknown flags are left to vLLM, since plugins may add to its parser. Raises: ConfigError for the first.
    """
    version = installed_vllm()
    if version is None or support_of(version) is Support.UNTESTED:
        return
    known = known_flags()
    for argument in vllm_args:
        if argument == "--":
            return
        name = long_flag(argument)
        if name is None or any(flag.startswith(name) for flag in known):  # argparse knows beginnings, too
            continue
        close = nearest(name, [*known, *our_flags], cutoff=0.75)
        if close is not None:
            raise ConfigError(f"no such flag: {name}; did you mean {close}?")


def _did_you_mean(message: str, known_flags: Sequence[str]) -> str:
    unknown = re.search(r"unrecognized arguments:.*?(--[\w.-]+)", message)
    close = nearest(unknown[1], known_flags) if unknown else None
    return "" if close is None else f"; did you mean {close}?"
