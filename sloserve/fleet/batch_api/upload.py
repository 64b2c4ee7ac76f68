"""Parses the form of an upload, and reads no further than its limit."""

from http import HTTPStatus
from typing import Final

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from sloserve.core import numbers
from sloserve.core.errors import BodyTooLarge
from sloserve.fleet.batch_api.folder import reporting_full
from sloserve.wire.opening import SILENT_S, BodyLimits, BoundedBody

_FORM_BYTES: Final = 65_536
"""Bytes that an upload's form takes beside the file."""
LEAST_BYTES_PER_S: Final = 8_192
"""Least average rate of an upload after its first minute: a slower one would keep its place from others."""


_TO_KEEP_S: Final = 600.0
"""Seconds within which a file that was received is written to its storage."""


class RouteError(Exception):
    """Ends a request with this response."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        self.status, self.param = status, param
        super().__init__(message)


def least_file_bytes(request: Request) -> int:
    """Return the least bytes of the file in an upload, from its declared length; 0 if it declares none."""
    declared = request.headers.get("content-length", "0")
    return max(int(declared[:20]) - _FORM_BYTES, 0) if numbers.is_whole(declared) else 0


def longest_upload_s(size: int) -> float:
    """Return the most seconds that an upload of these bytes can take until its file is kept."""
    return SILENT_S + (size + _FORM_BYTES) / LEAST_BYTES_PER_S + _TO_KEEP_S


class UploadForm:
    """The form of an upload, with its file on disk. A form that is too long, or stops, is not read to its end."""

    def __init__(self, request: Request, file_bytes: int) -> None:
        limits = BodyLimits(file_bytes + _FORM_BYTES, SILENT_S, LEAST_BYTES_PER_S)
        self._body = BoundedBody(request.scope, request.receive, limits)
        self._request = Request(request.scope, self._body)
        self._form: FormData | None = None

    async def __aenter__(self) -> FormData:
        try:
            self._body.check_length()
            with reporting_full("uploads in progress (TMPDIR)"):
                self._form = await self._request.form(max_files=1, max_fields=8)
        except BodyTooLarge as error:
            error.param = "file"
            raise
        except (MultiPartException, HTTPException) as error:
            text = error.message if isinstance(error, MultiPartException) else error.detail
            raise RouteError(HTTPStatus.BAD_REQUEST, f"request body: {text}") from None
        return self._form

    async def __aexit__(self, *_: object) -> None:
        if self._form is not None:
            await self._form.close()
