"""What an operator asks before serving: ``sloserve check-config``, ``presets`` and ``policies``."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.output_flags import JsonFlag, columns, show_names
from sloserve.cli.root import app
from sloserve.core import json_text
from sloserve.core.errors import ConfigError
from sloserve.core.json_lines import lines_of
from sloserve.core.json_log import warn


def complete_policies(incomplete: str) -> list[str]:
    """Return the names of the installed policies that begin with ``incomplete``."""
    from sloserve.scheduler.registry import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]


def complete_presets(incomplete: str) -> list[str]:
    """Return the names of the shipped presets that begin with ``incomplete``."""
    from sloserve.scheduler import config

    return [name for name in config.presets() if name.startswith(incomplete)]


@dataclass(frozen=True, kw_only=True)
class SettingsFlags:
    """The settings that have a flag; ``None`` where the flag is not given.

    Except for ``preset``, the names are the names of :data:`sloserve.scheduler.config.FLAGS`.
    """

    policy: Annotated[
        str | None,
        typer.Option(
            help="Scheduling policy: name or name:option=value. `sloserve policies` lists them. Default: fcfs.",
            autocompletion=complete_policies,
        ),
    ] = None
    shadow_policy: Annotated[
        str | None, typer.Option(help="A policy whose plans are scored in metrics and never applied.")
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help="Named policy with service classes for a kind of traffic; `sloserve presets` lists them.",
            autocompletion=complete_presets,
        ),
    ] = None
    admission: Annotated[
        str | None,
        typer.Option(
            help="none; cap: answer 429 once --max-waiting requests of a class wait; predict: answer 429 also to "
            "targets that will probably be missed. Default: none.",
        ),
    ] = None
    max_waiting: Annotated[
        int | None, typer.Option(help="With --admission cap or predict: most waiting requests of one class.")
    ] = None
    min_chance: Annotated[
        float | None,
        typer.Option(help="With --admission predict: least chance to meet its targets for a request to be admitted."),
    ] = None
    swapping: Annotated[
        str | None,
        typer.Option(
            help="With --swap-space-gib. cost: keep the KV of a preempted request if that takes less time than "
            "computing it again; always: keep it whenever there is room. Default: cost.",
        ),
    ] = None

    keys: Annotated[
        str | None,
        typer.Option(
            help="File of keys, see configs/keys-server.yaml: each request needs one, which names its tenant."
        ),
    ] = None
    trusted_proxies: Annotated[
        str | None,
        typer.Option(
            help="Networks from which a header may name the tenant, separated by commas; '*' for all. Default: this "
            "machine alone. With --keys the key alone names it.",
        ),
    ] = None

    record: Annotated[
        str | None,
        typer.Option(
            help="What is recorded: events, or plans: also each plan with the snapshot that its policy saw, for "
            "`sloserve record check`. Default: events."
        ),
    ] = None
    record_mib: Annotated[
        int | None,
        typer.Option(
            help="Record what each engine is asked and does in at most this number of MiB, without text or names; "
            "`sloserve record` reads it. Default: 0, off."
        ),
    ] = None

    def flags(self) -> dict[str, object]:
        """Return all flags but the preset, which stands for several settings."""
        return {name: value for name, value in asdict(self).items() if name != "preset"}


@app.command("check-config")
@with_option_groups
def check_config(
    *,
    file: Annotated[
        Path | None, typer.Argument(help="YAML file of settings, as for --slo-config.", show_default=False)
    ] = None,
    settings: SettingsFlags,
    as_json: JsonFlag = False,
) -> None:
    """Check a settings file or flags without starting a server.

    Printed are the effective settings, each with the place where it was written, or every mistake.
    The exit status is 0 if `sloserve serve --slo-config FILE` with the same flags would accept them, else 2.
    """
    from sloserve.scheduler import config

    try:
        if file is None and settings.preset is None and not any(one is not None for one in settings.flags().values()):
            raise ConfigError("check-config: nothing to check; name a FILE, a --preset, or flags of serve")
        effective = config.settle(config.read_sources(file, settings.flags(), settings.preset))
    except ConfigError as error:
        if not as_json:
            raise
        print(json_text.dumps({"errors": lines_of(str(error))}, indent=2))
        raise typer.Exit(2) from None
    print(json_text.dumps(effective.as_json(), indent=2) if as_json else config.table(effective.rows()))
    if not as_json:
        print_warnings(effective.warnings())


def print_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        warn(warning)


@app.command()
def presets(as_json: JsonFlag = False) -> None:
    """List the presets, each a policy with classes."""
    from sloserve.scheduler import config

    show_names(config.presets(), as_json)


@app.command()
def policies(
    name: Annotated[
        str | None,
        typer.Argument(help="Show the options of this policy.", show_default=False, autocompletion=complete_policies),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the policies, or describe NAME and its options.

    Options follow the policy's name, as in edf:preempt=false:max_preemptions=1.
    """
    from sloserve.scheduler.describe import describe_policy
    from sloserve.scheduler.registry import policy_names

    if name is None and as_json:
        listed = {kind: policy_names(for_experiments=kind == "experiments") for kind in ("servers", "experiments")}
        print(
            json_text.dumps({kind: {one: _summary(one) for one in names} for kind, names in listed.items()}, indent=2)
        )
        return
    if name is None:
        print(columns([(one, _summary(one)) for one in policy_names(for_experiments=False)]))
        print("\nFor experiments, to reproduce papers:\n")
        print(columns([(one, _summary(one)) for one in policy_names(for_experiments=True)]))
        return
    found = describe_policy(name)
    if as_json:
        print(json_text.dumps({"name": name, **asdict(found)}, indent=2))
        return
    print(f"{name}: {found.summary}")
    print(f"\nOptions, as in {name}:{found.options[0].name}={_text(found.options[0].default)}, with their defaults:\n")
    rows = [(f"  {o.name}", _text(o.default), o.kind, o.meaning.partition(". ")[0]) for o in found.options]
    print(columns([("  option", "default", "type", "meaning"), *rows]))


def _summary(policy: str) -> str:
    from sloserve.scheduler.describe import describe_policy

    try:
        return describe_policy(policy).summary
    except ConfigError as error:  # a broken third-party package must not hide the others
        return str(error)


def _text(default: object) -> str:
    """Return a default as it would be written behind the option's name; ``-`` for none."""
    return "-" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
