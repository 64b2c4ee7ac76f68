"""vLLM's own handlers that call the engine several times for one HTTP request, with the front end around a fake engine.

They fail where a new vLLM calls the engine in another order, by which whose call it is would not be known any more.
"""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.outcome import Outcome
from tests.vllm_plugin.server.fake_engine import Metrics, Server

pytestmark = pytest.mark.vllm


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    found = Metrics()
    monkeypatch.setattr("sloserve.engine.metrics.collectors.install", lambda *_: found)
    monkeypatch.setattr("sloserve.vllm_plugin.server.front_end.remove_pages", lambda: None)
    return found


class Client:
    """An engine client whose replies are token 1 with four likely tokens, as a beam search asks for them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        vllm_config = SimpleNamespace(model_config=SimpleNamespace(generation_config="vllm"))
        self.input_processor = SimpleNamespace(
            resolve_watermarking=lambda params: None, vllm_config=vllm_config, generation_config_fields={}
        )

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
        call = self.server.front_end.accept(prompt, sampling_params)
        self.server.calls.append(call)
        return self.server.front_end.watch(call, self._replies(), sampling_params.output_kind)  # type: ignore[no-any-return]

    async def _replies(self) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        self.server.clock.advance_to(self.server.clock.now_s() + 0.01)
        likely = {token: SimpleNamespace(logprob=-float(token)) for token in range(1, 5)}
        one = SimpleNamespace(index=0, token_ids=[1], finish_reason="length", logprobs=[likely])
        yield SimpleNamespace(outputs=[one], finished=True, metrics=None, prompt_token_ids=[7, 8])


def prompts(count: int) -> list[Any]:
    return [{"type": "token", "prompt_token_ids": [7, 8 + i]} for i in range(count)]


async def consume(replies: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in replies]


@pytest.mark.parametrize("count", [1, 3])
def test_a_beam_search(counted: Metrics, count: int) -> None:
    """Also of a list of prompts, of which each is searched for by a task of its own."""
    from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin
    from vllm.sampling_params import BeamSearchParams
    from vllm.utils.async_utils import merge_async_iterators

    server = Server(admission={"mode": "cap", "max_waiting": 1})
    serving = BeamSearchOnlineMixin()
    serving.engine_client = Client(server)  # type: ignore[assignment]
    tokenizer = SimpleNamespace(eos_token_id=99, decode=lambda *_, **__: "")
    serving.renderer = SimpleNamespace(get_tokenizer=lambda: tokenizer)  # type: ignore[assignment]
    params = BeamSearchParams(beam_width=2, max_tokens=6)

    async def handle() -> None:
        searches = [serving.beam_search(prompt, f"a-{i}", params) for i, prompt in enumerate(prompts(count))]
        async for _ in merge_async_iterators(*searches):
            pass

    server.handle(server.http(), handle())
    assert [served.outcome for served in counted.served] == [Outcome.COMPLETED] * count and counted.reasons == []
    assert [served.output_tokens for served in counted.served] == [1 + 2 * 5] * count


def test_turns_with_tools(counted: Metrics) -> None:
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    turns = iter([True, True, False])

    class Conversation:
        def append_output(self, output: Any) -> None:
            pass

        def need_builtin_tool_call(self) -> bool:
            return next(turns)

        async def call_tool(self) -> list[Any]:
            await asyncio.sleep(0)
            return []

        def append_tool_output(self, output: Any) -> None:
            pass

    server = Server(admission={"mode": "cap", "max_waiting": 1})
    serving = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=99), engine_client=Client(server), _log_inputs=lambda *_, **__: None
    )
    params = SamplingParams(max_tokens=5, output_kind=RequestOutputKind.DELTA)

    async def handle() -> None:
        generate = OpenAIServingResponses._generate_with_builtin_tools
        await consume(generate(serving, "r", prompts(1)[0], params, Conversation()))  # type: ignore[arg-type]

    server.handle(server.http(), handle())
    assert [(one.outcome, one.output_tokens) for one in counted.served] == [(Outcome.COMPLETED, 3)]
    assert [call.is_first for call in server.calls] == [True, False, False]


def test_a_recording_whose_language_is_found_first(counted: Metrics) -> None:
    from vllm.entrypoints.speech_to_text.base.serving import SpeechToTextBaseServing
    from vllm.sampling_params import SamplingParams
    from vllm.utils.async_utils import merge_async_iterators

    server = Server(admission={"mode": "cap", "max_waiting": 1})
    client = Client(server)
    model = SimpleNamespace(
        get_language_detection_prompt=lambda *_: prompts(1)[0],
        get_language_token_ids=lambda _: [1],
        parse_language_detection_output=lambda *_: "en",
    )
    serving = SimpleNamespace(model_cls=model, asr_config=None, tokenizer=None, engine_client=client)

    async def handle() -> None:
        assert await SpeechToTextBaseServing._detect_language(serving, None, "t") == "en"  # type: ignore[arg-type]
        params = SamplingParams(max_tokens=5)
        async for _ in merge_async_iterators(*[client.generate(one, params, "t") for one in prompts(3)]):
            pass

    server.handle(server.http(), handle())
    assert [(one.outcome, one.output_tokens) for one in counted.served] == [(Outcome.COMPLETED, 4)]


def test_a_list_of_prompts(counted: Metrics) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.async_utils import merge_async_iterators

    server = Server(admission={"mode": "cap", "max_waiting": 2})
    client = Client(server)

    async def handle() -> None:
        replies = [client.generate(prompt, SamplingParams(max_tokens=1), "c") for prompt in prompts(3)]
        async for _ in merge_async_iterators(*replies):
            pass

    server.handle(server.http(), handle())
    assert [one.outcome for one in counted.served] == [Outcome.COMPLETED] * 3
