"""The keys of ``sloserve top``: what each changes in what is shown."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rich.table import Table

from sloserve.sim.report.live_requests import SORTS, ShownRows
from sloserve.sim.report.live_text import DIM

ESCAPE, ENTER, BACKSPACE = "escape", "enter", "backspace"
_NAMES: Final = {"\x1b": ESCAPE, "\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE}
_MOST_FILTER_CHARS: Final = 40

KEYS: Final = {
    "q": "end",
    "?": "show or hide these keys",
    "s": "sort the requests by the next of: " + ", ".join(SORTS),
    "/": "show only requests that have a text in their name, class, phase or reason",
    "l": "show or hide the requests that have missed a deadline, one by one",
    "Esc": "take the filter away",
}
HINT: Final = "q end  ? keys  s sort  / filter  l late"


def keys_of(read: bytes) -> Iterator[str]:
    """Yield the keys in what a terminal sent: characters, and names of the other keys that are used.

    A sequence for a key that is not used, such as an arrow, is skipped.
    """
    text = read.decode(errors="ignore")
    at = 0
    while at < len(text):
        if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
            at += 2
            while at < len(text) and not text[at].isalpha() and text[at] != "~":
                at += 1
            at += 1
            continue
        yield _NAMES.get(text[at], text[at])
        at += 1


@dataclass(frozen=True, slots=True)
class TopState:
    """What a person has chosen to see.

    Args:
        choice: What is shown of the requests.
        helps: Whether the keys are shown.
        typing: The filter while it is typed; ``None`` at other times.
        ended: Whether the command ends.
    """

    choice: ShownRows = ShownRows()
    helps: bool = False
    typing: str | None = None
    ended: bool = False

    def pressed(self, key: str) -> "TopState":
        """Return the state after a key."""
        if self.typing is not None:
            return self._typed(key, self.typing)
        if key == "q":
            return replace(self, ended=True)
        if key == "?":
            return replace(self, helps=not self.helps)
        if key == "/":
            return replace(self, typing=self.choice.filter, helps=False)
        if key == "l":
            return replace(self, choice=replace(self.choice, late=not self.choice.late))
        if key == "s":
            names = list(SORTS)
            sort = names[(names.index(self.choice.sort) + 1) % len(names)]
            return replace(self, choice=replace(self.choice, sort=sort))
        if key == ESCAPE:
            return replace(self, helps=False, choice=replace(self.choice, filter=""))
        return self

    def _typed(self, key: str, typing: str) -> "TopState":
        if key == ENTER:
            return replace(self, typing=None)
        if key == ESCAPE:
            return replace(self, typing=None, choice=replace(self.choice, filter=""))
        text = typing[:-1] if key == BACKSPACE else typing + key if len(key) == 1 and key.isprintable() else typing
        text = text[:_MOST_FILTER_CHARS]
        return replace(self, typing=text, choice=replace(self.choice, filter=text))

    @property
    def says(self) -> str:
        """The line below the screen: the keys, or the filter while it is typed, and how the requests are sorted."""
        if self.typing is not None:
            return f"filter: {self.typing}█  (Enter keeps it, Esc takes it away)"
        return f"{HINT}  sorted by {self.choice.sort}"


def help_table() -> Table:
    """Return the keys and what they do."""
    found = Table(box=None, show_header=False, pad_edge=False)
    found.add_column(style="bold", no_wrap=True)
    found.add_column()
    for key, says in KEYS.items():
        found.add_row(key, says)
    found.caption, found.caption_style, found.caption_justify = "docs/watch.md says what the columns mean", DIM, "left"
    return found
