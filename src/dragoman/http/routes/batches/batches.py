"""Routes of batches."""

from __future__ import annotations

from dragoman.batches.service import make_batch_object
from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.paging import read_paging
from dragoman.protocols import batches
from dragoman.protocols.batches import DIALECT, BatchObject, BatchRequest
from dragoman.store.batches.rows import StoredBatch
from dragoman.store.rows import Page


class BatchHandlers:
    """Handlers over the batch service."""

    def __init__(self, context: RouteContext) -> None:
        self._reader = context.reader
        self._batches = context.batches

    async def create(self, request: RequestContext) -> None:
        new = await self._reader.read_and_decode(request, DIALECT.decode)
        await self._send(request, await self._batches.create(request.owner, new))

    async def get(self, request: RequestContext) -> None:
        row = await self._batches.get(request.owner, request.params["id"])
        await self._send(request, row)

    async def cancel(self, request: RequestContext) -> None:
        row = await self._batches.cancel(request.owner, request.params["id"])
        await self._send(request, row)

    async def list(self, request: RequestContext) -> None:
        limit, newest_first = read_paging(request)
        page = Page(after=request.query.get("after"), limit=limit + 1, newest_first=newest_first)
        rows = await self._batches.list_page(request.owner, page)
        objects = [make_batch_object(row) for row in rows[:limit]]
        await request.send_response(200, batches.encode_batch_list(objects, len(rows) > limit))

    @staticmethod
    async def _send(request: RequestContext, row: StoredBatch) -> None:
        await request.send_response(200, batches.encode_batch(make_batch_object(row)))


def make_routes(context: RouteContext) -> list[Route]:
    handlers = BatchHandlers(context)
    group = RouteGroup("/v1/batches", DIALECT)
    return [
        group.make(
            "POST",
            "",
            handlers.create,
            "Create a batch of the requests in a file.",
            request_type=BatchRequest,
            response_type=BatchObject,
        ),
        group.make("GET", "", handlers.list, "List batches."),
        group.make("GET", "/{id}", handlers.get, "Get a batch.", response_type=BatchObject),
        group.make(
            "POST",
            "/{id}/cancel",
            handlers.cancel,
            "Cancel a batch.",
            response_type=BatchObject,
            counts_as_concurrent=False,
        ),
    ]
