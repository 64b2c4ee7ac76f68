"""Routes beside chat and completions: OpenAI's and Anthropic's own clients, forms, and stored responses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from sloserve.fleet.client_routes import AUDIO, FORWARDED, MESSAGES, POOLING, RESPONSES
from sloserve.fleet.gateway.salts import FleetSecret
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.wire.form import Form, FormFile
from sloserve.wire.keys import hash_of
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET
from tests.fleet.gateway.test_gateway import KEYS, Line, line, run
from tests.fleet.gateway.test_model_sets import TEXT
from tests.fleet.stand_in.engine import POISON, reply

pytestmark = pytest.mark.slow  # servers start and stop

COMPLETED = 'sloserve:gateway_requests_total{class="interactive",model="chat",outcome="completed"}'
STORING = FLEET.replace("{profile: h100-llama3-8b}", "{profile: h100-llama3-8b, environment: {VAR: '1'}}", 1).replace(
    "VAR", "VLLM_ENABLE_RESPONSES_API_STORE"
)
TWO = ("node-a/0", "node-a/1")
RECORDING = b"RIFF" + bytes(range(256)) * 40


async def used(to: Line, tenant: str = "local") -> tuple[int, int]:
    use = to.served.gateway.parts.rates.used()[tenant]
    return use.prompt_tokens, use.output_tokens


def test_openais_client_makes_responses_embeddings_and_transcripts(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            client = openai.AsyncOpenAI(api_key="x", base_url=f"{to.served.url}/v1", max_retries=0)
            async with client:
                slo = {"x-slo-ttft-ms": "5000", "x-slo-report": "1"}
                made = await client.responses.create(
                    model="chat", input="abc", max_output_tokens=6, extra_headers=slo, extra_body={"slo": {"tds": 7}}
                )
                assert made.output_text == reply("chat", "abc", 6)
                came = to.first.came[-1]
                assert (came["x-slo-ttft-ms"], came["x-slo-tds"], came["x-slo-report"]) == ("5000", "7", "1")
                assert await used(to) == (3, 6)
                stream = await client.responses.create(model="chat", input="abc", max_output_tokens=6, stream=True)
                events = [event async for event in stream]
                deltas = "".join(one.delta for one in events if one.type == "response.output_text.delta")
                assert deltas == made.output_text and events[-1].type == "response.completed"
                assert await used(to) == (6, 12)
                embedded = await client.embeddings.create(model="chat", input=["a", "bcd"], encoding_format="float")
                assert [one.embedding for one in embedded.data] == [[1.0], [3.0]]
                assert await used(to) == (10, 12)
                spoken = await client.audio.transcriptions.create(
                    model="chat", file=("a.wav", RECORDING), prompt="of cats", extra_headers=slo
                )
                assert spoken.text == reply("chat", str(len(RECORDING)), 8)
                assert to.first.came[-1]["x-slo-ttft-ms"] == "5000"
                assert await used(to) == (10 + 1025, 12 + 14), "estimated, since it states none"
                translated = await to.http.post(AUDIO[1], **form(model="chat", prompt="of cats"))
                assert translated.json()["text"] == spoken.text
                route, body = to.first.others["chat"].bodies[-1]
                assert route == AUDIO[1] and body["file"] == RECORDING and body["name"] == "a.wav"
                assert (body["model"], body["prompt"]) == ("chat", "of cats")
                assert await to.metric(COMPLETED) == 5
                assert to.served.gateway.parts.places.bytes == 0

    run(test)


def test_anthropics_client_sends_messages_with_its_own_key(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS)
        async with line(tmp_path, keys=keys) as to:
            client = anthropic.AsyncAnthropic(api_key="key-b", base_url=to.served.url, max_retries=0)
            said: list[Any] = [{"role": "user", "content": "abc"}]
            system: list[Any] = [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
                {"type": "text", "text": "Be brief. " * 300},
            ]
            async with client:
                made = await client.messages.create(model="chat", max_tokens=6, messages=said, system=system)
                block: Any = made.content[0]
                prompt = "".join(one["text"] for one in system) + "abc"
                assert block.text == reply("chat", prompt, 6)
                assert await used(to, "b") == (len(prompt), 6)
                first_prefix = to.first.came[-1]["x-sloserve-prefix"]
                system[0]["text"] = "x-anthropic-billing-header: cch=2"  # Claude Code's, which vLLM leaves out
                headers = {"x-slo-class": "batch", "x-claude-code-session-id": "s"}
                async with client.messages.stream(
                    model="chat", max_tokens=6, messages=said, system=system, extra_headers=headers
                ) as stream:
                    text = "".join([part async for part in stream.text_stream])
                prompt = "".join(one["text"] for one in system) + "abc"
                assert text == reply("chat", prompt, 6)
                assert await used(to, "b") == (2 * len(prompt), 12)
                came = to.first.came[-1]
                assert came["x-slo-class"] == "batch" and came["x-claude-code-session-id"] == "s"
                assert came["x-sloserve-prefix"] == first_prefix and "x-api-key" not in came
                assert int(first_prefix.rpartition("=")[2]) > 700, "the system's tokens count"
                system[1]["text"] = "Be long. " * 300
                await client.messages.create(model="chat", max_tokens=6, messages=said, system=system)
                assert to.first.came[-1]["x-sloserve-prefix"] != first_prefix
                counted = await client.messages.count_tokens(model="chat", messages=said)
                assert counted.input_tokens == 3 and "x-slo-class" not in to.first.came[-1]
                with pytest.raises(anthropic.NotFoundError) as unknown:
                    await client.messages.create(model="gpt", max_tokens=6, messages=said)
                error: Any = unknown.value.body
                assert error["type"] == "error" and error["error"]["type"] == "not_found_error"
                with pytest.raises(anthropic.AuthenticationError):
                    await client.with_options(api_key="no").messages.create(model="chat", max_tokens=6, messages=said)
                with pytest.raises(anthropic.BadRequestError, match="did you mean x-slo-ttft-ms"):
                    await client.messages.create(
                        model="chat", max_tokens=6, messages=said, extra_headers={"x-slo-tfft-ms": "5"}
                    )

    run(test)


@pytest.mark.parametrize("route", [one for one in POOLING if one != "/v1/embeddings"])
def test_reranking_and_scoring_keep_their_slo_in_the_gateway(tmp_path: Path, route: str) -> None:
    """An engine refuses an SLO on these routes, since it keeps none there."""

    async def test() -> None:
        async with line(tmp_path) as to:
            body = {"model": "chat", "query": "abc", "documents": ["a", "abc"]}
            if route.endswith("score"):
                body = {"model": "chat", "text_1": "abc", "text_2": "abcd"}
            stated = {"slo": {"class": "batch"}, "vllm_xargs": {"slo_e2e_ms": 60_000}}
            answer = await to.http.post(route, json={**body, **stated}, headers={"x-slo-report": "1"})
            assert answer.status_code == 200 and ("results" in answer.json() or "data" in answer.json())
            assert to.first.others["chat"].bodies == [(route, body)]
            assert not [name for name in to.first.came[-1] if name.startswith("x-slo-")]
            assert await to.metric(COMPLETED.replace("interactive", "batch")) == 1
            assert (await used(to))[1] == 0

    run(test)


@pytest.mark.parametrize(("route", "last"), [(RESPONSES, "error"), (MESSAGES, "error")])
def test_a_stream_that_breaks_off_ends_as_its_api_has_it(tmp_path: Path, route: str, last: str) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            body = {"model": "chat", "input": POISON, "stream": True}
            if route == MESSAGES:
                said = [{"role": "user", "content": POISON}]
                body = {"model": "chat", "messages": said, "max_tokens": 5, "stream": True}
            answer = await to.http.post(route, json=body)
            *begun, end, nothing = answer.text.split("\n\n")
            assert begun and not nothing and end.startswith(f"event: {last}\ndata: ")
            error = json.loads(end.partition("data: ")[2])
            assert error["type"] == "error" and "[DONE]" not in answer.text
            if route == RESPONSES:
                assert error["sequence_number"] == len(begun) and error["code"] == "server_error"
            else:
                assert error["error"]["type"] == "api_error"

    run(test)


def form(**fields: str) -> dict[str, Any]:
    body, content_type = Form({name: [value] for name, value in fields.items()}, [recording()]).encoded()
    return {"content": body, "headers": {"content-type": content_type}}


def recording() -> FormFile:
    return FormFile("file", "a.wav", "audio/wav", RECORDING)


def test_a_form_is_held_to_what_its_key_may(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS)
        async with line(tmp_path, keys=keys) as to:
            a = {"authorization": "Bearer key-a"}

            async def ask(given: dict[str, Any]) -> httpx.Response:
                headers = {**given["headers"], **a}
                return await to.http.post(AUDIO[0], content=given["content"], headers=headers)

            urgent = json.dumps({"slo_class": "interactive", "slo_ttft_ms": 1, "other": 5})
            assert (await ask(form(model="chat", vllm_xargs=urgent))).status_code == 200
            assert to.first.came[-1]["x-slo-class"] == "batch"
            xargs = json.loads(to.first.others["chat"].bodies[-1][1]["vllm_xargs"])
            assert xargs["slo_class"] == "batch" and xargs["other"] == 5 and "slo_ttft_ms" not in xargs
            assert (await ask(form(model="legal"))).status_code == 404
            assert (await ask(form(language="en"))).status_code == 404
            body, content_type = Form({"model": ["chat"], "model[]": ["x"]}, [recording()]).encoded()
            twice = {"content": body.replace(b"model[]", b"model"), "headers": {"content-type": content_type}}
            refused = await ask(twice)
            assert refused.status_code == 400 and "give the field once" in refused.text, "each would read another model"
            for given, why in (
                (form(model="chat", slo="{}"), "x-slo-* headers"),
                ({"content": b'{"model": "chat"}', "headers": {"content-type": "application/json"}}, "multipart"),
                ({"content": body[:-30], "headers": {"content-type": content_type}}, "a form with its end"),
                (form(model="chat", vllm_xargs="{"), "JSON"),
            ):
                refused = await ask(given)
                assert refused.status_code == 400 and why in refused.text, refused.text
            assert len(to.first.came) == 1

    run(test)


def test_a_recording_counts_with_its_copies(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, limits=GatewaySettings(max_body_mib=1)) as to:
            for size, status in ((300_000, 200), (400_000, 429)):
                body, content_type = Form({"model": ["chat"]}, [FormFile("file", "a", "", bytes(size))]).encoded()
                answer = await to.http.post(AUDIO[0], content=body, headers={"content-type": content_type})
                assert answer.status_code == status and ("1048576 bytes" in answer.text) == (status == 429)
                assert to.served.gateway.parts.places.bytes == 0

    run(test)


def test_a_set_of_models_gets_the_form_with_the_chosen_one(tmp_path: Path) -> None:
    async def test() -> None:
        text = TEXT.replace("chat: {", "chat: {supports: [audio], ", 1)
        async with line(tmp_path, text=text) as to:
            given = form(model="auto", language="en")
            answer = await to.http.post(AUDIO[0], **given)
            assert answer.status_code == 200 and answer.headers["x-sloserve-model"].startswith("chat;")
            _, body = to.first.others["chat"].bodies[-1]
            assert (body["model"], body["language"], body["file"]) == ("chat", "en", RECORDING)

    run(test)


def test_a_response_is_continued_where_it_is_stored(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS + f"  c: {{keys: ['{hash_of('key-c')}']}}\n")
        async with line(tmp_path, *TWO, keys=keys, text=STORING) as to:
            for instance in to.door.instances.values():
                instance.others["chat"].stores = True
            client = openai.AsyncOpenAI(api_key="key-b", base_url=f"{to.served.url}/v1", max_retries=0)
            async with client:
                ask = client.responses.create
                first = await ask(model="chat", input="a", max_output_tokens=4, extra_body={"request_id": "resp_x"})
                assert first.id != "resp_x", "with it a client could overwrite another's response"
                home, other = (sorted(to.door.instances.values(), key=lambda one: -len(one.came))[i] for i in (0, 1))
                previous, said = first.id, "a" + first.output_text
                for text in ("b", "c"):
                    made = await ask(model="chat", input=text, previous_response_id=previous, max_output_tokens=4)
                    assert made.output_text == reply("chat", said + text, 4)
                    previous, said = made.id, said + text + made.output_text
                assert len(home.came) == 3 and not other.came
                home.room = 0
                await until(lambda: to.served.gateway.parts.instances.by_name[home.name].room == 0)
                waits = ask(model="chat", input="d", previous_response_id=previous, max_output_tokens=4)
                task = asyncio.ensure_future(waits)
                await until(lambda: bool(to.served.gateway.parts.places.requests))
                home.room = 10
                assert (await task).output_text == reply("chat", said + "d", 4) and not other.came
                for key, id in (("key-c", previous), ("key-b", "resp_x"), ("key-b", previous[:-1] + "x")):
                    with pytest.raises(openai.BadRequestError, match="send the conversation along in input"):
                        await client.with_options(api_key=key).responses.create(
                            model="chat", input="x", previous_response_id=id
                        )
                with pytest.raises(openai.BadRequestError, match="this model stores no responses"):
                    await ask(model="legal", input="x", previous_response_id=previous)
                with pytest.raises(openai.BadRequestError, match="/v1/batches"):
                    await ask(model="chat", input="x", background=True)
                with pytest.raises(openai.NotFoundError, match="gives no response out again"):
                    await client.responses.retrieve(previous)
                del to.door.instances[home.name]
                to.served.gateway.parts.instances.by_name.pop(home.name)
                with pytest.raises(openai.BadRequestError, match="that this fleet still has"):
                    await ask(model="chat", input="x", previous_response_id=previous)

    run(test)


def test_ids_of_responses_are_of_one_fleet_tenant_and_instance() -> None:
    fleet, again, other = FleetSecret("a" * 32), FleetSecret("a" * 32), FleetSecret("b" * 32)
    id = fleet.response_id("t", "node-a/0")
    assert id != fleet.response_id("t", "node-a/0")
    assert again.instance_of(id, "t", ["node-a/1", "node-a/0"]) == "node-a/0"
    for secret, tenant, instances in ((fleet, "u", TWO), (other, "t", TWO), (fleet, "t", ("node-a/1",))):
        assert secret.instance_of(id, tenant, instances) is None
    for odd in ("", "resp_", id[5:], id + "0", "resp_\ud800"):
        assert fleet.instance_of(odd, "t", TWO) is None
    assert len({fleet.salt("t", None), fleet.salt("u", None), fleet.salt("t", "u"), fleet.salt("tu", None)}) == 4


def test_every_route_is_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            for route in FORWARDED:
                assert (await to.http.get(route)).status_code == 405
                unknown = await to.http.post(route, **(form(model="x") if route in AUDIO else {"json": {"model": "x"}}))
                assert unknown.status_code == 404 and "available: chat, legal" in unknown.text

    run(test)
