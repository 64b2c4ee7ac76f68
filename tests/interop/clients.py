"""What applications write with each client library to state SLOs; run with a Python that has them (``make interop``).

    python clients.py URL NAME [NAME ...]

prints one JSON object a client: what the application sees of a reply, of a stream and of a refusal.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "builtin:tiny"
HELLO = [{"role": "user", "content": "Hello"}]
HEADERS = {"x-slo-class": "interactive", "x-slo-ttft-ms": "500", "x-slo-tpot-ms": "50", "x-slo-report": "1"}
SLO = {"slo": {"class": "batch", "e2e_ms": 30000, "report": True, "updates": True}}
WRONG = {"slo": {"ttft_ms": -5}}


def openai_python(url: str) -> dict[str, Any]:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        chat = client.chat.completions
        plain = chat.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=8, extra_headers=HEADERS)
        last = None
        with chat.create(model=MODEL, messages=HELLO, max_tokens=8, stream=True, extra_body=SLO) as stream:
            text = ""
            for last in stream:
                text += (last.choices[0].delta.content or "") if last.choices else ""
        tier = chat.create(model=MODEL, messages=HELLO, max_tokens=8, service_tier="flex")
        try:
            chat.create(model=MODEL, messages=HELLO, extra_body=WRONG)
            refused = ""
        except openai.BadRequestError as error:
            refused = str(error)
    return {
        "reply": plain.parse().choices[0].message.content,
        "report": (plain.parse().model_extra or {}).get("slo"),
        "headers": sorted(name for name in plain.headers if "x-slo-" in name),
        "stream": text,
        "stream_report": (last.model_extra or {}).get("slo") if last is not None else None,
        "tier": tier.choices[0].message.content,
        "refused": refused,
    }


def litellm_sdk(url: str) -> dict[str, Any]:
    import litellm

    common = {
        "model": f"hosted_vllm/{MODEL}",
        "messages": HELLO,
        "api_base": f"{url}/v1",
        "api_key": "k",
        "num_retries": 0,
    }
    plain = litellm.completion(**common, max_tokens=8, extra_headers=HEADERS)
    text = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in litellm.completion(**common, max_tokens=8, stream=True, extra_body=SLO)
        if chunk.choices
    )
    try:
        litellm.completion(**common, extra_body=WRONG)
        refused = ""
    except litellm.BadRequestError as error:
        refused = str(error)
    headers = plain._hidden_params.get("additional_headers", {})
    return {
        "reply": plain.choices[0].message.content,
        "headers": sorted(name for name in headers if "x-slo-" in name),
        "stream": text,
        "refused": refused,
    }


def litellm_proxy(url: str) -> dict[str, Any]:
    """OpenAI's client of a LiteLLM proxy in front of the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "k"}
    general = {"forward_client_headers_to_llm_api": True, "dangerously_permit_weak_or_unset_master_key": True}
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "proxy.yaml"
        settings.write_text(
            json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": model}], "general_settings": general})
        )
        command = [Path(sys.executable).with_name("litellm"), "--config", settings, "--host", "127.0.0.1"]
        proxy = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, cwd=folder)
        try:
            _wait_for(f"http://127.0.0.1:{port}/health/liveliness", proxy)
            return openai_python(f"http://127.0.0.1:{port}")
        finally:
            proxy.terminate()
            proxy.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(240):
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended with status {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"waited 120 s for {url}")


def langchain_openai(url: str) -> dict[str, Any]:
    import openai
    from langchain_openai import ChatOpenAI

    common: dict[str, Any] = {
        "model": MODEL,
        "base_url": f"{url}/v1",
        "api_key": "k",
        "max_retries": 0,
        "max_tokens": 8,
    }
    plain = ChatOpenAI(**common, default_headers=HEADERS, include_response_headers=True).invoke("Hello")
    text = "".join(str(chunk.content) for chunk in ChatOpenAI(**common, extra_body=SLO).stream("Hello"))
    try:
        ChatOpenAI(**common, extra_body=WRONG).invoke("Hello")
        refused = ""
    except openai.BadRequestError as error:
        refused = str(error)
    headers = plain.response_metadata.get("headers", {})
    return {
        "reply": plain.content,
        "headers": sorted(name for name in headers if name.startswith("x-slo-")),
        "stream": text,
        "refused": refused,
    }


def llama_index(url: str) -> dict[str, Any]:
    import openai
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    common: dict[str, Any] = {
        "model": MODEL,
        "api_base": f"{url}/v1",
        "api_key": "k",
        "is_chat_model": True,
        "max_retries": 0,
        "max_tokens": 8,
    }
    hello = [ChatMessage(role="user", content="Hello")]
    plain = OpenAILike(**common, default_headers=HEADERS).chat(hello)
    with_body = OpenAILike(**common, additional_kwargs={"extra_body": SLO})
    text = "".join(chunk.delta or "" for chunk in with_body.stream_chat(hello))
    try:
        OpenAILike(**common, additional_kwargs={"extra_body": WRONG}).chat(hello)
        refused = ""
    except openai.BadRequestError as error:
        refused = str(error)
    return {"reply": plain.message.content, "stream": text, "refused": refused}


CLIENTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "openai-python": openai_python,
    "litellm": litellm_sdk,
    "litellm-proxy": litellm_proxy,
    "langchain-openai": langchain_openai,
    "llama-index": llama_index,
}

if __name__ == "__main__":
    address, *names = sys.argv[1:]
    for name in names or CLIENTS:
        print(json.dumps({"client": name, **CLIENTS[name](address)}), flush=True)
