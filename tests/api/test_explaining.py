"""``GET /sloserve/explain``: an explanation from the running server's recording, bounded and apart from its loop."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sloserve.api import explaining
from sloserve.api.explaining import COMMAND, Explaining, recorded
from sloserve.core.errors import ConfigError, EngineError, QueueFull
from sloserve.engine.recording import run
from sloserve.engine.recording.folder import engine_stem
from sloserve.scheduler.settings import PluginSettings
from tests import bounded

NOW_S = 1_764_295_200.0
SHOWN = (
    "import json, os, sys; print(json.dumps({'argv': sys.argv[1:], 'nice': os.nice(0), 'env': dict(os.environ), "
    "'late': list(range(150))}))"
)


def saying(code: str) -> Explaining:
    return Explaining([sys.executable, "-c", code])


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSettings:
    monkeypatch.setenv(run.VARIABLE, f"20260101T000000Z-1 {'ab' * 16}")
    monkeypatch.setenv("SLOSERVE_ADMIN_KEY", "secret-canary")
    return PluginSettings(record_mib=64, record_folder=str(tmp_path))


def asked(explainer: Explaining, settings: PluginSettings, query: bytes = b"request=0-7") -> Any:
    return bounded.run(explainer.answer(settings, query, NOW_S))


@pytest.mark.slow
def test_the_command_reads_this_server_s_recording_at_the_lowest_priority_and_without_keys(
    settings: PluginSettings, tmp_path: Path
) -> None:
    found = asked(saying(SHOWN), settings, b"request=3-206")
    name = engine_stem(run.present_run(NOW_S).name, 3)
    assert found["argv"] == ["3-206", "--recording", name, "--folder", str(tmp_path)]
    assert found["nice"] == 19
    assert "secret-canary" not in json.dumps(found["env"]) and run.VARIABLE not in found["env"]
    assert asked(saying(SHOWN), settings, b"")["argv"][0] == "--late"
    assert asked(saying(SHOWN), settings, b"rank=2")["late"] == list(range(50, 150))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (b"request=7", "request: '7' is not RANK-NUMBER, such as 0-206"),
        (b"request=0--late", "is not RANK-NUMBER"),
        (b"request=" + b"9" * 5000, "is not RANK-NUMBER"),
        (b"rank=-1", "rank: '-1' is not the number of an engine"),
        (b"request=0-1&rank=0", "the query is request=RANK-NUMBER, or rank=RANK"),
        (b"folder=/etc", "the query is request=RANK-NUMBER, or rank=RANK"),
        (b"a=1&b=2&c=3&d=4&e=5", "the query is request=RANK-NUMBER, or rank=RANK"),
    ],
)
def test_another_query_is_refused(settings: PluginSettings, query: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        asked(saying("raise AssertionError"), settings, query)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("kept", [PluginSettings(), None])
def test_a_server_without_a_recording_says_so(kept: PluginSettings | None) -> None:
    with pytest.raises(ConfigError, match="this server records nothing; start it with --record-mib 64"):
        recorded(kept)


@pytest.mark.slow
def test_one_at_a_time(settings: PluginSettings) -> None:
    async def both() -> Any:
        explainer = saying(SHOWN)
        first = asyncio.create_task(explainer.answer(settings, b"request=0-1", NOW_S))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="another request is being explained"):
            await explainer.answer(settings, b"request=0-2", NOW_S)
        await first
        return await explainer.answer(settings, b"request=0-3", NOW_S)

    assert bounded.run(both())["argv"][0] == "0-3"


def test_one_at_a_time_also_where_a_client_has_left(settings: PluginSettings, tmp_path: Path) -> None:
    endless = f"import select; open({str(tmp_path / 'runs')!r}, 'w'); select.select([], [], [])"

    async def leave() -> None:
        explainer = saying(endless)
        task = asyncio.create_task(explainer.answer(settings, b"request=0-1", NOW_S))
        await bounded.until((tmp_path / "runs").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(QueueFull, match="another request is being explained"):
            await explainer.answer(settings, b"request=0-2", NOW_S)
        explainer.close()

    bounded.run(leave())


@pytest.mark.slow
def test_mistakes_doubts_and_failures_of_the_command(settings: PluginSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="^request 7: was in time$"):
        asked(saying("import sys; print('sloserve: request 7: was in time', file=sys.stderr); sys.exit(2)"), settings)
    assert asked(saying('import sys; print(\'{"mistrust": "why"}\'); sys.exit(3)'), settings) == {"mistrust": "why"}
    with pytest.raises(EngineError, match=r"explain: failed \(1\): ZeroDivisionError"):
        asked(saying("1 / 0"), settings)
    monkeypatch.setattr(explaining, "MOST_BYTES", 1000)
    with pytest.raises(EngineError, match=r"explain: failed \(.*File too large"):
        asked(saying("print('x' * 5000)"), settings)


@pytest.mark.slow
def test_what_takes_too_long_or_outlives_the_server_is_ended(
    settings: PluginSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = (
        f"import os, select; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); select.select([], [], [])"
    )
    monkeypatch.setattr(explaining, "LIMIT_S", 1.0)
    with pytest.raises(EngineError, match="took longer than 1 s and was ended"):
        asked(saying(endless), settings)
    monkeypatch.setattr(explaining, "LIMIT_S", 60.0)

    async def closed() -> None:
        explainer = saying(endless)
        (tmp_path / "pid").unlink(missing_ok=True)
        task = asyncio.create_task(explainer.answer(settings, b"request=0-1", NOW_S))
        await bounded.until((tmp_path / "pid").exists)
        explainer.close()
        with pytest.raises(EngineError, match=r"explain: failed \(-9\)"):
            await task
        with pytest.raises(EngineError, match="the server stops"):
            await explainer.answer(settings, b"request=0-1", NOW_S)

    bounded.run(closed())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text() or 0), 0)


@pytest.mark.slow
def test_the_real_command_explains_a_recorded_request(
    tmp_path: Path, settings: PluginSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sloserve.sim.replay.explain_course import late_courses
    from tests.sim.replay.played import played, workload
    from tests.sim.replay.test_explain import written

    monkeypatch.setattr(explaining, "LOWEST_PRIORITY", 0)  # the other tests would leave it no time
    recording = played(workload(150, rps=18.0))[0]
    written(recording, tmp_path, engine_stem(run.present_run(NOW_S).name, 0))
    explainer = Explaining(COMMAND)
    listed = asked(explainer, settings, b"")
    assert len(listed["late"]) == min(len(late_courses(recording)), explaining.MOST_LISTED)
    number = max(late_courses(recording), key=lambda one: one.late_by_s).request.number
    found = asked(explainer, settings, b"request=0-%d" % number)
    assert found["request"] == f"0-{number}" and any(one["saves"] for one in found["tried"])
    assert any(line.startswith("It would have been in time") for line in found["text"])
    with pytest.raises(ConfigError, match="is not in the recording"):
        asked(explainer, settings, b"request=0-99999")
