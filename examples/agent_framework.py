"""Run an agent of the OpenAI Agents SDK as one task with one deadline; needs the package openai-agents.

pip install openai-agents
sloserve serve MODEL --policy auto --enable-auto-tool-choice --tool-call-parser hermes
python examples/agent_framework.py --model MODEL "How many words has the sentence: the sky is blue?"

The one line that states the task is ``model_settings=...``: the SDK sends these headers with every call of the run.
"""

import argparse
from uuid import uuid4

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool

from sloserve.client.http_clients import async_http_client


@function_tool
def word_count(text: str) -> int:
    """Return the number of words of a text."""
    return len(text.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True, help="name of the model that the server serves")
    args = parser.parse_args()

    http = async_http_client(args.url, timeout=600.0)  # the SDK's own would use a proxy for this machine, too
    client = openai.AsyncOpenAI(base_url=f"{args.url}/v1", api_key="none", http_client=http)
    agent = Agent(
        name="counter",
        instructions="Use the tool to count words, then answer in one sentence.",
        tools=[word_count],
        model=OpenAIChatCompletionsModel(args.model, client),
        model_settings=ModelSettings(extra_headers={"x-slo-task-id": uuid4().hex, "x-slo-task-e2e-ms": "60000"}),
    )
    print(Runner.run_sync(agent, args.question, run_config=RunConfig(tracing_disabled=True)).final_output)


if __name__ == "__main__":
    main()
