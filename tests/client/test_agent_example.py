"""The example of an agent states one task for all of its calls, and marks the last."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_task.py"


def test_every_call_carries_the_task_and_the_whole_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    spec = importlib.util.spec_from_file_location("agent_task", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    seen: list[tuple[dict[str, str], list[Any]]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"object": "list", "data": [{"id": "m", "object": "model"}]})
        messages = json.loads(request.content)["messages"]
        stated = {name: value for name, value in request.headers.items() if name.startswith("x-slo-task")}
        seen.append((stated, messages))
        message = {"role": "assistant", "content": f"answer {len(seen)}"}
        return httpx.Response(200, json={"id": "x", "choices": [{"index": 0, "message": message}]})

    def client(url: str, **_: Any) -> httpx.Client:
        return httpx.Client(base_url=url, transport=httpx.MockTransport(respond))

    monkeypatch.setattr(example, "http_client", client)
    monkeypatch.setattr("sys.argv", ["agent_task.py", "Why?", "--calls", "3", "--deadline-s", "90"])
    example.main()
    assert capsys.readouterr().out == "answer 3\n"
    assert len({stated["x-slo-task-id"] for stated, _ in seen}) == 1
    assert [stated["x-slo-task-e2e-ms"] for stated, _ in seen] == ["90000"] * 3
    assert [stated.get("x-slo-task-last") for stated, _ in seen] == [None, None, "1"]
    assert [len(messages) for _, messages in seen] == [1, 3, 5]
    assert seen[2][1][1] == {"role": "assistant", "content": "answer 1"}
