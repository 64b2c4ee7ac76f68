"""The Markdown pages of this repository as tests read them: blocks of code with their tags, headings, links.

A block of bash, Python or TypeScript says on the line before it what the tests do with it:

    <!-- run -->              executed against the one server that ``docs/serve.md`` starts
    <!-- quick -->            executed by itself
    <!-- long -->             executed by itself, in ``make whole`` alone
    <!-- not-run: REASON -->  not executed

Lines ``<!-- shows: TEXT -->`` right behind the block name what its output must contain.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_PAGES = [
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "benchmarks").glob("*/README.md")),
    ROOT / "configs" / "grafana" / "README.md",
    ROOT / "clients" / "typescript" / "README.md",
    ROOT / "examples" / "third_party_policy" / "README.md",
]
"""Pages whose links are checked and whose blocks are not."""

EXECUTABLE = ("bash", "python", "ts")
OTHER_LANGUAGES = ("text", "json", "yaml", "toml", "ini", "diff")
_FENCE = re.compile(r"^ *```([\w-]*)$")
_TAG = re.compile(r"^<!-- (run|quick|long|not-run: \S.*) -->$")
_SHOWS = re.compile(r"^<!-- shows: (.+) -->$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. line: of its fence, from 1. tag: as written, ``None`` where there is none."""

    page: Path
    line: int
    language: str
    code: str
    tag: str | None
    shows: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of ``page``, in order."""
    lines = page.read_text().splitlines()
    found: list[Block] = []
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        tag = _TAG.match(lines[at - 1]) if at else None
        behind = end + 1
        shows: list[str] = []
        while behind < len(lines) and (shown := _SHOWS.match(lines[behind])):
            shows.append(shown[1])
            behind += 1
        code = "\n".join(lines[at + 1 : end]) + "\n"
        found.append(Block(page, at + 1, fence[1], code, tag and tag[1], tuple(shows)))
        at = end + 1
    return found


def blocks(*kinds: str) -> list[Block]:
    """The blocks of all pages whose tag begins with one of ``kinds``."""
    return [block for page in PAGES for block in blocks_of(page) if block.tag and block.tag.split(":")[0] in kinds]


def prose(page: Path) -> str:
    """``page`` without its fenced blocks and inline code."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def links(page: Path) -> list[str]:
    """The targets of the links of ``page`` that lead to files of this repository."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of ``page``."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (name := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(name)
    return found
