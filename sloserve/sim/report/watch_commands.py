"""``sloserve top`` and ``sloserve status``: the live feed of a server or of a fleet, in a terminal."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from sloserve.cli.root import app
from sloserve.core import json_text
from sloserve.core.errors import ConfigError

_AGAIN_S: Final = 2.0
_OTHER_LINES: Final = 20
"""The number of lines of a screen beside the rows of requests."""
_MOST_ROWS: Final = 200

UrlFlag = Annotated[str, typer.Option(help="Where the server or the gateway is reached.")]
DEFAULT_URL = "http://127.0.0.1:8000"


@app.command()
def top(url: UrlFlag = DEFAULT_URL) -> None:
    """Show live what a server does, until Ctrl-C.

    Shown are its requests, why they wait, attainment and the KV cache.

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
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from sloserve.client.watching import LostServer, watch
    from sloserve.sim.report.live_screen import plain, screen

    key = _admin_key()
    console = Console(highlight=False)
    waits = Text("waiting for the first view")
    with Live(waits, console=console, screen=console.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                try:
                    for view in watch(url, key):
                        rows = max(console.height - _OTHER_LINES, 3)
                        with _of_this_version(url):
                            live.update(screen(view, rows, console.width), refresh=True)
                except LostServer as error:
                    said = Text.assemble(("lost: ", "bold red"), plain(error), f"; retrying every {_AGAIN_S:g} s")
                    live.update(said, refresh=True)
                    time.sleep(_AGAIN_S)
        except KeyboardInterrupt:
            pass
