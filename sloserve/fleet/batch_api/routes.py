"""``/v1/files`` and ``/v1/batches`` as OpenAI's clients expect them.

A request for another tenant's object gets the same response as a request for a missing one.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sloserve.core.errors import InvalidRequest, SloServeError, StoreAway, StoreError, StoreFull, shown
from sloserve.fleet.batch_api import ids, parameters
from sloserve.fleet.batch_api.files import Files
from sloserve.fleet.batch_api.json_objects import batch_json, file_json
from sloserve.fleet.batch_api.lines import ENDPOINTS, Limits, storable
from sloserve.fleet.batch_api.upload import RouteError, UploadForm, least_file_bytes, longest_upload_s
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
_MOST_KEPT: Final = 100_000
"""The most batches of one tenant, including batches that have ended."""
_UPLOADS, _UPLOADS_OF_TENANT = 16, 4
"""The most concurrent uploads, in all and of one tenant: each may take a file's bytes on the disk before it is kept."""
_OF_UPLOAD: Final = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
_OF_BATCH: Final = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
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
        member: Name of this gateway among the members of the fleet; uploads of a member that is gone end.
    """

    store: Store
    folder: Files
    tenant_of: Callable[[Request], str]
    confirm_later: Callable[[str], None]
    limits: Limits = field(default_factory=Limits)
    quota_of: Callable[[str], Quota] = lambda tenant: Quota()
    executor: Executor = field(default_factory=lambda: ThreadPoolExecutor(8, "sloserve-batches"))
    member: str = ""
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
        id, least = ids.new_file(), least_file_bytes(request)
        try:
            reserved = File(id, tenant, self.member, "", least, 0.0)
            most, within_s = self.quota_of(tenant).bytes, longest_upload_s(least or self.limits.file_bytes)
            if not await self._stored(self.store.batches.reserve_file, reserved, most, within_s):
                raise await self._no_room(tenant, least)
            return JSONResponse(file_json(await self._received(request, tenant, id)))
        except BaseException:
            self.executor.submit(self._give_back, tenant, id)
            raise

    async def _received(self, request: Request, tenant: str, id: str) -> File:
        """Receive the bytes of a reserved file, and keep it."""
        limit = self.limits.file_bytes
        async with UploadForm(request, limit) as form:
            parameters.refuse_unknown(form, _OF_UPLOAD)
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
            expires_after_s = parameters.expires_after(form)
            if not await self._stored(self.store.batches.resize_file, id, size, self.quota_of(tenant).bytes):
                raise await self._no_room(tenant, size)
            name = file.filename or ""
            await self._in_thread(self._write, id, file)
        new = File(id, tenant, name[:255] if storable(name) else "", "batch", size, 0.0)
        kept = await self._stored(self.store.batches.keep_file, new, expires_after_s)
        if kept is None:
            raise StoreAway(
                f"the reservation of {id} is over: this gateway counts as gone, or the upload took too long"
            )
        return kept

    async def _no_room(self, tenant: str, size: int) -> RouteError:
        used, most = await self._stored(self.store.bytes_of, tenant), self.quota_of(tenant).bytes
        message = f"file: with its {size} bytes there would be {used + size}, and {most} may be kept; delete some"
        return RouteError(HTTPStatus.TOO_MANY_REQUESTS, message, "file")

    def _give_back(self, tenant: str, id: str) -> None:
        """Give back what a failed upload had reserved; if the store is away, it is given back when it expires."""
        with suppress(StoreError):
            self.store.batches.delete_file(tenant, id)
            self.folder.delete(id)

    def _write(self, id: str, upload: UploadFile) -> None:
        with self.folder.writing(id) as file:
            while part := upload.file.read(_COPIED):
                file.write(part)

    async def _files(self, request: Request, tenant: str) -> Response:
        page = parameters.page_of_files(request, most=10_000, usual=1_000)
        given = tenant, page.after, page.limit + 1, page.purpose, page.oldest_first
        found = await self._stored(self.store.batches.files, *given)
        return JSONResponse(_listed([file_json(file) for file in found], page.limit))

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
        parameters.refuse_unknown(values, _OF_BATCH)
        endpoint = values.get("endpoint")
        if endpoint not in ENDPOINTS:
            raise InvalidRequest("endpoint", endpoint, f"one of {', '.join(ENDPOINTS)}")
        window, window_s = parameters.window(values.get("completion_window"))
        input_file = values.get("input_file_id")
        if (
            not isinstance(input_file, str)
            or not storable(input_file)
            or await self._stored(self.store.batches.file, tenant, input_file) is None
        ):
            raise InvalidRequest("input_file_id", input_file, "the id of a file that was uploaded")
        metadata = parameters.metadata(values.get("metadata"))
        outputs_kept_s = parameters.output_expires_after(values.get("output_expires_after"))
        unfinished, kept = await self._stored(self.store.batches.count, tenant)
        if kept >= _MOST_KEPT:
            text = f"{kept} batches of yours are kept, each until 30 days after its deadline; wait until one is gone"
            raise RouteError(HTTPStatus.TOO_MANY_REQUESTS, text)
        if unfinished >= (most_batches := self.quota_of(tenant).batches):
            raise _too_many(unfinished, most_batches)
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
            outputs_kept_s=outputs_kept_s,
        )
        # It is run only once this process knows that it is kept: a client that gets 503 creates it again, and the first
        # never runs, whatever became of it. From here on the response is 200: the second write can be repeated.
        added = await self._stored(self.store.batches.add, new, window_s)
        try:
            state = await self._stored(self.store.batches.confirm, added, most_batches)
        except StoreError:
            with suppress(StoreAway):  # it is remembered, even if its file cannot be written in time
                await self._stored(self.confirm_later, added.id)
            return JSONResponse(batch_json(added))
        if state is BatchState.UNCONFIRMED:
            self.executor.submit(self._withdraw, added.id)
            raise _too_many(most_batches, most_batches)
        if state in (None, BatchState.CANCELLED):
            raise StoreAway(f"the batch {added.id} was cancelled before it was confirmed: this gateway was too slow")
        return JSONResponse(batch_json(added))

    def _withdraw(self, id: str) -> None:
        """Delete a batch beyond the quota; if the store is away, it is cancelled later, and never runs."""
        with suppress(StoreError):
            self.store.batches.withdraw(id)

    def _cancelling(self, id: str) -> bool:
        """Return whether the batch could still be cancelled, and begin to cancel it if so."""
        return any(self.store.batches.move(id, before, BatchState.CANCELLING) for before in _CANCELLABLE)

    async def _batches(self, request: Request, tenant: str) -> Response:
        page = parameters.page(request, most=100, usual=20)
        found = await self._stored(self.store.batches.list, tenant, page.after, page.limit + 1)
        return JSONResponse(_listed([batch_json(batch) for batch in found], page.limit))

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


def _too_many(unfinished: int, most: int) -> RouteError:
    message = f"{unfinished} batches are unfinished, and the limit is {most}; wait for one of them, or cancel it"
    return RouteError(HTTPStatus.TOO_MANY_REQUESTS, message)


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
