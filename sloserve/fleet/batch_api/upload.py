"""The form of an upload, read no further than its limit."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message

from sloserve.fleet.batch_api.folder import telling_full

_FORM_BYTES: Final = 65_536
"""Room that an upload's form takes beside the file."""
SILENT_S: Final = 60.0
"""A client that sends nothing of its body for so long is answered without it."""
LEAST_BYTES_PER_S: Final = 8_192
"""Least average rate of a body after the first :data:`SILENT_S`: one that trickles in keeps its place from others."""


class Answer(Exception):
    """A request ends with this answer."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        self.status, self.param = status, param
        super().__init__(message)


def least_file_bytes(request: Request) -> int:
    """Returns the least bytes of the file in an upload, by the length that it declares; 0 where it declares none."""
    declared = request.headers.get("content-length", "0")
    return max(int(declared[:20]) - _FORM_BYTES, 0) if declared.isdigit() else 0


def in_time(receive: Callable[[], Any]) -> Callable[[], Any]:
    """Ends the reading of a body that does not go on, or goes on too slowly. Raises: Answer."""
    clock, waited_s, read = asyncio.get_running_loop().time, 0.0, 0

    async def received() -> Message:
        nonlocal waited_s, read
        begun_s, left_s = clock(), SILENT_S + read / LEAST_BYTES_PER_S - waited_s
        try:
            async with asyncio.timeout(min(SILENT_S, left_s)):
                message: Message = await receive()
        except TimeoutError:
            slow = f"less than {LEAST_BYTES_PER_S} bytes came a second"
            text = f"nothing came for {SILENT_S:g} s" if left_s > SILENT_S else slow
            raise Answer(HTTPStatus.REQUEST_TIMEOUT, f"request body: {text}") from None
        waited_s, read = waited_s + clock() - begun_s, read + len(message.get("body", b""))
        return message

    return received


class UploadForm:
    """The form of an upload: its file lies on disk. What is longer than the limit, or stops, is not read to its end."""

    def __init__(self, request: Request, file_bytes: int) -> None:
        self._limit = file_bytes + _FORM_BYTES
        self._request = Request(request.scope, self._bounded(in_time(request.receive)))
        self._form: FormData | None = None
        self._read = 0

    def _bounded(self, receive: Callable[[], Any]) -> Callable[[], Any]:
        async def bounded() -> Message:
            message: Message = await receive()
            self._read += len(message.get("body", b""))
            if self._read > self._limit:
                text = f"request body: more than {self._limit} bytes; split the file into several batches"
                raise Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "file")
            return message

        return bounded

    async def __aenter__(self) -> FormData:
        declared = self._request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared[:20]) > self._limit:
            text = f"request body: {declared[:20]} bytes are more than {self._limit}; split the file"
            raise Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "file")
        try:
            with telling_full("files that are on their way, TMPDIR,"):
                self._form = await self._request.form(max_files=1, max_fields=8)
        except (MultiPartException, HTTPException) as error:
            text = error.message if isinstance(error, MultiPartException) else error.detail
            raise Answer(HTTPStatus.BAD_REQUEST, f"request body: {text}") from None
        return self._form

    async def __aexit__(self, *_: object) -> None:
        if self._form is not None:
            await self._form.close()
