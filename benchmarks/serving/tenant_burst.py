"""Measures what tenants get of a real engine, builtin:tiny on the CPU, while one of them sends ten times as much.

Three tenants send streams in an open loop to a server with few seats, in three spans of equal length. In the second
span one of them sends ten times as much. The load is that of all three outside of the burst, in multiples of what
vLLM's own server completes of the same requests when they come all at once. The servers take turns with the same
requests at the same times: vLLM's own, and ours with and without ``tenant_shares``, where each tenant has a key. Each
client measures its first and last token.

Prints, and writes to results/tenant_burst.json.gz, a row for each server and seed: the share in time and the mean
seconds to the first and to the last token of each tenant, counted from when the request was due, tokens/s, and how many
outputs differ from those of vLLM's own server.

Usage: python -m benchmarks.serving.tenant_burst [--policies auto,edf] [--load 1.2] [--span-s 10] [--seeds 3]
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, write_result
from benchmarks.servers import ONE_THREAD, free_port, plain_vllm_command, served, sloserve_command
from sloserve.core.clock import SystemClock
from sloserve.vllm_plugin.server.tiny_model import NAME

CLOCK = SystemClock()
TENANTS = ("bursts", "second", "third")
TIMES = 10.0
"""Factor by which the first tenant's requests grow in the second span."""
OUT = RESULTS / "tenant_burst.json.gz"
STOCK = "stock"
RUSH = 150
"""Requests that come at once to measure what the server completes."""
WORDS = "the step of a queue is short and every reader waits for one more token today".split()


@dataclass(frozen=True, slots=True)
class Call:
    """A request of one tenant; ``at_s`` is counted from the start of the run."""

    at_s: float
    tenant: str
    prompt: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What a client measured of its request: seconds until the first and the last token, and a digest of the text."""

    first_s: float
    last_s: float
    digest: str


def calls_of(rate: float, load: float, span_s: float, seed: int) -> list[Call]:
    """Return the requests of all tenants in order of arrival; ``rate`` is what the server completes, per second."""
    rng = np.random.default_rng(seed)
    found = []
    for span in range(3):
        for tenant in TENANTS:
            mean = rate * load / len(TENANTS) * span_s * (TIMES if (span, tenant) == (1, TENANTS[0]) else 1.0)
            found += [_drawn(rng, span_s * (span + x), tenant) for x in rng.random(rng.poisson(mean))]
    return sorted(found, key=lambda call: call.at_s)


def _drawn(rng: np.random.Generator, at_s: float, tenant: str) -> Call:
    prompt = " ".join(rng.choice(WORDS, rng.integers(10, 60)))
    return Call(float(at_s), tenant, prompt, int(np.clip(rng.geometric(1.0 / 40.0), 4, 150)))


async def send(client: httpx.AsyncClient, call: Call, due_s: float, headers: dict[str, str]) -> Answered:
    """Send one request and read its stream to the end. due_s: When it was to be sent, which times count from."""
    first_s, digest = 0.0, hashlib.sha256()
    body = {"model": NAME, "prompt": call.prompt, "max_tokens": call.output_tokens, "ignore_eos": True}
    async with client.stream(
        "POST", "/v1/completions", json=body | {"stream": True, "temperature": 0}, headers=headers
    ) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            first_s = first_s or CLOCK.monotonic_s() - due_s
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                digest.update(choice["text"].encode())
    return Answered(first_s, CLOCK.monotonic_s() - due_s, digest.hexdigest())


async def offer(url: str, calls: Sequence[Call], headers: dict[str, dict[str, str]]) -> list[Answered]:
    """Send every request when it is due; ``headers`` are those of each tenant."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits, trust_env=False) as client:
        began_s, tasks = CLOCK.monotonic_s(), []
        for call in calls:
            await asyncio.sleep(max(began_s + call.at_s - CLOCK.monotonic_s(), 0.0))
            tasks.append(asyncio.create_task(send(client, call, began_s + call.at_s, headers[call.tenant])))
        return await asyncio.gather(*tasks)


def keys_file(folder: Path) -> tuple[Path, dict[str, str]]:
    """Write the file of keys; return it with each tenant's key."""
    keys = {tenant: f"sk-{tenant}-of-the-benchmark" for tenant in TENANTS}
    listed = {name: {"keys": ["sha256:" + hashlib.sha256(key.encode()).hexdigest()]} for name, key in keys.items()}
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump({"tenants": listed}), encoding="utf-8")
    return path, keys


def settings_file(folder: Path, *, shares: bool) -> Path:
    """Write the settings of a server. shares: Whether the tenants share the engine, with equal weights."""
    path = folder / "serve.yaml"
    section = {"tenant_shares": {"weights": dict.fromkeys(TENANTS, 1.0)} if shares else None}
    path.write_text(yaml.safe_dump(section), encoding="utf-8")
    return path


