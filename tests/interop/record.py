"""Writes ``recorded/*.json``: the requests of ``clients.py`` as the libraries send them, to a server that plays ours.

make interop && .venv/bin/python -m tests.interop.record .venv-interop/bin/python

``open-webui.json`` is not recorded: it was read from the source of Open WebUI (routers/openai.py, routers/tasks.py,
utils/payload.py), which states SLOs by headers of a connection and by custom parameters of a model.
"""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RECORDED = FOLDER / "recorded"
NODE = "openai-node"
NAMES = ("openai-python", "litellm", "litellm-proxy", "langchain-openai", "llama-index", NODE)
LEFT_OUT = ("host", "content-length", "connection", "accept-encoding", "authorization")
"""Headers that say nothing of SLOs, and those with a key."""
PACKAGES = ("openai", "litellm", "langchain-openai", "llama-index-llms-openai-like")

_ID = {"id": "c-1", "created": 1, "model": "builtin:tiny"}
_REPLY = {
    **_ID,
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
_CHUNK = {
    **_ID,
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}
_ERROR = {
    "error": {"message": "slo.ttft_ms: -5 is not", "type": "BadRequestError", "param": "slo.ttft_ms", "code": 400}
}


class _Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in LEFT_OUT}
        self.requests.append({"path": self.path, "headers": headers, "body": body})
        refused = body.get("slo", {}).get("ttft_ms") == -5
        streams = bool(body.get("stream")) and not refused
        reply = json.dumps(_ERROR if refused else _REPLY)
        text = f"data: {json.dumps(_CHUNK)}\n\ndata: [DONE]\n\n" if streams else reply
        self.send_response(400 if refused else 200)
        self.send_header("content-type", "text/event-stream" if streams else "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def command_of(client: str, python: Path, url: str) -> list[str]:
    """Runs one client; what npm installed lies beside the Python's ``bin``."""
    if client == NODE:
        return ["node", str(FOLDER / "openai_node.mjs"), url, str(python.parents[1])]
    return [str(python), str(FOLDER / "clients.py"), url, client]


def main() -> None:
    python = Path(sys.argv[1])
    print_versions = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {PACKAGES}}}))"
    versions = json.loads(
        subprocess.run([python, "-c", print_versions], capture_output=True, check=True, timeout=1200).stdout
    )
    package = json.loads((python.parents[1] / "node_modules" / "openai" / "package.json").read_text())
    versions["openai (npm)"] = package["version"]
    RECORDED.mkdir(exist_ok=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for name in NAMES:
            _Recorder.requests.clear()
            environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            subprocess.run(command_of(name, python, url), check=True, env=environment, timeout=1200)
            of_client = {"versions": versions, "requests": _Recorder.requests}
            (RECORDED / f"{name}.json").write_text(json.dumps(of_client, indent=1) + "\n")
        server.shutdown()


if __name__ == "__main__":
    main()
