"""``sloserve top`` on a terminal: views from a thread, keys from the terminal, and a new screen after either."""

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sloserve.client.watching import LostServer
from sloserve.sim.report.live_text import DIM, plain
from sloserve.sim.report.top_keys import TopState, help_table, keys_of

_AGAIN_S: Final = 2.0
_LOOK_S: Final = 60.0
"""The most seconds without a look at what has come; a bound for the wait, which a view or a key ends."""
_WAITS: Final = Text("waiting for the first view")


class _Views:
    """The latest view of a server, read by a thread. ``came`` is readable once something has come."""

    def __init__(self, watch: Callable[[], Iterator[dict[str, Any]]]) -> None:
        self._watch = watch
        self.view: dict[str, Any] | None = None
        self.lost: LostServer | None = None
        self.failed: Exception | None = None
        self.came, self._tell = os.pipe()
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._read, name="sloserve-top", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _read(self) -> None:
        while not self._stopped.is_set():
            try:
                for view in self._watch():
                    self.view, self.lost = view, None
                    self._told()
                    if self._stopped.is_set():
                        return
            except LostServer as error:
                self.lost = error
            except Exception as error:
                self.failed = error
                self._told()
                return
            self._told()
            self._stopped.wait(_AGAIN_S)

    def _told(self) -> None:
        os.write(self._tell, b".")


def run(
    watch: Callable[[], Iterator[dict[str, Any]]],
    drawn: Callable[[dict[str, Any], Console, TopState], RenderableType],
    console: Console,
) -> None:
    """Show views until a key or Ctrl-C ends it.

    Args:
        watch: Yields the views of a server, and raises LostServer where it goes.
        drawn: Returns a view as a screen; may raise LostServer.
        console: The terminal.

    Raises: ConfigError where the server refuses.
    """
    state, views = TopState(), _Views(watch)
    views.start()
    try:
        with (
            _keys(console) as keys,
            Live(_WAITS, console=console, screen=console.is_terminal, auto_refresh=False) as live,
        ):
            while not state.ended:
                ready, _, _ = select.select([views.came, *([] if keys is None else [keys])], [], [], _LOOK_S)
                if views.came in ready:
                    os.read(views.came, 1 << 16)
                if keys in ready:
                    read = os.read(keys, 1024) if keys is not None else b""
                    if not read:  # the terminal is gone
                        return
                    for key in keys_of(read):
                        state = state.pressed(key)
                if views.failed is not None:
                    raise views.failed
                live.update(_screen(views, drawn, console, state, takes_keys=keys is not None), refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        views.stop()


def _screen(
    views: _Views,
    drawn: Callable[[dict[str, Any], Console, TopState], RenderableType],
    console: Console,
    state: TopState,
    *,
    takes_keys: bool,
) -> RenderableType:
    lost = views.lost
    parts: list[RenderableType] = []
    if state.helps:
        parts.append(help_table())
    elif lost is None and views.view is not None:
        try:
            parts.append(drawn(views.view, console, state))
        except LostServer as error:
            lost = error
    if lost is not None:
        parts.append(Text.assemble(("lost: ", "bold red"), plain(lost), f"; retrying every {_AGAIN_S:g} s"))
    if not parts:
        parts.append(_WAITS)
    # The keys come first: a terminal that is too low cuts what is last.
    return Group(*([Text(state.says, DIM)] if takes_keys else []), *parts)


@contextmanager
def _keys(console: Console) -> Iterator[int | None]:
    """Yield the terminal's input, each key of which comes at once; ``None`` where there is no terminal."""
    if not (console.is_terminal and sys.stdin.isatty()):
        yield None
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
