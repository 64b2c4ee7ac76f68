"""Every wait of a test has a bound: a timeout, or a block ``with within(...)`` of ``tests/bounded.py`` around it.

What a coroutine does is bounded as a whole by ``run`` of that module, which alone runs event loops.
"""

import ast
import asyncio
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bounded

TESTS = Path(__file__).parents[1]
HOME = Path(bounded.__file__)

METHODS = {"acquire", "communicate", "join", "readline", "recv", "result", "wait"}
"""Methods that wait without an end where they are given nothing."""
PROGRAMS = {f"subprocess.{name}" for name in ("call", "check_call", "check_output", "run")}
LOOPS = {"asyncio.run", "asyncio.Runner", "uvloop.run"}
NO_TIMEOUT = {"os.waitpid", "os.wait", "os.waitid", "os.read"}
CLOCKS = {"monotonic_s", "perf_counter"}
"""A loop that polls may look at a clock itself, or count its turns."""
JOINED = {"Popen", "ThreadPoolExecutor", "ProcessPoolExecutor", "Pool"}
"""The end of their blocks waits for what they have started."""


def _called(node: ast.AST) -> str:
    """Return what a node calls, as it is written."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _has_bound(node: ast.AST) -> bool:
    """Return whether all below a node has a bound: in a block of ``within``, or in a coroutine, which ``run`` runs."""
    if isinstance(node, ast.With):
        return any(_called(item.context_expr).split(".")[-1] == "within" for item in node.items)
    return isinstance(node, ast.AsyncFunctionDef)


def _may_wait(node: ast.AST) -> bool:
    """Return whether a node by itself may wait without an end."""
    if isinstance(node, ast.While):
        calls = {_called(part).split(".")[-1] for part in ast.walk(node)}
        changes_nothing = all(isinstance(one, ast.Pass | ast.Assert | ast.Expr) for one in node.body)
        counts = any(isinstance(one, ast.Assert) and " < " in ast.unparse(one.test) for one in node.body)
        return ("sleep" in calls or changes_nothing) and not counts and not calls & CLOCKS
    if isinstance(node, ast.For | ast.comprehension):
        return ast.unparse(node.iter).endswith(".stdout")
    if isinstance(node, ast.With):
        return any(_called(item.context_expr).split(".")[-1] in JOINED for item in node.items)
    if not isinstance(node, ast.Call):
        return False
    called = _called(node)
    owner, _, method = called.rpartition(".")
    if called in LOOPS | NO_TIMEOUT or method == "run_until_complete":
        return True
    if any(keyword.arg == "timeout" for keyword in node.keywords):
        return False
    if called in PROGRAMS:
        return True
    return bool(owner) and not node.args and (method in METHODS or called.endswith("stdout.read"))


def unbounded(tree: ast.AST) -> list[int]:
    """Return the lines of waits without a bound. What a thread does has the bound of who waits for the thread."""

    in_threads = {
        ast.unparse(keyword.value).split(".")[-1]
        for node in ast.walk(tree)
        if _called(node).split(".")[-1] == "Thread"
        for keyword in node.keywords
        if keyword.arg == "target"
    }

    def below(node: ast.AST) -> Iterator[int]:
        for child in ast.iter_child_nodes(node):
            if _has_bound(child) or (isinstance(child, ast.FunctionDef) and child.name in in_threads):
                continue
            if _may_wait(child):
                yield child.iter.lineno if isinstance(child, ast.comprehension) else child.lineno
            yield from below(child)

    return sorted(set(below(tree)))


@pytest.mark.slow
def test_every_wait_has_a_bound() -> None:
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        if path != HOME:
            text = path.read_text()
            found += [f"{path}:{n}: {text.splitlines()[n - 1].strip()}" for n in unbounded(ast.parse(text))]
    assert not found, "give it a timeout, or a block with tests.bounded.within around it:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "process.wait()",
        "thread.join()",
        "with Popen(command):\n    pass",
        "with ThreadPoolExecutor(2) as threads:\n    pass",
        "subprocess.run(command, check=True)",
        "lines = [line for line in process.stdout]",
        "while not done():\n    time.sleep(0.1)",
        "asyncio.run(test())",
    ],
)
def test_what_is_a_wait_without_a_bound(code: str) -> None:
    assert unbounded(ast.parse(code)) == [1]
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    assert unbounded(ast.parse(f"with bounded.within('the end'):\n{lines}")) == []


@pytest.mark.parametrize(
    "code",
    ["process.wait(60)", "thread.join(timeout=60)", "', '.join(names)", "subprocess.run(command, timeout=60)"],
)
def test_what_has_a_bound(code: str) -> None:
    assert unbounded(ast.parse(code)) == []


def test_a_wait_that_runs_out_says_what_was_waited_for() -> None:
    with pytest.raises(pytest.fail.Exception, match="^waited 0.01 s for a thread$"):
        with bounded.within("a thread", 0.01):
            threading.Event().wait(60.0)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 10.0 or signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_a_program_that_is_not_read_to_its_end_is_interrupted() -> None:
    with pytest.raises(pytest.fail.Exception, match="for a line of the program"):
        program = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
        try:
            with bounded.within("a line of the program", 0.01):
                assert program.stdout is not None
                program.stdout.readline()
        finally:
            program.kill()
            program.communicate(timeout=60)


def test_where_each_task_waits_is_said() -> None:
    async def inner(event: asyncio.Event) -> None:
        await event.wait()

    async def test() -> None:
        await inner(asyncio.Event())

    with pytest.raises(pytest.fail.Exception) as failed:
        bounded.run(test(), 0.01)
    said = str(failed.value)
    assert said.startswith(f"waited 0.01 s for the end of {test.__qualname__}\n")
    assert f"{__file__}:" in said and "await inner(asyncio.Event())" in said and "await event.wait()" in said


def test_the_bound_around_a_block_stays() -> None:
    with pytest.raises(pytest.fail.Exception, match="for the whole"):
        with bounded.within("the whole", 0.05):
            with bounded.within("one that is longer", 60.0):
                pass
            with bounded.within("one that is shorter", 0.02):
                pass
            threading.Event().wait(60.0)
