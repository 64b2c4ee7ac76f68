"""pytest plugin for vLLM's own tests: every test runs once for each scheduler under test, in one process.

The names ``Scheduler`` and ``AsyncScheduler`` of vLLM's test modules are bound to the scheduler under test, whatever
the test would have built. Subjects: ``upstream`` binds nothing; ``async`` is stock's AsyncScheduler; ``slo:POLICY`` is
SLOScheduler with that policy. A JSON file gets ``outcomes``: subject -> case -> {"outcome", "message"}, where a case is
a test's id without the subject, and ``built``: how many schedulers of each subject the tests built, 0 if the names were
bound in vain. With ``--where-lost`` the subjects after the first run only the cases that the first does not pass: who
asks what ours loses against stock need not see both pass the rest.
"""

import json
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_BUILT = pytest.StashKey[Counter[str]]()
_FIXTURE = "scheduler_under_test"
_TEST_PACKAGE = "tests.v1."
# The longest of these tests takes a few seconds; one that loops for ever is a failure and not the end of the run.
_TIMEOUT_S = 60.0


class Endless(Exception):
    """A test did not end in time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--subjects", required=True, help="comma-separated schedulers under test")
    parser.addoption("--where-lost", action="store_true", help="run the first subject, the others where it fails")
    parser.addoption("--outcomes", required=True, type=Path, help="JSON file to write")


def pytest_configure(config: pytest.Config) -> None:
    for marker in ("cpu_test", "skip_global_cleanup", "slow_test"):
        config.addinivalue_line("markers", f"{marker}: vLLM's own")
    config.stash[_BUILT] = Counter()
    config.pluginmanager.register(_Outcomes(config.getoption("outcomes"), config.stash[_BUILT]))


@pytest.fixture(scope="session", autouse=True)
def local_models(tmp_path_factory: pytest.TempPathFactory) -> None:
    import model_stand_ins

    os.environ["VLLM_MODEL_REDIRECT_PATH"] = str(model_stand_ins.install(tmp_path_factory.mktemp("models")))


def _subjects(config: pytest.Config) -> list[str]:
    subjects: list[str] = config.getoption("subjects").split(",")
    return subjects


def _case(nodeid: str, subject: str) -> str:
    return nodeid.replace(f"-<{subject}>", "").replace(f"<{subject}>-", "").replace(f"[<{subject}>]", "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    subjects = _subjects(metafunc.config)
    metafunc.parametrize(_FIXTURE, subjects, indirect=True, ids=[f"<{subject}>" for subject in subjects])


@pytest.fixture(autouse=True)
def timeout() -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise Endless(f"not done after {_TIMEOUT_S:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def scheduler_under_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "upstream":
        return
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    built = request.config.stash[_BUILT]
    classes: tuple[type, ...] = (Scheduler, AsyncScheduler)
    swapped = {stock: _under_test(request.param, built, stock) for stock in classes}
    for name, module in list(sys.modules.items()):
        if name.startswith(_TEST_PACKAGE):
            for stock, under_test in swapped.items():
                if vars(module).get(stock.__name__) is stock:
                    monkeypatch.setattr(module, stock.__name__, under_test)


def _under_test(subject: str, built: Counter[str], stock: type) -> type:
    """The scheduler's class in the place of ``stock``, which counts how many of it are built.

    These tests choose by the class and leave ``async_scheduling`` unset, so ours is built on the class that they name.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from sloserve.vllm_plugin.engine.scheduler import SLOScheduler

    ours = type("Ours", (SLOScheduler, AsyncScheduler), {}) if stock is AsyncScheduler else SLOScheduler
    base = AsyncScheduler if subject == "async" else ours

    class UnderTest(base):  # type: ignore[misc, valid-type]
        def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            if subject != "async":
                # As --additional-config has it, which these tests have no place for.
                policy = subject.removeprefix("slo:")
                vllm_config.additional_config = {"sloserve": {"policy": policy, "plan_share": 1.0}}
            super().__init__(vllm_config, *args, **kwargs)
            built[subject] += 1

    return UnderTest


@pytest.fixture
def caplog_vllm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """vLLM's fixture of this name: its log records, which do not reach the root logger by themselves."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO):
        yield caplog


class _Outcomes:
    def __init__(self, path: Path, built: Counter[str]) -> None:
        self._path = path
        self._built = built
        self._lost: set[str] = set()
        self._of: dict[str, dict[str, dict[str, str]]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """What need not run is not even set up, which for a thousand tests takes longer than running a few."""
        subject = item.callspec.params[_FIXTURE]  # type: ignore[attr-defined]
        case = _case(item.nodeid, subject)
        if not item.config.getoption("where_lost") or subject == _subjects(item.config)[0] or case in self._lost:
            return None
        self._of.setdefault(subject, {})[case] = {"outcome": "skipped", "message": "the first subject passed"}
        item.session._setupstate.teardown_exact(nextitem)  # as each test's last act
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or not report.passed:
            subject = item.callspec.params[_FIXTURE]  # type: ignore[attr-defined]
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash is not None else str(report.longrepr or "")
            case = _case(item.nodeid, subject)
            if not report.passed and subject == _subjects(item.config)[0]:
                self._lost.add(case)
            self._of.setdefault(subject, {})[case] = {"outcome": report.outcome, "message": message[:500]}
        return report

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps({"built": self._built, "outcomes": self._of}, indent=1, sort_keys=True))
