"""Ideas that have one home: another spelling of one, anywhere in the package, fails here."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p.relative_to(ROOT).as_posix() for d in ("sloserve", "benchmarks") for p in (ROOT / d).rglob("*.py"))


@cache
def _code(path: str) -> str:
    return (ROOT / path).read_text()


def _nodes(path: str, pattern: str) -> Iterator[ast.AST]:
    """The syntax of a file, or nothing where ``pattern`` is on none of its lines, which spares parsing it."""
    if re.search(pattern, _code(path)):
        yield from ast.walk(ast.parse(_code(path)))


def _is_block_size(node: ast.expr) -> bool:
    return ast.unparse(node).lower().endswith("block_size")


def _rounds_up_to_blocks(node: ast.AST) -> bool:
    """``-(-n // block_size)``, ``(n + block_size - 1) // block_size`` and ``ceil(n / block_size)``."""
    match node:
        case ast.BinOp(left=ast.UnaryOp(op=ast.USub()), op=ast.FloorDiv(), right=size):
            return _is_block_size(size)
        case ast.BinOp(left=ast.BinOp() as left, op=ast.FloorDiv(), right=size):
            return _is_block_size(size) and ast.unparse(size) in ast.unparse(left)
        case ast.Call(func=func, args=[ast.BinOp(op=ast.Div(), right=size)]):
            return ast.unparse(func).endswith("ceil") and _is_block_size(size)
    return False


@pytest.mark.parametrize(
    "code", ["-(-n // engine.block_size)", "(n + block_size - 1) // block_size", "math.ceil(n / BLOCK_SIZE)"]
)
def test_rounding_up_to_blocks_is_recognised(code: str) -> None:
    assert any(map(_rounds_up_to_blocks, ast.walk(ast.parse(code))))


@pytest.mark.slow
def test_only_blocks_of_rounds_tokens_up_to_blocks() -> None:
    division = r"(?i)(?://|ceil).*block_size"
    assert {path for path in SOURCES if any(map(_rounds_up_to_blocks, _nodes(path, division)))} == {
        "sloserve/lso/blocks.py"
    }


ALIASED = {"NDArray[np.int64]", "NDArray[np.float64]", "NDArray[np.bool_]"}


@pytest.mark.slow
def test_only_core_names_these_array_types() -> None:
    """Where each module has an alias of its own, others import it from where it does not belong."""
    tests = [p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("*.py")]
    found = {
        path
        for path in SOURCES + tests
        for node in _nodes(path, "|".join(re.escape(f"= {alias}") for alias in sorted(ALIASED)))
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and ast.unparse(node.value) in ALIASED
    }
    assert found == {"sloserve/core/arrays.py"}


def _grows_a_column(node: ast.AST) -> bool:
    """``longer[: len(column)] = column`` and ``np.concatenate((column, np.zeros(...)))``."""
    match node:
        case ast.Assign(
            targets=[ast.Subscript(slice=ast.Slice(lower=None, upper=ast.expr() as upper))],
            value=ast.Name() | ast.Attribute() | ast.Call() as value,
        ):
            return ast.unparse(upper) in {f"len({ast.unparse(value)})", f"{ast.unparse(value)}.size", "self._capacity"}
        case ast.Call(func=func, args=[ast.Tuple(elts=[_, ast.Call(func=new)])]):
            return (ast.unparse(func), ast.unparse(new)) in {
                ("np.concatenate", f"np.{name}") for name in ("zeros", "full", "empty", "ones")
            }
    return False


@pytest.mark.parametrize("code", ["new[: old.size] = old", "a.b = np.concatenate((a.b, np.zeros(3, np.bool_)))"])
def test_growth_of_a_column_is_recognised(code: str) -> None:
    assert any(map(_grows_a_column, ast.walk(ast.parse(code))))


@pytest.mark.slow
def test_only_core_grows_columns() -> None:
    growth = r"concatenate\(\(|\[: .*\] = "
    assert {path for path in SOURCES if any(map(_grows_a_column, _nodes(path, growth)))} == {"sloserve/core/arrays.py"}
