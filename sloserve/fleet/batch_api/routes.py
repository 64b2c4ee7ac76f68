"""``/v1/files`` and ``/v1/batches`` as OpenAI's clients expect them.

A request for another tenant's object gets the same response as a request for a missing one.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sloserve.core.errors import InvalidRequest, SloServeError, StoreAway, StoreError, StoreFull, shown
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.files import Files
from sloserve.fleet.batch_api.json_objects import batch_json, file_json
from sloserve.fleet.batch_api.lines import ENDPOINTS, Limits, storable
from sloserve.fleet.batch_api.upload import RouteError, UploadForm, least_file_bytes
from sloserve.fleet.store.records import Batch, BatchState, File
from sloserve.fleet.store.store import Store
from sloserve.fleet.tenant_limits import Quota
from sloserve.wire import errors
from sloserve.wire.asgi import CLOSE, ClientLeft
from sloserve.wire.opening import BodyLimits, BoundedBody
from sloserve.wire.tenant_places import TenantPlaces

logger = logging.getLogger(__name__)
T = TypeVar("T")

_COPIED: Final = 1 << 20
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3_600, "d": 86_400}
_LONGEST_WINDOW_S: Final = 30 * 86_400
_MOST_KEPT: Final = 100_000
"""The most batches of one tenant, including batches that have ended."""
_MOST_METADATA: Final = 16
_UPLOADS, _UPLOADS_OF_TENANT = 16, 4
"""The most concurrent uploads, in all and of one tenant: each may take a file's bytes on the disk before it is kept."""
_JSON: Final = BodyLimits(65_536)
_ANY_BODY: Final = BodyLimits(math.inf, math.inf)
_CANCELLABLE: Final = (BatchState.UNCONFIRMED, BatchState.VALIDATING, BatchState.IN_PROGRESS)
_RETRY_AFTER_S: Final = 5
_STORE_S: Final = 4.0
"""Seconds in which the store must serve a route, or it counts as away.

A database that is stopped, not dead, never responds. The database's own limit frees the thread that waits for it.
"""


