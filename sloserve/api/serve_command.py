"""``sloserve serve``: vLLM's server with the plugin, from flags and files."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import sloserve
from sloserve.cli.log_flag import LogFlag, LogFormat, begin_logging
from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.root import app
from sloserve.core.json_log import logs_are_json, say
from sloserve.scheduler.commands import SettingsFlags, print_warnings
from sloserve.vllm_plugin.server.vllm_arguments import VLLMArguments, our_flags, vllm_arguments
from sloserve.vllm_plugin.versions import ALLOW_UNTESTED, ALLOW_UNTESTED_FLAG
from sloserve.wire.http3_flags import Http3Flags

_NO_POOL = ("swap space", "off", "default")


@app.command(context_settings={"ignore_unknown_options": True})
@with_option_groups
def serve(
    context: typer.Context,
    *,
    arguments: VLLMArguments = None,
    settings: SettingsFlags,
    slo_config: Annotated[
        Path | None,
        typer.Option(help="YAML file of settings, see configs/serve.yaml. It overrides --preset; flags override it."),
    ] = None,
    swap_space_gib: Annotated[
        float,
        typer.Option(
            help="Host memory for the KV of preempted requests, so that it is not computed again; GiB for all "
            "ranks of a host together. See docs/swap.md. Default: 0, off.",
            show_default=False,
        ),
    ] = 0.0,
    http3: Http3Flags,
    log_format: LogFlag = LogFormat.TEXT,
    admin_key: Annotated[
        str | None,
        typer.Option(
            help="Key of the admin routes, which are off without it. Safer in the environment: SLOSERVE_ADMIN_KEY."
        ),
    ] = None,
    allow_untested_vllm: Annotated[
        bool,
        typer.Option(
            ALLOW_UNTESTED_FLAG,
            help="Start with a vLLM that sloserve was not tested with: another minor version, or a nightly build. "
            "In the environment: SLOSERVE_ALLOW_UNTESTED_VLLM=1.",
        ),
    ] = False,
) -> None:
    """Serve MODEL with vLLM's server and an SLO-aware policy.

    Every flag of `vllm serve` is accepted and passed on. The server listens on 127.0.0.1 unless --host says otherwise.
    MODEL may be builtin:tiny, a model with random weights that needs no download. Requests state SLOs in headers
    x-slo-*, in the field `slo`, in `service_tier`, or in `vllm_xargs`. `sloserve check-config` checks a settings file.
    See docs/serve.md.
    """
    from sloserve.api import http3 as http3_checks
    from sloserve.core.listening import check_port_free
    from sloserve.scheduler import config
    from sloserve.vllm_plugin.server import serve, swap_space

    begin_logging(log_format)
    if allow_untested_vllm:  # the engine's processes check the version, too, and inherit the environment
        os.environ[ALLOW_UNTESTED] = "1"
    given = settings.flags() | asdict(http3)
    sources = config.read_sources(slo_config, given, settings.preset)
    swap_space.check_size(swap_space_gib)
    key = config.read_admin_key(admin_key, os.environ)
    passed_on = vllm_arguments(context, arguments)
    swap_space.check_rule(settings.swapping, swap_space_gib, passed_on)
    # What is wrong already need not wait for vLLM, which takes a while to load.
    flags = serve.check_arguments(passed_on, our_flags(context))
    effective = config.settle(sources, flags.additional_config)
    serve.check_policies(flags, effective.settings)
    serve.check_keys(flags, effective.settings)
    if swap_space_gib:
        swap_space.check_flags(flags)
    if flags.is_whole:
        http3_checks.check(flags, effective.settings.http3)
    listens_on = serve.listens_on(flags)
    if listens_on is not None:
        check_port_free(*listens_on)
    args = serve.prepare(passed_on, our_flags(context))
    additional_config = args.additional_config
    effective = config.settle(sources, args.additional_config)
    serve.check_policies(args, effective.settings)
    serve.check_keys(args, effective.settings)
    http3_checks.check(args, effective.settings.http3)
    admin = ("admin routes", "on" if key else "off", key.source if key else config.DEFAULT)
    pool = ("swap space", f"{swap_space_gib:g} GiB", swap_space.FLAG) if swap_space_gib else _NO_POOL
    _show_settings([*effective.rows(), pool, admin])
    print_warnings(effective.warnings())
    if swap_space_gib:
        swap_space.configure(args, swap_space_gib)
        warning = swap_space.pinning_warning(args, swap_space_gib)
        print_warnings([] if warning is None else [warning])
    source = config.source_text(slo_config, given, settings.preset, additional_config)
    serve.run(args, effective.section, key.value if key else None, source)


def _show_settings(rows: list[tuple[str, str, str]]) -> None:
    from sloserve.scheduler import config

    title = f"{sloserve.__version__} settings"
    if logs_are_json():
        say(title, settings={name: {"value": value, "origin": origin} for name, value, origin in rows})
    else:
        print(f"sloserve {title}\n{config.table(rows)}", flush=True)
