"""The endpoint under test: its connections, its model, and what it understands; mistakes show here, before the run."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from sloserve.client.exchange import Exchange, exchange
from sloserve.client.http_clients import async_http_client, proxy_remark
from sloserve.client.payload import PayloadSettings, payload
from sloserve.client.prompts import Prompts, calibrated, sample_text
from sloserve.client.responses import IDENTITY, UnreadableResponse, async_body, json_value, printable
from sloserve.client.workload_replay import ReplaySettings
from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest

CONNECT_TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 30.0
"""Longest time for a whole page, however slowly its bytes come."""
MOST_VERSION_CHARS = 80
KEEP_ALIVE_S = 3.0
"""Idle connections are closed before the server does it (uvicorn: 5 s), which would fail the request then sent."""
CALIBRATION_WORDS = (16, 128)
TRIAL_TIMEOUT_S = 120.0
"""Longest time for the trial request: a server may compile for its first request."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that responded.

    Args:
        context_tokens: Longest prompt and output together; ``None`` if the server does not state it.
        version: The server's version; ``None`` if it does not state it.
    """

    url: str
    client: httpx.AsyncClient
    model: str
    context_tokens: int | None
    version: str | None


@asynccontextmanager
async def open_endpoint(
    url: str, *, model: str | None, api_key: str | None, settings: ReplaySettings
) -> AsyncIterator[Endpoint]:
    """Connect to the server at ``url`` and ask what it serves.

    Args:
        url: Address of the server, with or without ``/v1``.
        model: Name of the model to use; ``None`` for the server's first.
        api_key: Key to send as a bearer token; ``None`` for none.
        settings: Limits of the connections.

    Raises: ConfigError for a server that is not reached, refuses the key or does not have the model.
    """
    base = url.rstrip("/").removesuffix("/v1")
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=settings.max_concurrency, keepalive_expiry=KEEP_ALIVE_S
    )
    # Responses are bounded as a whole: a pause between two tokens is a finding, not an error.
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    async with async_http_client(base, key=api_key, limits=limits, timeout=timeout) as client:
        served, why_none = await _served(client, base)
        if model is None:
            if not served:
                raise ConfigError(f"{base} names no model at /v1/models{why_none}; give --model")
            model = next(iter(served))
        elif served and model not in served:
            raise ConfigError(
                f"--model: {base} does not serve {model!r}; it serves {', '.join(map(printable, served))}"
            )
        yield Endpoint(base, client, model, served.get(model), await _version(client))


async def _served(client: httpx.AsyncClient, base: str) -> tuple[dict[str, int | None], str]:
    """Return the models that ``/v1/models`` lists, and why its response cannot be read, in brackets; else no text.

    Each model has the length of its context, in tokens, where it is stated. There are none where the server has no such
    page, or one of another form.
    """
    try:
        status, found = await _get(client, "/v1/models")
    except UnreadableResponse as error:
        return {}, f" ({error})"
    except httpx.HTTPError as error:
        why = printable(f"{type(error).__name__}: {error}")
        raise ConfigError(f"cannot reach {base}{proxy_remark(client)} ({why}); is the server up?") from None
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ConfigError(f"{base} refuses the key ({status}); give --api-key or set OPENAI_API_KEY")
    listed = found.get("data") if isinstance(found, dict) else None
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    names = {name: entry for entry in entries if isinstance(name := entry.get("id"), str) and name.isprintable()}
    return {name: _length(entry) for name, entry in names.items()}, ""


def _length(entry: dict[str, Any]) -> int | None:
    length = entry.get("max_model_len")
    return length if type(length) is int and length > 0 else None


async def _version(client: httpx.AsyncClient) -> str | None:
    """Return what vLLM's ``/version`` says; ``None`` for other servers."""
    try:
        _, found = await _get(client, "/version")
    except (httpx.HTTPError, UnreadableResponse):
        return None
    version = found.get("version") if isinstance(found, dict) else None
    return printable(version, MOST_VERSION_CHARS) if isinstance(version, str) else None


async def _get(client: httpx.AsyncClient, path: str) -> tuple[int, Any]:
    """Return the status of a page and its JSON value, ``None`` for a page that is not served.

    Raises: httpx.HTTPError where no response comes; UnreadableResponse for a page that is compressed, too long or not
    JSON.
    """
    try:
        async with (
            asyncio.timeout(PAGE_TIMEOUT_S),
            client.stream("GET", path, timeout=CONNECT_TIMEOUT_S, headers=IDENTITY) as response,
        ):
            return response.status_code, json_value(await async_body(response)) if response.is_success else None
    except TimeoutError:
        raise httpx.ReadTimeout(f"no complete response to GET {path} within {PAGE_TIMEOUT_S:g} s") from None


@dataclass(frozen=True, slots=True)
class Agreed:
    """Settings on which client and server agreed before the run."""

    payload: PayloadSettings
    prompts: Prompts
    returns_token_ids: bool = False
    """Whether the server states the ids of an output's tokens where it is asked for them."""


async def agree(
    endpoint: Endpoint, settings: PayloadSettings, prompts: Prompts | None, like: WorkloadRequest, clock: Clock
) -> Agreed:
    """Try a short request, and again without further headers and fields of vLLM's if the server refuses them.

    Args:
        endpoint: The server to try.
        settings: How requests are sent.
        prompts: How prompts are made; ``None`` for words, with a length in tokens that is measured here.
        like: a request of the workload, for its SLO.
        clock: Measures the trial.

    Raises: ConfigError if the server does not respond as it should.
    """
    trial = replace(like, request_id="trial", arrival_s=0.0, prompt_tokens=8, output_tokens=2, prefix_ids=())
    prompt = sample_text(2) if prompts is None else prompts.make(trial, 0)
    try:
        found = await _try(endpoint, trial, prompt, settings, clock)
    except ConfigError as error:
        refused = error
        for plain in _plainer(settings):
            try:
                found = await _try(endpoint, trial, prompt, plain, clock)
            except ConfigError as error:
                refused = error  # of the plainest request, which has nothing that a server may refuse
            else:
                settings = plain
                break
        else:
            raise refused
    if prompts is not None:
        return Agreed(settings, prompts, settings.return_token_ids and bool(found.output_ids))
    plain = replace(settings, headers={})
    tried = [await _try(endpoint, trial, sample_text(words), plain, clock) for words in CALIBRATION_WORDS]
    counted = [exchange.prompt_tokens for exchange in tried]
    return Agreed(settings, calibrated(list(zip(CALIBRATION_WORDS, counted, strict=True))))


def _plainer(settings: PayloadSettings) -> list[PayloadSettings]:
    """Return the settings without one or more of what a server may refuse, the fullest first."""
    plain: dict[str, Any] = {"headers": {}, "return_token_ids": False, "continuous_usage": False}
    stated = [name for name in plain if getattr(settings, name)]
    without = (names for size in range(1, len(stated) + 1) for names in itertools.combinations(stated, size))
    return [replace(settings, **{name: plain[name] for name in names}) for names in without]


async def _try(
    endpoint: Endpoint, trial: WorkloadRequest, prompt: list[int] | str, settings: PayloadSettings, clock: Clock
) -> Exchange:
    sent = payload(trial, prompt, settings)
    keep = settings.return_token_ids
    tried = await exchange(endpoint.client, sent, clock, clock.monotonic_s(), 0.0, TRIAL_TIMEOUT_S, keep_output=keep)
    if tried.outcome is not Outcome.COMPLETED:
        raise ConfigError(f"{endpoint.url}: a trial request was {tried.outcome}: {tried.error}")
    return tried
