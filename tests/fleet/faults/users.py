"""Users of a fleet: what they send, and what they were told of it."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fleet.faults.kernel import Process, State
from tests.fleet.faults.network import Broken, Network
from tests.fleet.stand_in.engine import POISON, reply

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_BOUNDARY: Final = "simulated"
_PATIENCE_S: Final = 120.0
_HANGS_WITHIN: Final = 50
"""Looks, each a fifth of a second, within which a gateway hangs that was about to."""


@dataclass(frozen=True)
class Line:
    """One line of a file."""

    custom_id: str
    model: str
    prompt: str
    tokens: int
    is_poison: bool

    def body(self, route: str) -> dict[str, Any]:
        text = f"{POISON} {self.prompt}" if self.is_poison else self.prompt
        asked = {"messages": [{"role": "user", "content": text}]} if route == CHAT else {"prompt": text}
        return {"model": self.model, **asked, "max_tokens": self.tokens}

    def expected(self, route: str) -> str:
        """Return what any engine says to it."""
        prompt = f"user: {self.prompt}\nassistant: " if route == CHAT else self.prompt
        return reply(self.model, prompt, self.tokens)


@dataclass
class SentFile:
    """A file that was uploaded. id: ``None`` where no one was told."""

    tenant: str
    route: str
    lines: Sequence[Line]
    id: str | None = None
    delete_asked: bool = False

    def content(self) -> bytes:
        rows = (
            {"custom_id": line.custom_id, "method": "POST", "url": self.route, "body": line.body(self.route)}
            for line in self.lines
        )
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@dataclass
class SentBatch:
    """A batch that was asked for. status: of the response, ``None`` where none came."""

    number: int
    tenant: str
    file: SentFile
    gateway: Process
    window: str = "24h"
    status: int | None = None
    id: str | None = None
    cancel_asked: bool = False
    cancel_accepted: bool = False
    cancelled_s: float = float("inf")
    asked_s: float = 0.0


@dataclass
class SentStream:
    """A stream that was asked for. outcome: ``None`` while it goes on."""

    line: Line
    gateway: Process
    sent_s: float
    status: int | None = None
    text: str = ""
    outcome: str | None = None


@dataclass
class Ledger:
    """All that users have asked for."""

    files: list[SentFile] = field(default_factory=list)
    batches: list[SentBatch] = field(default_factory=list)
    streams: list[SentStream] = field(default_factory=list)

    def of_number(self) -> dict[str, SentBatch]:
        return {str(batch.number): batch for batch in self.batches}


class Users:
    """The users of all tenants, in one process that nothing happens to.

    Args:
        gateways: Paths of the gateways.
        models: Models that they ask for.
        tenants: Their tenants, each with its key.
        poison: Part of their files that have a line which kills engines.
        most_tokens: Most tokens of a response.
        most_lines: Most lines of a file.
    """

    def __init__(
        self,
        process: Process,
        network: Network,
        gateways: Sequence[str],
        models: Sequence[str],
        tenants: Mapping[str, str],
        poison: float,
        most_tokens: int,
        most_lines: int,
    ) -> None:
        self.process, self.ledger = process, Ledger()
        self._network, self._gateways, self._models = network, gateways, models
        self._keys, self._poison, self._most_tokens = tenants, poison, most_tokens
        self._most_lines = most_lines
        self._rng = process.kernel.rng
        self._count = 0
        self.is_over = False
        self.is_idle = True

    def spawn(self, doing: Any) -> "asyncio.Task[Any]":
        return self.process.create_task(doing)

    # What they do.

    async def act(self, every_s: float, streams: float) -> None:
        """Do something again and again. streams: part of it that is streams."""
        while not self.is_over:
            await asyncio.sleep(float(self._rng.exponential(every_s)))
            if self.is_over:
                return
            if self._rng.random() < streams:
                self.spawn(self.stream(self._tenant()))
            else:
                kind = float(self._rng.random())
                self.spawn(
                    self.upload_and_create(self._tenant())
                    if kind < 0.55
                    else self.cancel_soon(self._tenant())
                    if kind < 0.65
                    else self.cancel()
                    if kind < 0.75
                    else self.delete()
                    if kind < 0.85
                    else self.cut_upload(self._tenant())
                    if kind < 0.92
                    else self.create_again()
                )

    async def upload_and_create(self, tenant: str, lines: int | None = None, window: str | None = None) -> None:
        file = self._file(tenant, int(self._rng.integers(1, self._most_lines + 1)) if lines is None else lines)
        await self.upload(file)
        if file.id is not None:
            await self.create(file, window or ("10m" if self._rng.random() < 0.1 else "24h"))
        elif window is None:
            await self.create_again()

    async def upload(self, file: SentFile) -> None:
        self.ledger.files.append(file)
        status, body, _ = await self._call("POST", "/v1/files", file.tenant, [_form(file.content())], _FORM)
        if status == 200:
            file.id = json.loads(body)["id"]

    async def cut_upload(self, tenant: str) -> None:
        """Begin an upload, and leave."""
        form = _form(self._file(tenant, 10).content())
        await self._call("POST", "/v1/files", tenant, [form[: len(form) // 2]], _FORM, breaks_off=True)

    async def create(self, file: SentFile, window: str = "24h", path: str | None = None) -> SentBatch | None:
        """Create a batch. path: Gateway that is asked; ``None`` for any."""
        self._count += 1
        path, gateway = self._gateway() if path is None else (path, self._network.server(path))
        if gateway is None:
            return None
        batch = SentBatch(self._count, file.tenant, file, gateway, window, asked_s=self.process.kernel.now_s)
        self.ledger.batches.append(batch)
        asked = {
            "endpoint": file.route,
            "input_file_id": file.id,
            "completion_window": window,
            "metadata": {"number": str(batch.number)},
        }
        batch.status, body, _ = await self._call(
            "POST", "/v1/batches", file.tenant, [json.dumps(asked).encode()], _JSON, path=path
        )
        if batch.status == 200:
            batch.id = json.loads(body)["id"]
        return batch

    async def create_again(self) -> None:
        """Create a further batch of a file."""
        known = [file for file in self.ledger.files if file.id is not None and not file.delete_asked]
        if known:
            await self.create(known[int(self._rng.integers(len(known)))])

    async def cancel(self) -> None:
        known = [batch for batch in self.ledger.batches if batch.id is not None][-6:]
        if known:
            await self.cancel_one(known[int(self._rng.integers(len(known)))])

    async def cancel_one(self, batch: SentBatch, path: str | None = None) -> None:
        batch.cancel_asked = True
        status, _, _ = await self._call("POST", f"/v1/batches/{batch.id}/cancel", batch.tenant, [b""], (), path=path)
        if status == 200:
            batch.cancel_accepted = True
            batch.cancelled_s = min(batch.cancelled_s, self.process.kernel.now_s)

    async def cancel_soon(self, tenant: str) -> None:
        """Create a batch, and cancel it while its lines are accepted, or soon after."""
        file = self._file(tenant, int(self._rng.integers(1, self._most_lines + 1)))
        await self.upload(file)
        if file.id is not None and (batch := await self.create(file)) is not None and batch.id is not None:
            await asyncio.sleep(float(self._rng.exponential(2.0)))
            await self.cancel_one(batch)

    async def create_here_and_cancel_there(self, here: str, there: str, created: Callable[[], None]) -> None:
        """Create a batch at one gateway, and cancel it at another soon after the first one hangs.

        Args:
            here: Gateway that hangs.
            there: Gateway that is asked to cancel.
            created: Called once there is the batch, to have the first gateway hang soon.
        """
        file = self._file(self._tenant(), int(self._rng.integers(1, self._most_lines + 1)))
        await self.upload(file)
        if file.id is None:
            return
        if (batch := await self.create(file, path=here)) is not None and batch.id is not None:
            created()
            for _ in range(_HANGS_WITHIN):
                if batch.gateway.state is State.STOPPED:
                    break
                await asyncio.sleep(0.2)
            await asyncio.sleep(float(self._rng.exponential(1.0)))
            await self.cancel_one(batch, there)

    async def create_and_cancel(self, tenant: str, pace: float) -> None:
        """Create a batch that takes a while, and cancel it once a part of it runs."""
        self.is_idle = False
        file = self._file(tenant, 80, may_be_poison=False, are_long=True)
        await self.upload(file)
        if file.id is not None:
            batch = await self.create(file)
            await asyncio.sleep(10.0 + 4.0 * pace)
            if batch is not None and batch.id is not None:
                await self.cancel_one(batch)
        self.is_idle = True

    async def delete(self) -> None:
        """Delete an input file."""
        known = [file for file in self.ledger.files if file.id is not None][-6:]
        if known:
            file = known[int(self._rng.integers(len(known)))]
            file.delete_asked = True
            await self._call("DELETE", f"/v1/files/{file.id}", file.tenant, [b""], ())

    async def stream(self, tenant: str, *, leaves: float = 0.05) -> SentStream | None:
        """Ask for a stream, and read it to its end, or leave. leaves: part of the streams that users leave."""
        path, gateway = self._gateway()
        if gateway is None:
            return None
        self._count += 1
        line = self._line(self._count, 0)
        sent = SentStream(line, gateway, self.process.kernel.now_s)
        self.ledger.streams.append(sent)
        body = json.dumps({**line.body(COMPLETIONS), "stream": True}).encode()
        exchange = self._network.request(self.process, path, "POST", COMPLETIONS, self._headers(tenant, _JSON), [body])
        most = int(self._rng.integers(1, 4)) if self._rng.random() < leaves else None
        try:
            sent.status, _ = await exchange.head
            whole = b""
            while part := await exchange.read():
                whole += part
                sent.text = _text(whole)
                if most is not None and len(sent.text) >= most:
                    self._network.close(exchange)
                    sent.outcome = "left"
                    return sent
            sent.outcome = _ending(sent.status, whole)
        except Broken:
            sent.outcome = "broken"
        return sent

    async def stream_again(self, tenant: str, tries: int) -> SentStream | None:
        """Ask for a stream, again if it breaks off: one that is parked for longer than gateways wait does."""
        sent = None
        for _ in range(tries):
            sent = await self.stream(tenant, leaves=0.0)
            if sent is not None and sent.outcome == "whole":
                break
        return sent

    # How they do it.

    def _tenant(self) -> str:
        names = list(self._keys)
        return names[int(self._rng.integers(len(names)))]

    def _file(self, tenant: str, lines: int, *, may_be_poison: bool = True, are_long: bool = False) -> SentFile:
        self._count += 1
        route = CHAT if self._rng.random() < 0.3 else COMPLETIONS
        is_poison = may_be_poison and self._rng.random() < self._poison
        poisons = int(self._rng.integers(lines)) if is_poison else -1
        made = [
            self._line(self._count, number, is_poison=number == poisons, is_long=are_long) for number in range(lines)
        ]
        return SentFile(tenant, route, made)

    def _line(self, file: int, number: int, *, is_poison: bool = False, is_long: bool = False) -> Line:
        model = self._models[int(self._rng.integers(len(self._models)))]
        return Line(
            f"{file}.{number}",
            model,
            f"say {file} {number}",
            self._most_tokens if is_long else int(self._rng.integers(1, self._most_tokens + 1)),
            is_poison,
        )

    def _gateway(self) -> tuple[str, Process | None]:
        path = self._gateways[int(self._rng.integers(len(self._gateways)))]
        return path, self._network.server(path)

    def _headers(self, tenant: str, headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self._keys[tenant]}"), *headers]

    async def _call(
        self,
        method: str,
        target: str,
        tenant: str,
        body: Sequence[bytes],
        headers: Sequence[tuple[str, str]],
        *,
        path: str | None = None,
        breaks_off: bool = False,
    ) -> tuple[int | None, bytes, bool]:
        """Return the status and the body of a response; no status if none came."""
        path = path or self._gateway()[0]
        if self._network.server(path) is None:
            return None, b"", False
        sent = [
            *self._headers(tenant, headers),
            ("content-length", str(sum(map(len, body)) * (2 if breaks_off else 1))),
        ]
        exchange = self._network.request(self.process, path, method, target, sent, body, breaks_off=breaks_off)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                status, _ = await exchange.head
                parts = []
                while part := await exchange.read():
                    parts.append(part)
                return status, b"".join(parts), True
        except (Broken, TimeoutError):
            self._network.close(exchange)
            return None, b"", False


_JSON: Final = (("content-type", "application/json"),)
_FORM: Final = (("content-type", f"multipart/form-data; boundary={_BOUNDARY}"),)


def _form(content: bytes) -> bytes:
    begin = f"--{_BOUNDARY}\r\n".encode()
    purpose = b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    file = b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n' + content + b"\r\n"
    return begin + purpose + begin + file + f"--{_BOUNDARY}--\r\n".encode()


def _events(whole: bytes) -> list[Any]:
    rows = (row[5:].strip() for row in whole.split(b"\n") if row.startswith(b"data:"))
    found = []
    for row in rows:
        try:
            found.append(None if row == b"[DONE]" else json.loads(row))
        except ValueError:
            continue  # it has not come whole
    return found


def _text(whole: bytes) -> str:
    return "".join(
        choice.get("text") or "" for event in _events(whole) if event for choice in event.get("choices") or ()
    )


def _ending(status: int | None, whole: bytes) -> str:
    if status != 200:
        return f"status {status}"
    events = _events(whole)
    if not events or events[-1] is not None:
        return "cut short"
    return "error event" if any(event and event.get("error") for event in events) else "whole"
