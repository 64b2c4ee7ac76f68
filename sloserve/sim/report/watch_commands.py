"""``sloserve top`` and ``sloserve status``: the live feed of a server or of a fleet, in a terminal."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from sloserve.cli.root import app
from sloserve.core import json_text
from sloserve.core.errors import ConfigError

_LEAST_ROWS: Final = 3
"""The rows of requests that even a low terminal shows."""
_MOST_ROWS: Final = 40
"""The most rows of requests that ``status`` prints."""

UrlFlag = Annotated[str, typer.Option(help="Where the server or the gateway is reached.")]
DEFAULT_URL = "http://127.0.0.1:8000"


@app.command()
def top(url: UrlFlag = DEFAULT_URL) -> None:
    """Show live what a server does, until q or Ctrl-C.

    Shown are its requests, why they wait, attainment and the KV cache. The key ? shows the other keys.

    The admin key is read from the environment: SLOSERVE_ADMIN_KEY. See docs/watch.md.
    """
    show(url)


@app.command()
def status(
    url: UrlFlag = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the view as one JSON object, for scripts.")] = False,
) -> None:
    """Print once what a server or a fleet does now.

    The admin key is read from the environment: SLOSERVE_ADMIN_KEY. See docs/watch.md.
    """
    from rich.console import Console

    from sloserve.client.watching import LostServer, watch
    from sloserve.sim.report.live_screen import screen

    console = Console(highlight=False)
    try:
        with _of_this_version(url):
            view = _settled(watch(url, _admin_key()))
            shown = None if as_json else screen(view, _MOST_ROWS, console.width)
    except LostServer as error:
        raise ConfigError(str(error)) from error
    if as_json:
        print(json_text.dumps(view))
    else:
        console.print(shown)


def _settled(views: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Return the first view that has a frame of an engine.

    Where none comes within a second, the engine is idle, and a view without a frame is returned.
    """
    view = next(views)
    for _ in range(2):
        if view.get("fleet") or any(engine["frame_s"] is not None for engine in view["engines"]):
            break
        view = next(views)
    return view


@contextmanager
def _of_this_version(url: str) -> Iterator[None]:
    """Raise LostServer in place of any error from showing a view, which may have other parts than ours."""
    from sloserve.client.watching import LostServer

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise LostServer(f"{url} sends a view that this version of sloserve cannot show ({why})") from error


def _admin_key() -> str:
    from sloserve.scheduler.settings import ADMIN_KEY

    key = os.environ.get(ADMIN_KEY)
    if not key:
        raise ConfigError(f"{ADMIN_KEY} is not set; it must be the admin key that the server was started with")
    return key


def show(url: str) -> None:
    """Show the feed of the server or gateway at ``url`` until a key ends it."""
    from rich.console import Console, RenderableType

    from sloserve.client.http_clients import host_of
    from sloserve.client.watching import watch
    from sloserve.sim.report.live_screen import is_narrow, screen
    from sloserve.sim.report.top_keys import TopState
    from sloserve.sim.report.top_screen import run

    key = _admin_key()
    host_of(url)  # a wrong address is refused before the screen is cleared

    def drawn(view: dict[str, Any], console: Console, state: TopState) -> RenderableType:
        with _of_this_version(url):
            others = console.render_lines(screen(view, 0, console.width, state.choice), pad=False)
            # A reason takes up to two lines on a narrow terminal; one line is for the keys, one for the table's head.
            rows = (console.height - len(others) - 2) // (2 if is_narrow(console.width) else 1)
            return screen(view, max(rows, _LEAST_ROWS), console.width, state.choice)

    run(lambda: watch(url, key), drawn, Console(highlight=False))
