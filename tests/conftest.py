"""What all tests share: what of the shell they see, where data lies, which machine this is, Hypothesis' limits."""

import functools
import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.gpu import ON_A_GPU
from tests.orphans import below, kill_started_since, watch_this_process
from tests.shell import TEMPORARY, leave_out_settings
from tests.whole import skip_the_rest

# Before anything of vLLM or of ours is imported, which reads some of them then.
leave_out_settings()

# Derandomised: a red run is red again. No deadline: no test depends on the speed of the machine.
settings.register_profile("sloserve", deadline=None, derandomize=True, max_examples=45)
# The fast tests, see Makefile. A seed made of a test's source takes longer than three examples: theirs is the one that
# pyproject.toml gives.
settings.register_profile("fast", settings.get_profile("sloserve"), derandomize=False, database=None, max_examples=3)
settings.load_profile("sloserve")

# A path of a unix socket has at most 107 bytes, of which the folders that pytest makes for a test and the socket's name
# take up to 75. vLLM makes its own sockets in the temporary folder, with names of 37 bytes.
if len(os.fsencode(tempfile.gettempdir())) > 107 - 75 and os.access("/tmp", os.W_OK | os.X_OK):
    os.environ.setdefault(TEMPORARY, "/tmp")
    os.environ["VLLM_RPC_BASE_PATH"] = "/tmp"

# What the request table follows is read as well, here and in every engine that a test starts.
os.environ.setdefault("SLOSERVE_CHECK_COUNTS", "1")

# Loaded only by the server that speaks S3, elsewhere: Flask's objects raise when looked at outside a request, and vLLM,
# which looks at what each module holds, then starts no engine. Schemathesis loads it where it is installed.
sys.modules["flask"] = None  # type: ignore[assignment]

_LARGE = ("vllm", "torch", "matplotlib")
_RUNNING = pytest.StashKey[pytest.Item]()
"""Of a session: the test that runs."""
_LEFT_BY = pytest.StashKey[tuple[set[int], str]]()
"""Of a failed test: what ran before its body, or one of its fixtures, began, and pytest's name of that phase."""
_DATA = Path(os.environ.get("SLOSERVE_DATA") or Path(__file__).parents[2] / "shared" / "data")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have the process watched, and leave out of a fast run what it has no use for.

    That is a thread for each test's time limit, where a signal does, which costs two seconds of CPU in all. And it is
    constants of all modules to draw its three examples from, which it takes long to read.
    """
    watch_this_process()
    if config.getoption("--hypothesis-profile") == "fast":
        config.option.timeout_method = config.option.timeout_method or "signal"
        providers._get_local_constants = lambda: providers._local_constants


def _left_out(path: Path, markers: str) -> bool:
    """Whether the markers that ``-m`` excludes are on all tests of the module, or of all modules below the folder."""
    if path.is_dir():
        modules = list(path.rglob("test_*.py"))
        return bool(modules) and all(_left_out(module, markers) for module in modules)
    marked = re.search(r"^pytestmark = (\[\n.*?^\]|[^\n]*)", path.read_text(), re.MULTILINE | re.DOTALL)
    return marked is not None and re.search(rf"\bpytest\.mark\.({markers})\b", marked[0]) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules without a test that ``-m`` selects are not read: what they import takes seconds to load."""
    excluded = re.fullmatch(r"not \w+( and not \w+)*", config.option.markexpr)
    if excluded is None or not (collection_path.is_dir() or collection_path.match("test_*.py")):
        return None
    return _left_out(collection_path, excluded[0].removeprefix("not ").replace(" and not ", "|")) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes ``-n auto`` means: two more than there are cores, as tests wait for processes.

    Each needs 5 GiB for engines and servers. More than four are not tried; with one core the tests run in this process.
    """
    kib = re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    cores, gib = len(os.sched_getaffinity(0)), int(kib[1]) / 2**20 if kib is not None else 0.0
    lanes = min(cores + 2, int(gib / 5), 4)
    return lanes if cores > 1 and lanes > 1 else 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collection builds lives to the end: the garbage collector need not look at it, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # what one test builds is soon gone
        gc.enable()


@pytest.hookimpl(trylast=True)  # what folders mark in this hook is marked by then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_the_rest(items)
    if ON_A_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


def _loaded() -> set[str]:
    """Large libraries that are in memory; what a test puts in the place of one has no file."""
    return {name for name in _LARGE if getattr(sys.modules.get(name), "__file__", None)}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In a run without slow tests, no module loads one of the large libraries when it is read."""
    before = _loaded()
    report = yield
    loaded = sorted(_loaded() - before)
    if (
        loaded
        and isinstance(collector, pytest.Module)
        and collector.config.option.markexpr.startswith("not slow and not vllm")
    ):
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} loads {', '.join(loaded)}; import it in slow tests, or mark the module slow"
        )
    return report


@contextmanager
def _noting_what_a_failure_leaves(item: pytest.Item) -> Iterator[None]:
    """Note what ran before the block, if the block fails, so that what it has started can be killed."""
    if not any(map(item.get_closest_marker, ("slow", "vllm"))):  # it starts no process
        yield
        return
    running = below(os.getpid())
    try:
        yield
    except pytest.skip.Exception:
        raise
    except BaseException:  # such as that of pytest.fail
        item.stash.setdefault(_LEFT_BY, (running, os.environ.get("PYTEST_CURRENT_TEST", "")))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Have what a fixture started killed, but not what those started that it needs, if it fails before its end."""
    with _noting_what_a_failure_leaves(request.session.stash[_RUNNING]):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Note for the fixtures of all scopes which test they are made for."""
    item.session.stash[_RUNNING] = item
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that loads one of the large libraries, which take seconds of each fast run, is not a fast one."""
    before = _loaded()
    with _noting_what_a_failure_leaves(item):
        result = yield
    loaded = sorted(_loaded() - before)
    if loaded and not any(map(item.get_closest_marker, ("slow", "vllm", "gpu"))):
        pytest.fail(f"it loads {', '.join(loaded)}; mark it slow, or put something in its place")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None, item: pytest.Item) -> Generator[None, object, object]:
    """An engine of vLLM in this process unfreezes all when it ends, so that each later look of the garbage collector at
    everything, as before a simulated run, took a second. What is left of a module is not looked at again.
    """
    result = yield
    if item.stash.get(_LEFT_BY, None) is not None:
        for command in kill_started_since(*item.stash[_LEFT_BY]):
            item.add_report_section("teardown", "processes", f"killed what the failed test left running: {command}")
    if "vllm" in sys.modules and (nextitem is None or nextitem.path != item.path):
        gc.collect()
        gc.freeze()
    return result


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Typer builds all commands at each call, which takes longer than most tests of one do."""
    if "typer" not in sys.modules:  # nor is it loaded for tests that have no commands
        yield
        return
    import typer.main
    import typer.testing

    built = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", built)
        patch.setattr(typer.testing, "_get_command", built)
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of production traces, named by SLOSERVE_DATA; tests that need it are skipped where it is absent."""
    if not _DATA.is_dir():
        pytest.skip(f"no traces at {_DATA}; set SLOSERVE_DATA")
    return _DATA


@pytest.fixture
def snapshot() -> Callable[..., Any]:
    """Makes hand-made states of an engine, see :func:`tests.snapshots.make_snapshot`."""
    from tests.snapshots import make_snapshot

    return make_snapshot