@dataclass(frozen=True)
class BatchApi:
    """The routes of one gateway.

    Args:
        store: Database in which everything but bytes of files is kept.
        folder: Storage for bytes of files.
        tenant_of: Returns the tenant that owns a request, or raises the error that its client gets.
        confirm_later: Called for a batch that is kept and known to its client, while the store is away.
        limits: Limits of one file.
        quota_of: Returns the quota of a tenant.
        executor: Runs the threads that wait for the store and the disk.
    """

    store: Store
    folder: Files
    tenant_of: Callable[[Request], str]
    confirm_later: Callable[[str], None]
    limits: Limits = field(default_factory=Limits)
    quota_of: Callable[[str], Quota] = lambda tenant: Quota()
    executor: Executor = field(default_factory=lambda: ThreadPoolExecutor(8, "sloserve-batches"))
    uploads: TenantPlaces = field(default_factory=lambda: TenantPlaces("uploads", _UPLOADS))

    def routes(self) -> list[Route]:
        """Return the routes for a Starlette or FastAPI app."""
        table: Mapping[tuple[str, str], Callable[[Request, str], Any]] = {
            ("POST", "/v1/files"): self._upload,
            ("GET", "/v1/files"): self._files,
            ("GET", "/v1/files/{id}"): self._file,
            ("DELETE", "/v1/files/{id}"): self._delete,
            ("GET", "/v1/files/{id}/content"): self._content,
            ("POST", "/v1/batches"): self._create,
            ("GET", "/v1/batches"): self._batches,
            ("GET", "/v1/batches/{id}"): self._batch,
            ("POST", "/v1/batches/{id}/cancel"): self._cancel,
        }
        return [Route(path, self._endpoint(call), methods=[method]) for (method, path), call in table.items()]

    def _endpoint(self, call: Callable[[Request, str], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = BoundedBody(request.scope, request.receive, _ANY_BODY)
            response = await answered(Request(request.scope, body))
            if response.status_code >= HTTPStatus.BAD_REQUEST and _has_body(request) and not body.is_whole:
                response.headers.append(*CLOSE)
            return response

        async def answered(request: Request) -> Response:
            try:
                response: Response = await call(request, self.tenant_of(request))
                return response
            except (ClientLeft, ClientDisconnect):
                return Response()  # it is not read
            except RouteError as answer:
                return _error(answer.status, str(answer), answer.param)
            except StoreError as error:
                # The store's address and its server's message belong in the log alone.
                logger.warning("%s %s: %s", request.method, request.url.path, error)
                what = "the disk is full" if isinstance(error, StoreFull) else "their store does not respond"
                text = f"files and batches cannot be served now: {what}; retry in {_RETRY_AFTER_S} s"
                return _error(errors.status(error), text, headers={"retry-after": str(_RETRY_AFTER_S)})
            except SloServeError as error:
                param = getattr(error, "param", None)
                return _error(errors.status(error), str(error), param, dict(errors.headers(error)))

        return endpoint

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, call, *args)

    async def _stored(self, call: Callable[..., T], *args: Any) -> T:
        """Return the result of ``call`` on the store.

        Raises: StoreAway where there is no result in time; ``call`` may still take effect.
        """
        try:
            async with asyncio.timeout(_STORE_S):
                return await self._in_thread(call, *args)
        except TimeoutError:
            raise StoreAway(f"it has not responded within {_STORE_S:g} s") from None

    # These methods serve files.

    async def _upload(self, request: Request, tenant: str) -> Response:
        with self.uploads.taken(tenant, _UPLOADS_OF_TENANT):
            return await self._uploaded(request, tenant)

    async def _uploaded(self, request: Request, tenant: str) -> Response:
        limit = self.limits.file_bytes
        await self._stored(self._check_bytes, tenant, least_file_bytes(request))
        async with UploadForm(request, limit) as form:
            file, purpose = form.get("file"), form.get("purpose")
            if not isinstance(file, UploadFile):
                raise InvalidRequest("file", file, "a file (multipart/form-data with a file name)")
            if purpose != "batch":
                raise InvalidRequest("purpose", purpose, "batch, the only purpose of files here")
            size = file.size or 0
            if size > limit:
                raise RouteError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"file: {size} bytes are more than {limit}", "file"
                )
            expires_after_s = _expires_after(form)
            await self._stored(self._check_bytes, tenant, size)
            id, name = ids.new_file(), file.filename or ""
            await self._in_thread(self._write, id, file)
        # The row is written last: if the store fails, bytes without a row are deleted like the rest of a crash.
        new = File(id, tenant, name[:255] if storable(name) else "", "batch", size, 0.0)
        return JSONResponse(file_json(await self._stored(self.store.batches.add_file, new, expires_after_s)))

    def _write(self, id: str, upload: UploadFile) -> None:
        with self.folder.writing(id) as file:
            while part := upload.file.read(_COPIED):
                file.write(part)

    def _check_bytes(self, tenant: str, size: int) -> None:
        used, most = self.store.bytes_of(tenant), self.quota_of(tenant).bytes
        if used + size > most:
            message = f"file: with its {size} bytes there would be {used + size}, and {most} may be kept; delete some"
            raise RouteError(HTTPStatus.TOO_MANY_REQUESTS, message, "file")

    async def _files(self, request: Request, tenant: str) -> Response:
        limit, after = _page(request, most=10_000, usual=1_000)
        found = await self._stored(self.store.batches.files, tenant, after, limit + 1)
        return JSONResponse(_listed([file_json(file) for file in found], limit))

    async def _file(self, request: Request, tenant: str) -> Response:
        return JSONResponse(file_json(await self._known_file(request, tenant)))

    async def _content(self, request: Request, tenant: str) -> Response:
        known = await self._known_file(request, tenant)
        file = await self._in_thread(self.folder.open, known.id)
        if file is None:
            raise _missing("file", known.id)

        def parts() -> Iterator[bytes]:
            with file:
                while part := file.read(_COPIED):
                    yield part

        headers = {"content-length": str(known.bytes)}
        return StreamingResponse(parts(), media_type="application/octet-stream", headers=headers)

    async def _delete(self, request: Request, tenant: str) -> Response:
        known = await self._known_file(request, tenant)
        # The row goes first: a crash in between leaves bytes that the next start deletes, never a file without bytes.
        await self._stored(self.store.batches.delete_file, tenant, known.id)
        await self._in_thread(self.folder.delete, known.id)
        return JSONResponse({"id": known.id, "object": "file", "deleted": True})

    async def _known_file(self, request: Request, tenant: str) -> File:
        id = request.path_params["id"]
        found = await self._stored(self.store.batches.file, tenant, id) if storable(id) else None
        if found is None:
            raise _missing("file", id)
        return found

    # These methods serve batches.

    async def _create(self, request: Request, tenant: str) -> Response:
        values = await BoundedBody(request.scope, request.receive, _JSON).json_object()
        endpoint = values.get("endpoint")
        if endpoint not in ENDPOINTS:
            raise InvalidRequest("endpoint", endpoint, f"one of {', '.join(ENDPOINTS)}")
        window, window_s = _window(values.get("completion_window"))
        input_file = values.get("input_file_id")
        if (
            not isinstance(input_file, str)
            or not storable(input_file)
            or await self._stored(self.store.batches.file, tenant, input_file) is None
        ):
            raise InvalidRequest("input_file_id", input_file, "the id of a file that was uploaded")
        metadata = _metadata(values.get("metadata"))
        unfinished, kept = await self._stored(self.store.batches.count, tenant)
        if kept >= _MOST_KEPT:
            text = f"{kept} batches of yours are kept, each until 30 days after its deadline; wait until one is gone"
            raise RouteError(HTTPStatus.TOO_MANY_REQUESTS, text)
        if unfinished >= (most := self.quota_of(tenant).batches):
            message = (
                f"{unfinished} batches are unfinished, and the limit is {most}; wait for one of them, or cancel it"
            )
            raise RouteError(HTTPStatus.TOO_MANY_REQUESTS, message)
        used = await self._stored(self.store.bytes_of, tenant)
        if used >= (most := self.quota_of(tenant).bytes):
            message = f"your files and results take {used} bytes, and {most} may be kept; delete files of yours"
            raise RouteError(HTTPStatus.TOO_MANY_REQUESTS, message)
        new = Batch(
            id=ids.new_batch(),
            tenant=tenant,
            endpoint=str(endpoint),
            window=window,
            input_file=input_file,
            state=BatchState.UNCONFIRMED,
            stamps={},
            due_s=0.0,
            metadata=metadata,
        )
        # It is run only once this process knows that it is kept: a client that gets 503 creates it again, and the first
        # never runs, whatever became of it. From here on the response is 200: the second write can be repeated.
        added = await self._stored(self.store.batches.add, new, window_s)
        try:
            await self._stored(self.store.batches.move, added.id, BatchState.UNCONFIRMED, BatchState.VALIDATING)
        except StoreError:
            self.confirm_later(added.id)
        return JSONResponse(batch_json(added))

    def _cancelling(self, id: str) -> bool:
        """Return whether the batch could still be cancelled, and begin to cancel it if so."""
        return any(self.store.batches.move(id, before, BatchState.CANCELLING) for before in _CANCELLABLE)

    async def _batches(self, request: Request, tenant: str) -> Response:
        limit, after = _page(request, most=100, usual=20)
        found = await self._stored(self.store.batches.list, tenant, after, limit + 1)
        return JSONResponse(_listed([batch_json(batch) for batch in found], limit))

    async def _batch(self, request: Request, tenant: str) -> Response:
        return JSONResponse(batch_json(await self._known_batch(request, tenant)))

    async def _cancel(self, request: Request, tenant: str) -> Response:
        batch = await self._known_batch(request, tenant)
        if not await self._stored(self._cancelling, batch.id):
            batch = await self._known_batch(request, tenant)
            if batch.state not in (BatchState.CANCELLING, BatchState.CANCELLED):
                message = f"the batch {batch.id} is {batch.state.value}, and can no longer be cancelled"
                raise RouteError(HTTPStatus.CONFLICT, message)
        return JSONResponse(batch_json(await self._known_batch(request, tenant)))  # its lines are ended by a runner

    async def _known_batch(self, request: Request, tenant: str) -> Batch:
        id = request.path_params["id"]
        found = await self._stored(self.store.batches.get, tenant, id) if storable(id) else None
        if found is None:
            raise _missing("batch", id)
        return found


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _error(
    status: HTTPStatus, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse(errors.body(status, message, param), status.value, headers)


def _missing(what: str, id: str) -> RouteError:
    return RouteError(HTTPStatus.NOT_FOUND, f"there is no {what} {shown(id)}", "id")


def _listed(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    data = found[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > limit,
    }


def _page(request: Request, *, most: int, usual: int) -> tuple[int, str | None]:
    text = request.query_params.get("limit", str(usual))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise InvalidRequest("limit", text, f"a whole number of 1 to {most}")
    after = request.query_params.get("after")
    if after is not None and not storable(after):
        raise InvalidRequest("after", after, "an id of an earlier page")
    return int(text), after


def _window(text: object) -> tuple[str, float]:
    found = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if found is None or seconds > _LONGEST_WINDOW_S:
        allowed = "a number of minutes, hours or days of at most 30 days, such as 24h or 45m"
        raise InvalidRequest("completion_window", text, allowed)
    return found[0], float(seconds)


def _expires_after(form: FormData) -> float | None:
    """Return the seconds in OpenAI's form fields ``expires_after[anchor]`` and ``expires_after[seconds]``."""
    text = form.get("expires_after[seconds]")
    if text is None:
        return None
    count = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 3_600 <= count <= 2_592_000:
        raise InvalidRequest("expires_after[seconds]", text, "a whole number of 3600 to 2592000")
    if form.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidRequest("expires_after[anchor]", form.get("expires_after[anchor]"), "created_at")
    return float(count)


def _metadata(values: object) -> dict[str, str] | None:
    if values is None:
        return None
    fits = isinstance(values, dict) and len(values) <= _MOST_METADATA
    if not fits or not all(_is_note(k, v) for k, v in values.items()):  # type: ignore[attr-defined]
        allowed = f"an object of at most {_MOST_METADATA} strings, keys up to 64 characters and values up to 512"
        raise InvalidRequest("metadata", values, allowed)
    return dict(values)  # type: ignore[call-overload, no-any-return]


def _is_note(key: str, value: object) -> bool:
    return isinstance(value, str) and len(key) <= 64 and len(value) <= 512 and storable(key + value)
