"""Single changes of Python code: another comparison, operator, constant or condition, or a statement left out."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMPARED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}
_COMPUTED: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.BitOr: ast.BitAnd(),
    ast.BitAnd: ast.BitOr(),
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM)\b|\b\w+ = '\w+'")
_IN_SQL = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " = 0": " = 1", " > 0": " >= 0", " + 1": " + 2"}
_IN_SQL |= {" AND ": " OR ", " OR ": " AND ", " - ": " + ", " + ": " - ", " DESC ": " ", " DISTINCT ": " "}
_SQL_TOKEN = re.compile("|".join(map(re.escape, sorted(_IN_SQL, key=len, reverse=True))))


class Change(NamedTuple):
    """One change: the line, what stood there and what stands there now, and the whole changed source."""

    line: int
    before: str
    after: str
    source: str


def changes(source: str) -> Iterator[Change]:
    """All changes of the source, in its order."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    encoded = source.encode()
    for node, replacement in _replacements(ast.parse(source), source):
        begin = starts[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None and node.end_col_offset is not None
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = encoded[begin:end].decode()
        after = replacement if isinstance(replacement, str) else f"({ast.unparse(replacement)})"
        changed = (encoded[:begin] + after.encode() + encoded[end:]).decode()
        line, before, after = _of_one_line(node.lineno, before, after)
        yield Change(line, before, after, changed)


def _of_one_line(first: int, before: str, after: str) -> tuple[int, str, str]:
    """Of a text of several lines the one that differs, and its number."""
    both = zip(before.splitlines(), after.splitlines(), strict=False)
    if after.count("\n") == before.count("\n"):
        for place, (old, new) in enumerate(both):
            if old != new:
                return first + place, old.strip(), new.strip()
    return first, before, after


Located = ast.expr | ast.stmt


def _replacements(tree: ast.Module, source: str) -> Iterator[tuple[Located, ast.expr | str]]:
    for node in _code(tree):
        match node:
            case ast.JoinedStr() | ast.Constant(value=str()):
                text = ast.get_source_segment(source, node) or ""
                for token in _SQL_TOKEN.finditer(text) if _SQL.search(text) else ():
                    yield node, text[: token.start()] + _IN_SQL[token[0]] + text[token.end() :]
            case ast.Compare(ops=[op], left=left, comparators=comparators) if type(op) in _COMPARED:
                yield node, ast.Compare(left, [_COMPARED[type(op)]], comparators)
            case ast.Compare(ops=[first, *rest], left=left, comparators=comparators):
                yield node, ast.Compare(left, [_COMPARED[type(first)], *rest], comparators)
            case ast.BoolOp(op=op, values=values):
                yield node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, operand
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _COMPUTED:
                yield node, ast.BinOp(left, _COMPUTED[type(op)], right)
            case ast.Constant(value=bool(value)):
                yield node, ast.Constant(not value)
            case ast.Constant(value=int(value)):
                yield node, ast.Constant(value + 1)
            case ast.Constant(value=float(value)):
                yield node, ast.Constant(2.0 * value or 1.0)
            case ast.Call(func=ast.Name(id=name) as called) if name in _CALLED:
                yield called, _CALLED[name]
            case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
                yield test, ast.UnaryOp(ast.Not(), test)
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
                yield node, "pass"
            case ast.Continue() | ast.Break():
                yield node, "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield node, "pass"
            case _:
                pass


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: no annotation, decorator or text."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # text
            if isinstance(node, ast.AST):
                yield node
                if not isinstance(node, ast.JoinedStr):
                    yield from _code(node)
