"""Routes of the Responses API, over HTTP and over a WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from websockets.frames import CloseCode

from dragoman.errors import BadRequest, DragomanError, Unauthorized
from dragoman.http.asgi import WEBSOCKET, RequestContext
from dragoman.http.cancellation import watch_awaitable
from dragoman.http.respond import EngineErrors
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.paging import read_int, read_paging
from dragoman.http.websocket import WebSocketSession
from dragoman.pipeline.pipeline import await_delivery
from dragoman.protocols import responses
from dragoman.protocols.conversations import encode_item_list
from dragoman.protocols.dialect import pass_strict
from dragoman.protocols.responses import DIALECT
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.json_body import LARGE_BODY, collect_warnings
from dragoman.protocols.shared.openai import encode_input_tokens
from dragoman.responses.compaction import compact
from dragoman.responses.history import ConnectionHistory
from dragoman.responses.response_run import ResponseRun
from dragoman.responses.run import Sink
from dragoman.telemetry.record import get_record
from dragoman.types.worker_threads import run_in_decoder

encode_json = msgspec.json.Encoder().encode


class ResponseHandlers:
    """Handlers over the response service."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context
        self._reader = context.reader
        self._responder = context.responder
        self._service = context.responses

    async def create(self, request: RequestContext) -> None:
        decoded = await self._reader.read_and_decode(request, DIALECT.decode)
        await self._responder.respond(
            request, lambda: self._service.prepare(decoded, request.owner)
        )

    async def get(self, request: RequestContext) -> None:
        owner, response_id = request.owner, request.params["id"]
        if request.query.get("stream", "").lower() in ("true", "1"):
            after = max(-1, read_int(request, "starting_after", -1))
            await self._responder.respond(
                request, lambda: self._service.resume(owner, response_id, after)
            )
        else:
            await request.send_response(200, await self._service.get(owner, response_id))

    async def delete(self, request: RequestContext) -> None:
        response_id = request.params["id"]
        await self._service.delete(request.owner, response_id)
        deletion = {"id": response_id, "object": "response", "deleted": True}
        await request.send_response(200, encode_json(deletion))

    async def cancel(self, request: RequestContext) -> None:
        body = await self._service.cancel(request.owner, request.params["id"])
        await request.send_response(200, body)

    async def list_input_items(self, request: RequestContext) -> None:
        items = await self._service.get_input_items(request.owner, request.params["id"])
        limit, newest_first = read_paging(request)
        if newest_first:
            items.reverse()
        after = request.query.get("after")
        if after is not None:
            items = _skip_to(items, after)
        body = encode_item_list(items[:limit], more=len(items) > limit)
        await request.send_response(200, body)

    async def compact(self, request: RequestContext) -> None:
        decode = pass_strict(responses.decode_compact_request)
        decoded = await self._reader.read_and_decode(request, decode)

        async def work() -> bytes:
            loaded = await self._service.load_context(decoded, request.owner, {})
            body, warnings = await compact(*loaded, self._responder.start_timer().record)
            request.warnings += warnings
            return body

        await self._send_result(request, work)

    async def count_input_tokens(self, request: RequestContext) -> None:
        decode = pass_strict(responses.decode_count_request)
        decoded = await self._reader.read_and_decode(request, decode)

        async def work() -> bytes:
            count = await self._service.count_tokens(decoded, request.owner)
            return encode_input_tokens(count)

        await self._send_result(request, work)

    async def _send_result(
        self, request: RequestContext, work: Callable[[], Awaitable[bytes]]
    ) -> None:
        """Send the result of work that may take long; disconnecting cancels it."""
        with self._responder.track(request):
            body = await work()
        await request.send_response(200, body)

    async def serve_websocket(self, request: RequestContext) -> None:
        """Create a response for each message that arrives."""
        async with self._context.websockets.open(request) as session:
            await session.accept()
            local: ConnectionHistory = {}
            while True:
                text = await session.receive()
                with session.mark_busy(), self._context.observer.observe_child(WEBSOCKET) as record:
                    await WebSocketResponse(self._context, request, session).serve(text, local)
                    record.status = record.status or 200