def serve_calls(
    policy: str, calls: Sequence[Call], targets_s: dict[str, float], seats: int, *, shares: bool = False
) -> list[Answered]:
    """Start one server and send it ``calls``. targets_s: What each request states, by the name of its header."""
    stated = {f"x-slo-{name}-ms": f"{1e3 * value:.0f}" for name, value in targets_s.items()}
    with TemporaryDirectory() as name:
        folder = Path(name)
        headers = dict.fromkeys(TENANTS, stated)
        if policy == STOCK:
            command = plain_vllm_command()
        else:
            path, keys = keys_file(folder)
            settings = settings_file(folder, shares=shares)
            command = [*sloserve_command(policy), "--keys", str(path), "--slo-config", str(settings)]
            headers = {tenant: stated | {"Authorization": f"Bearer {key}"} for tenant, key in keys.items()}
        command += ["--max-num-seqs", str(seats)]
        with served(command, free_port(), folder / "log", **ONE_THREAD) as url:
            asyncio.run(offer(url, [Call(0.0, *_of(call)) for call in calls[:10]], headers))  # the first steps are slow
            return asyncio.run(offer(url, calls, headers))


def _of(call: Call) -> tuple[str, str, int]:
    return call.tenant, call.prompt, call.output_tokens


def rate_of(seats: int, seed: int) -> float:
    """Return the requests/s that vLLM's own server completes when they come all at once."""
    calls = [Call(0.0, *_of(call)) for call in calls_of(RUSH, 1.0, 1.0, seed)[:RUSH]]
    headers: dict[str, dict[str, str]] = dict.fromkeys(TENANTS, {})
    with TemporaryDirectory() as folder:
        command = [*plain_vllm_command(), "--max-num-seqs", str(seats)]
        with served(command, free_port(), Path(folder) / "log", **ONE_THREAD) as url:
            asyncio.run(offer(url, calls[:10], headers))  # the first steps are slow
            began_s = CLOCK.monotonic_s()
            asyncio.run(offer(url, calls, headers))
            return len(calls) / (CLOCK.monotonic_s() - began_s)


def row_of(
    calls: Sequence[Call], found: Sequence[Answered], stock: Sequence[Answered], targets_s: dict[str, float]
) -> dict[str, Any]:
    """Return the figures of one server."""
    row: dict[str, Any] = {"in_time": {}, "mean_ttft_s": {}, "mean_e2e_s": {}}
    for tenant in TENANTS:
        own = [one for call, one in zip(calls, found, strict=True) if call.tenant == tenant]
        good = [one.first_s <= targets_s["ttft"] and one.last_s <= targets_s["e2e"] for one in own]
        row["in_time"][tenant] = round(float(np.mean(good)), 4)
        row["mean_ttft_s"][tenant] = round(float(np.mean([one.first_s for one in own])), 3)
        row["mean_e2e_s"][tenant] = round(float(np.mean([one.last_s for one in own])), 3)
    ended_s = max(call.at_s + one.last_s for call, one in zip(calls, found, strict=True))
    return row | {
        "tokens_per_s": round(sum(call.output_tokens for call in calls) / ended_s, 1),
        "outputs": len(found),
        "outputs_unlike_stock": sum(one.digest != other.digest for one, other in zip(found, stock, strict=True)),
    }


def main() -> None:
    given = parser_for(__doc__, policies="auto", load=1.2, span_s=10.0, seeds=3, seats=8, out=OUT).parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        rate = rate_of(given.seats, seed)
        calls = calls_of(rate, given.load, given.span_s, seed)
        targets_s = {"ttft": 4.0 * given.seats / rate, "e2e": 12.0 * given.seats / rate}
        stock = serve_calls(STOCK, calls, targets_s, given.seats)
        answers = [(STOCK, False, stock)]
        for policy in given.policies.split(","):
            for shares in (False, True):
                answers.append((policy, shares, serve_calls(policy, calls, targets_s, given.seats, shares=shares)))
        for policy, shares, found in answers:
            row = row_of(calls, found, stock, targets_s)
            rows.append({"policy": policy, "shares": shares, "seed": seed, "rate": round(rate, 2)} | row)
            print(json.dumps(rows[-1]), flush=True)
    shown = [["policy", "shares", "seed", *TENANTS]]
    shown += [
        [row["policy"], str(row["shares"]), str(row["seed"]), *(f"{100 * row['in_time'][one]:.1f}" for one in TENANTS)]
        for row in rows
    ]
    print(aligned(shown))
    about = {"load": given.load, "span_s": given.span_s, "seats": given.seats, "times": TIMES}
    write_result(given.out, about | {"runs": rows})


if __name__ == "__main__":
    main()
