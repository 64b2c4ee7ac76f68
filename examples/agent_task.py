"""Run an agent of several calls as one task with one deadline; needs the openai package.

make serve
.venv/bin/python examples/agent_task.py "Why is the sky blue?" --calls 4 --deadline-s 60

The headers of the client state the task, so that every call carries them: its id, and the time in which the whole task
should end. The server schedules for the end of the task, not for the end of each call.
"""

import argparse
from uuid import uuid4

import openai

from sloserve.client.http_clients import http_client

LAST = {"x-slo-task-last": "1"}


def word_count(text: str) -> str:
    """Stand in for a tool: return the number of words of ``text``."""
    return f"Your answer has {len(text.split())} words. Improve it."


def run(client: openai.OpenAI, question: str, calls: int, max_tokens: int) -> str:
    """Return the last output of an agent that makes ``calls`` calls, each with the whole conversation so far."""
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": question}]
    answer = ""
    for i in range(calls):
        completion = client.chat.completions.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=max_tokens,
            extra_headers=LAST if i + 1 == calls else None,
        )
        answer = completion.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": word_count(answer)}]
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--deadline-s", type=float, default=60.0)
    parser.add_argument("--max-tokens", type=int, default=30)
    args = parser.parse_args()

    task = {"x-slo-task-id": uuid4().hex, "x-slo-task-e2e-ms": str(round(1e3 * args.deadline_s))}
    http = http_client(args.url, timeout=600.0)  # the SDK's own would use a proxy for this machine, too
    with openai.OpenAI(base_url=f"{args.url}/v1", api_key="none", http_client=http, default_headers=task) as client:
        print(run(client, args.question, args.calls, args.max_tokens))


if __name__ == "__main__":
    main()
