"""Tenants that use a fleet through OpenAI's client: streams, single requests, and batches of which all lines end."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import openai

from tests.fleet.live_faults.processes import MODELS
from tests.fleet.stand_in.engine import reply

LINES: Final = 12
"""Lines of a batch."""
THINK_S: Final = 2.0
KINDS: Final = (8 / 12, 3 / 12, 1 / 12)
"""Shares of streams, single requests and batches."""


@dataclass
class Seen:
    """What all tenants have seen.

    Args:
        ended: Number of requests by what has come of them.
        faults: Outputs that are wrong, and what must not happen, in words.
        batches: Batches that were accepted, with the client and the expected outputs by line.
    """

    ended: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    batches: list[tuple[openai.AsyncOpenAI, str, dict[str, str]]] = field(default_factory=list)


def expected(model: str, text: str, tokens: int) -> str:
    """Return what an engine of the model generates after one message of a user."""
    return reply(model, f"user: {text}\nassistant: ", tokens)


def client_of(url: str, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=4, timeout=120.0)


async def tenant(client: openai.AsyncOpenAI, seed: int, seen: Seen, stopping: asyncio.Event) -> None:
    """Use the fleet until it is enough."""
    rng, turn = np.random.default_rng(seed), 0
    while not stopping.is_set():
        turn += 1
        model, text, tokens = str(rng.choice(MODELS)), f"{seed} {turn}", int(rng.integers(5, 151))
        kind = (_stream, _whole, _batch)[rng.choice(3, p=KINDS)]
        await kind(client, model, text, tokens, seen)
        try:
            async with asyncio.timeout(rng.uniform(0.0, 2.0 * THINK_S)):
                await stopping.wait()
        except TimeoutError:
            pass


async def _stream(client: openai.AsyncOpenAI, model: str, text: str, tokens: int, seen: Seen) -> None:
    made, has_begun = "", False
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    try:
        async with await client.chat.completions.create(**asked, stream=True) as stream:
            async for chunk in stream:
                has_begun = True
                made += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    except openai.APIStatusError as error:
        seen.ended[f"stream refused with {error.status_code}"] += 1
        return
    except (openai.APIError, OSError) as error:
        seen.ended["stream broken" if has_begun else f"stream without response: {type(error).__name__}"] += 1
        return
    except Exception as error:  # an error that the client's HTTP library does not translate while it reads
        seen.ended["stream broken"] += 1
        seen.ended[f"stream broken by {type(error).__name__}"] += 1
        return
    _compare("stream", made, expected(model, text, tokens), seen)


async def _whole(client: openai.AsyncOpenAI, model: str, text: str, tokens: int, seen: Seen) -> None:
    asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    try:
        done = await client.chat.completions.create(**asked)
    except openai.APIStatusError as error:
        seen.ended[f"request refused with {error.status_code}"] += 1
        return
    except (openai.APIError, OSError) as error:
        seen.ended[f"request without response: {type(error).__name__}"] += 1
        return
    _compare("request", done.choices[0].message.content or "", expected(model, text, tokens), seen)


async def _batch(client: openai.AsyncOpenAI, model: str, text: str, tokens: int, seen: Seen) -> None:
    lines, outputs = [], {}
    for number in range(LINES):
        own = f"{text} {number}"
        body = {"model": model, "messages": [{"role": "user", "content": own}], "max_tokens": tokens}
        lines.append({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
        outputs[str(number)] = expected(model, own, tokens)
    content = "\n".join(map(json.dumps, lines)).encode()
    try:
        file = await client.files.create(file=("lines.jsonl", content), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    except (openai.APIError, OSError) as error:
        seen.ended[f"batch refused: {getattr(error, 'status_code', type(error).__name__)}"] += 1
        return
    seen.ended["batch accepted"] += 1
    seen.batches.append((client, batch.id, outputs))


def _compare(what: str, made: str, right: str, seen: Seen) -> None:
    if made == right:
        seen.ended[f"{what} right"] += 1
    else:
        seen.faults.append(f"a {what} has the output {made[:60]!r}..., {len(made)} characters of {len(right)}")


async def check_batches(seen: Seen, limit_s: float) -> None:
    """Wait until all batches have ended, and compare each line with what it should be."""
    loop = asyncio.get_running_loop()
    last_s = loop.time() + limit_s
    for client, id, outputs in seen.batches:
        batch = await _polled(client, id)
        while batch is None or batch.status not in ("completed", "failed", "expired", "cancelled"):
            if loop.time() > last_s:
                state = None if batch is None else (batch.status, batch.request_counts)
                seen.faults.append(f"batch {id} has not ended after {limit_s:g} s: {state}")
                break
            await asyncio.sleep(0.5)
            batch = await _polled(client, id)
        else:
            await _check_lines(client, batch, outputs, seen)


async def _polled(client: openai.AsyncOpenAI, id: str) -> Any:
    try:
        return await client.batches.retrieve(id)
    except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError):
        return None


async def _check_lines(client: openai.AsyncOpenAI, batch: Any, outputs: dict[str, str], seen: Seen) -> None:
    if batch.status != "completed" or batch.request_counts.completed != LINES or batch.output_file_id is None:
        seen.faults.append(f"batch {batch.id}: {batch.status}, {batch.request_counts}")
        return
    text = (await client.files.content(batch.output_file_id)).text
    rows = [json.loads(line) for line in text.splitlines()]
    found = Counter(row["custom_id"] for row in rows)
    if found != Counter(outputs.keys()):
        seen.faults.append(f"batch {batch.id}: lines have other than one result: {found}")
    for row in rows:
        made = row["response"]["body"]["choices"][0]["message"]["content"]
        _compare("line", made, outputs[row["custom_id"]], seen)
