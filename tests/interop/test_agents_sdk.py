"""The example with the OpenAI Agents SDK states one task in every call of a run; ``make interop`` installs the SDK."""

import json
import os
import subprocess
import threading

import pytest

from tests.docs.pages import ROOT
from tests.interop.test_litellm import Answers, StandIn

PYTHON = ROOT / ".venv-interop" / "bin" / "python"
SDK = list((ROOT / ".venv-interop").glob("lib/python*/site-packages/agents"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SDK, reason="NOT TESTED: no OpenAI Agents SDK; make interop installs it"),
]


class OneToolCall(Answers):
    """Answers the first request with a call of the tool."""

    def answer(self, status: int, body: object, headers: dict[str, str]) -> None:
        if len(self.server.seen) == 1:
            assert isinstance(body, dict)
            function = {"name": "word_count", "arguments": json.dumps({"text": "the sky is blue"})}
            call = {"id": "t", "type": "function", "function": function}
            body["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
        super().answer(status, body, headers)


def test_every_call_of_a_run_is_a_call_of_one_task() -> None:
    server = StandIn()
    server.RequestHandlerClass = OneToolCall
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        command = [PYTHON, ROOT / "examples" / "agent_framework.py", "--url", url, "--model", "m", "How many words?"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0 and done.stdout == "Hi\n", done.stderr
    assert len(server.seen) == 2 and server.seen[1][1]["messages"][-1] == {
        "role": "tool", "tool_call_id": "t", "content": "4",
    }  # fmt: skip
    assert len({headers["x-slo-task-id"] for headers, _ in server.seen}) == 1
    assert [headers["x-slo-task-e2e-ms"] for headers, _ in server.seen] == ["60000", "60000"]
