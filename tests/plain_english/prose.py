"""The prose of a Python file: docstrings, docstrings of attributes, comments and messages, each with its place."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Example|Examples):$")
_LABEL = re.compile(r"(Args|Returns?|Yields?|Raises?|Source|Sources|Differs|Example|Usage):\s")
_ITEM = re.compile(r"(?:[-*]|\d+\.)\s+")
_PARAMETER = re.compile(r"\*{0,2}(\w+)(?: \([^)]*\))?:\s+(?=\S)")
_DIRECTIVE = re.compile(r"#\s*(?:type:|noqa|pragma|mypy:|ruff:|fmt:|!|=====)")


class Kind(Enum):
    """What a piece of prose is, which decides the rules that it is held to."""

    FUNCTION = auto()
    """The first paragraph of the docstring of a function or method."""
    NAMING = auto()
    """The first paragraph of the docstring of a module, class, property or attribute."""
    PARAGRAPH = auto()
    """A later paragraph of a docstring."""
    PARAMETER = auto()
    """The description of one parameter, attribute or exception, without its name."""
    ITEM = auto()
    """An item of a list, or a line with a label such as ``Raises:``."""
    COMMENT = auto()
    """Comments on lines of their own that follow one another."""
    TRAILING = auto()
    """A comment behind code."""
    MESSAGE = auto()
    """The text of an exception that is raised or of a line that is logged."""


@dataclass(frozen=True, slots=True)
class Prose:
    """A piece of prose.

    Args:
        kind: what it is.
        line: the line of the file on which the text begins, from 1.
        text: the words, with the line breaks of the source.
        parameters: names of the parameters of the function, or of the fields of the class, that a docstring describes.
    """

    kind: Kind
    line: int
    text: str
    parameters: tuple[str, ...] = ()


def prose_of(source: str) -> Iterator[Prose]:
    """Yield all prose of a file, docstrings first.

    Args:
        source: the text of the file.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(node)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _messages(node.exc)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS:
            yield from _messages(node)
    yield from _comments(source)


def _docstrings(node: ast.Module | ast.ClassDef | FunctionNode) -> Iterator[Prose]:
    parameters: tuple[str, ...] = ()
    kind = Kind.NAMING
    if isinstance(node, FunctionNode) and not _is_property(node):
        kind = Kind.FUNCTION
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        parameters = tuple(each.arg for each in every if each and each.arg not in ("self", "cls"))
    elif isinstance(node, ast.ClassDef):
        parameters = tuple(_fields(node))
    previous: ast.stmt | None = None
    for position, statement in enumerate(node.body):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            text = statement.value.value
            if isinstance(text, str) and (position == 0 or isinstance(previous, ast.Assign | ast.AnnAssign)):
                yield from _parts(text, statement.lineno, kind if position == 0 else Kind.NAMING, parameters)
        previous = statement


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of the fields of a class and of the parameters of its constructor."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            yield from (each.arg for each in [*statement.args.args[1:], *statement.args.kwonlyargs])


def _is_property(node: FunctionNode) -> bool:
    names = [ast.unparse(each).split("(")[0].rsplit(".", 1)[-1] for each in node.decorator_list]
    return any(name.endswith("property") or name in ("setter", "getter") for name in names)


def _parts(text: str, first_line: int, kind: Kind, parameters: tuple[str, ...]) -> Iterator[Prose]:
    """Yield the paragraphs, parameters and items of a docstring."""
    state, part, start, section = kind, list[str](), first_line, False
    code_indent: int | None = None
    section_indent = 0

    def ended() -> Iterator[Prose]:
        if part:
            yield Prose(state, start, "\n".join(part), parameters)
            part.clear()

    for number, raw in enumerate(text.split("\n"), first_line):
        line, indent = raw.strip(), len(raw) - len(raw.lstrip())
        if code_indent is not None and (not line or indent > code_indent):
            continue
        code_indent = None
        if not line or line.startswith(("|", ">>>", "...", "+-")):
            had_text = bool(part)
            yield from ended()
            if had_text or number > first_line:
                state = Kind.PARAGRAPH
            section = section and bool(line)
            continue
        new: Kind | None = None
        if _SECTION.match(line):
            yield from ended()
            section = True
            continue
        if section and (found := _PARAMETER.match(line)) and (not part or indent <= section_indent):
            new, line, section_indent = Kind.PARAMETER, line[found.end() :], indent
        elif _ITEM.match(line):
            new, line = Kind.ITEM, _ITEM.sub("", line, count=1)
        elif _LABEL.match(line) and (part or state is not kind):
            new = Kind.ITEM
        if new is not None:
            yield from ended()
            state = new
        if not part:
            start = number
        part.append(line)
        if line.endswith("::"):
            code_indent = indent
    yield from ended()


def _messages(call: ast.Call) -> Iterator[Prose]:
    for argument in call.args:
        within = {id(each) for node in ast.walk(argument) if isinstance(node, ast.JoinedStr) for each in node.values}
        for node in ast.walk(argument):
            if id(node) in within:
                continue
            if isinstance(node, ast.JoinedStr):
                words = "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "``value``" for each in node.values
                )
                yield Prose(Kind.MESSAGE, node.lineno, words)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield Prose(Kind.MESSAGE, node.lineno, node.value)


def _comments(source: str) -> Iterator[Prose]:
    block, start, last = list[str](), 0, -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        words, (line, _) = token.string.lstrip("#: "), token.start
        if token.line[: token.start[1]].strip():
            yield Prose(Kind.TRAILING, line, words)
            continue
        if block and line != last + 1:
            yield Prose(Kind.COMMENT, start, "\n".join(block))
            block = []
        if not block:
            start = line
        block.append(words)
        last = line
    if block:
        yield Prose(Kind.COMMENT, start, "\n".join(block))
