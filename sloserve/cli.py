"""The ``sloserve`` command: composition root, the one place that turns flags into objects.

Heavy libraries are imported by the command that needs them, so that ``--help`` and a mistyped policy answer at once.
"""

import inspect
import sys
from typing import Annotated

import typer

import sloserve
from sloserve.core.errors import ConfigError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Entry point: an operator's mistake ends with one line on stderr and exit status 2."""
    try:
        app()
    except ConfigError as error:
        print(f"sloserve: {error}", file=sys.stderr)
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sloserve {sloserve.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Per-request service level objectives for vLLM."""


@app.command(context_settings={"ignore_unknown_options": True})
def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL [VLLM_FLAG]", help="Model and flags exactly as for `vllm serve`.", show_default=False
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Scheduling policy, as name or name:option=value; fcfs if not given.", show_default=False),
    ] = None,
) -> None:
    """Serve MODEL with vLLM's OpenAI server under an SLO-aware policy.

    Every flag of `vllm serve` is accepted and passed on; the host is 127.0.0.1 unless --host says otherwise. MODEL may
    be builtin:tiny, a model made on the spot. Requests state their SLO in `vllm_xargs`: slo_ttft_ms, slo_tpot_ms,
    slo_e2e_ms, slo_tds, slo_class. `sloserve policies` lists the policies.
    """
    from sloserve.vllm_plugin import server

    server.serve(policy, arguments or [])


@app.command()
def policies() -> None:
    """List the installed policies."""
    from sloserve.scheduler.registry import make_policy, policy_names

    names = policy_names()
    width = max(map(len, names), default=0)
    for name in names:
        try:
            text = (inspect.getdoc(type(make_policy(name))) or "").partition("\n")[0]
        except ConfigError as error:  # a broken third-party package must not hide the others
            text = str(error)
        print(f"{name:<{width}}  {text}")


if __name__ == "__main__":
    main()
