"""An agent with real engines, forked: whichever of their processes is killed, nothing of the engine is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine import EngineLimits
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.launcher.kept import KeptProcesses
from sloserve.fleet.launcher.parent_messages import ParentJob
from tests import bounded
from tests.fleet.launcher.test_forking import gone, group
from tests.fleet.launcher.test_kept import ask, begun, settings_in, switched

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

AGENT = """
import asyncio, json, sys
from pathlib import Path
from sloserve.fleet.launcher.own import OwnProcesses
from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine import EngineLimits
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.core.spans import Phase
from sloserve.fleet.launcher.forking import ForkingLauncher

folder = Path(sys.argv[1])
environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
model = EngineModel("chat", "builtin:tiny", ("--max-num-seqs", "4"), environment)

async def ask(instance):
    body = json.dumps({"model": "chat", "prompt": "The sea", "max_tokens": 8, "temperature": 0, "ignore_eos": True})
    answer = await instance.send("POST", "/v1/completions", {"x-request-id": "r-1"}, body.encode(), model="chat")
    said = json.loads(b"".join([part async for part in answer.body]))
    return said["choices"][0]["text"], answer.headers["x-request-id"]

async def main():
    launcher = ForkingLauncher(folder / "launcher.log")
    models = {f"node/{i}": {"chat": model} for i in range(2)}
    settings = AgentSettings("node", "cpu", models, folder, limits=EngineLimits(hung_s=12.0))
    async with Agent(settings, OwnProcesses(launcher)) as agent:
        one, other = agent.instances.values()
        assert all(await asyncio.gather(one.switch("chat"), other.switch("chat")))
        while True:
            said = [await ask(instance) for instance in (one, other)]
            engines = [instance._engines.active for instance in (one, other)]
            processes = [engine.process for engine in engines]
            forked = [process.is_forked for process in processes]
            print(json.dumps([launcher.pid, [process.pid for process in processes], forked, said]), flush=True)
            killed = int(await asyncio.to_thread(sys.stdin.readline))
            before = engines[:killed]
            while any(i._engines.active in before or i.report().phase is not Phase.SERVING for i in (one, other)):
                await asyncio.sleep(0.05)

asyncio.run(main())
"""


def part_of(pids: list[int], name: str) -> int:
    """The process of an engine that has this in its title."""
    (found,) = [pid for pid in pids if name in Path(f"/proc/{pid}/cmdline").read_text()]
    return found


def _replaced(agent: "subprocess.Popen[str]", killed: int) -> Any:
    """What the agent says once so many engines, the first ones, have others in their place."""
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(f"{killed}\n")
    agent.stdin.flush()
    with bounded.within("the agent to replace its engines", 120.0):
        return json.loads(agent.stdout.readline())


@pytest.mark.whole
def test_nothing_is_left_of_an_engine_and_it_is_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AGENT, str(tmp_path)]
    with (
        bounded.within("an agent with engines, their replacement and the agent's end", 280.0),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent,
    ):
        assert agent.stdin is not None and agent.stdout is not None
        try:
            with bounded.within("the agent to start its engines", 200.0):
                _, engines, forked, said = json.loads(agent.stdout.readline())
            assert forked == [True, True] and said[0] == said[1] and said[0][1] == "r-1"
            for engine, name in zip(engines, ("EngineCore", "Worker"), strict=True):
                pids = group(engine)
                os.kill(part_of(pids, name), signal.SIGKILL)
                assert bounded.run(gone(pids)), f"killed: {name}"
            launcher, replaced, _, again = _replaced(agent, 2)
            assert again == said and not set(replaced) & set(engines)
            stopped = group(replaced[0])
            os.kill(part_of(stopped, "EngineCore"), signal.SIGSTOP)
            _, (first, *other), _, again = _replaced(agent, 1)
            assert again == said and first != replaced[0] and other == replaced[1:], "hangs, and is replaced"
            assert bounded.run(gone(stopped))
            replaced = [first, *other]
            left = [launcher, *(pid for engine in replaced for pid in group(engine))]
        finally:
            agent.kill()
        assert len(left) >= 7 and bounded.run(gone(left)), "killed: the agent"


GREEDY: dict[str, Any] = {"tokens": 700, "temperature": 0, "ignore_eos": True}


def test_the_next_agent_takes_over_a_real_engine_and_its_stream(tmp_path: Path) -> None:
    """The engine follows other targets meanwhile; the output is the one without a change of agents."""
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    before = {"policy": "edf", "classes": {"first": {"rank": 1, "ttft_ms": 1000}}}
    after = {"policy": "edf", "classes": {"first": {"rank": 1, "ttft_ms": 500}}}

    def settings(followed: dict[str, Any]) -> AgentSettings:
        (tmp_path / "slo.yaml").write_text(json.dumps(followed))
        flags = ("--max-num-seqs", "4", "--slo-config", str(tmp_path / "slo.yaml"))
        model = EngineModel("chat", "builtin:tiny", flags, environment, settings=json.dumps(followed))
        return settings_in(tmp_path, {"chat": model}, limits=EngineLimits())

    def processes() -> KeptProcesses:
        job = ParentJob(str(tmp_path / "note.json"), str(tmp_path / "launcher.log"), None, True, 60.0)
        return KeptProcesses(job, tmp_path / "processes.log")

    async def test() -> None:
        async with Agent(settings(before), processes()) as first:
            instance = await switched(first, "chat")
            assert instance._engines.active is not None and instance._engines.active.process.is_forked
            pid, endpoint = instance._engines.active.process.pid, first.endpoint
            whole = await ask(endpoint, **GREEDY)
            streaming = await begun(endpoint, **GREEDY)
            await first.leave()
        async with Agent(settings(after), processes()) as second:
            engine = second.instances["node/0"]._engines.active
            assert engine is not None and engine.process.pid == pid
            assert await streaming == whole and await ask(endpoint, **GREEDY) == whole
            await bounded.until(lambda: engine.settings == json.dumps(after))
            found = await engine.client.call("GET", "/sloserve/settings", limit_s=10.0)
            assert found["settings"]["classes"]["first"]["ttft_ms"] == 500

    bounded.run(test(), 280.0)
