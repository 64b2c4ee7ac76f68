"""OpenAI's Agents SDK against the gateway of a fleet: runs by responses, whole and streamed, and by chat."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.fleet.gateway.test_gateway import line, run
from tests.fleet.stand_in.engine import reply
from tests.interop.test_agents_sdk import PYTHON, SDK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SDK, reason="NOT TESTED: no OpenAI Agents SDK; make interop installs it"),
]

PROGRAM = """
import asyncio, sys
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_default_openai_client
from agents import set_tracing_disabled
from openai import AsyncOpenAI

async def main():
    client = AsyncOpenAI(api_key="x", base_url=sys.argv[1] + "/v1", max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)
    set_tracing_disabled(True)
    settings = ModelSettings(max_tokens=6, extra_headers={"x-slo-task-id": "t", "x-slo-task-e2e-ms": "60000"})
    agent = Agent(name="a", instructions="Be brief.", model="chat", model_settings=settings)
    print((await Runner.run(agent, "Hello")).final_output)
    streamed = Runner.run_streamed(agent, "Hello")
    async for event in streamed.stream_events():
        pass
    print(streamed.final_output)
    by_chat = Agent(name="b", model=OpenAIChatCompletionsModel("chat", client), model_settings=settings)
    print((await Runner.run(by_chat, "Hello")).final_output)

asyncio.run(main())
"""


def test_the_agents_sdk_runs_on_a_fleet(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            program = await asyncio.create_subprocess_exec(
                str(PYTHON), "-c", PROGRAM, to.served.url, stdout=asyncio.subprocess.PIPE, env=environment
            )
            out, _ = await program.communicate()
            by_chat = reply("chat", "user: Hello\nassistant: ", 6)
            assert out.decode().split("\n") == [reply("chat", "Hello", 6)] * 2 + [by_chat, ""]
            assert {came["x-slo-task-id"] for came in to.first.came} == {"t"} and len(to.first.came) == 3

    run(test)