class WebSocketResponse:
    """One response over a WebSocket. If it fails, the WebSocket stays open."""

    def __init__(
        self, context: RouteContext, request: RequestContext, session: WebSocketSession
    ) -> None:
        self._context = context
        self._request = request
        self._session = session
        self._stream_id: str | None = None
        self._previous: str | None = None  # the response that this one continues
        self._run: ResponseRun | None = None
        self._warnings: list[str] = []

    async def serve(self, text: bytes, local: ConnectionHistory) -> None:
        """Serve one message. `local` holds the items of responses that are not stored."""
        self._stream_id = responses.get_stream_id(text)
        try:
            with await self._request.authorize():
                run = await self._respond(text, local)
            local.clear()
            local[run.id] = run.items
        except DragomanError as error:
            local.pop(self._previous or "", None)  # one that cannot be continued is dropped
            await self._fail(error)
            if isinstance(error, Unauthorized):  # the key was removed, or has expired
                await self._session.close(CloseCode.POLICY_VIOLATION, error.message)
        finally:
            if self._run is not None:
                self._run.close()

    async def _respond(self, text: bytes, local: ConnectionHistory) -> ResponseRun:
        strict = self._context.runtime.settings.strict_params
        with collect_warnings(self._warnings), get_record().measure("decode"):
            if len(text) <= LARGE_BODY:
                decoded = responses.decode_websocket_request(text, strict)
            else:
                decoded = await run_in_decoder(responses.decode_websocket_request, text, strict)
        self._previous = decoded.fields.previous_response_id
        with self._context.responder.track(self._request, self._watch_closed):
            run = await self._context.responses.prepare(decoded, self._request.owner, local)
            assert isinstance(run, ResponseRun)  # noqa: S101  # `background` is rejected here
            self._run = run
            await self._stream(run)
        return run

    def _watch_closed(self, on_disconnect: Callable[[], None]) -> Callable[[], object]:
        return watch_awaitable(self._session.wait_closed(), on_disconnect)

    async def _stream(self, run: ResponseRun) -> None:
        if warnings := [*self._warnings, *run.warnings]:
            get_record().warnings = tuple(dict.fromkeys(warnings))
            warning = responses.encode_websocket_warning(warnings, self._stream_id)
            await self._session.send(warning)
        await await_delivery(self._push(run.start()))
        with EngineErrors("response", run.id):
            await run.stream(Sink(self._context.responder.start_timer().record, self._push))

    def _push(self, frames: list[bytes]) -> Awaitable[None] | None:
        stream_id = self._stream_id
        return self._session.push([responses.get_frame_json(frame, stream_id) for frame in frames])

    async def _fail(self, error: DragomanError) -> None:
        run = self._run
        if run is None or not run.encoder.is_over:
            self._context.metrics.count_error(error)
            get_record().set_error(error)
            self._request.report_error(error)
        if run is None:
            status = self._request.dialect.get_error_status(error)
            message = responses.encode_websocket_error(error, status, self._stream_id)
            await self._session.send(message)
        else:
            await await_delivery(self._push(await run.fail(error)))


def make_routes(context: RouteContext) -> list[Route]:
    handlers = ResponseHandlers(context)
    group = RouteGroup("/v1/responses", DIALECT)
    return [
        group.make(
            "POST",
            "",
            handlers.create,
            "Create a response.",
            request_type=responses.ResponseRequest,
            streams=True,
        ),
        group.make(WEBSOCKET, "", handlers.serve_websocket, "Create responses over a WebSocket."),
        group.make("POST", "/compact", handlers.compact, "Compact a conversation."),
        group.make("POST", "/input_tokens", handlers.count_input_tokens, "Count input tokens."),
        group.make("GET", "/{id}", handlers.get, "Get a response, or stream its events."),
        group.make("DELETE", "/{id}", handlers.delete, "Delete a response."),
        group.make(
            "POST",
            "/{id}/cancel",
            handlers.cancel,
            "Cancel a background response.",
            counts_as_concurrent=False,
        ),
        group.make(
            "GET", "/{id}/input_items", handlers.list_input_items, "List the input of a response."
        ),
    ]


def _skip_to(items: list[Item], after: str) -> list[Item]:
    """Return the items that follow the one with this id."""
    index = next((index for index, item in enumerate(items) if item["id"] == after), None)
    if index is None:
        raise BadRequest("There is no such item in this response.", param="after")
    return items[index + 1 :]
