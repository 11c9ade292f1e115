"""Routes that create chat completions and manage stored ones."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.errors import DragomanError, NotFound, shorten_id
from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.paging import read_paging
from dragoman.pipeline.pipeline import count_prompt_tokens
from dragoman.protocols.chat import DIALECT, stored
from dragoman.protocols.chat.decode import ChatRequest
from dragoman.protocols.chat.encode import ChatCompletion
from dragoman.protocols.dialect import pass_strict
from dragoman.protocols.shared.openai import encode_input_tokens
from dragoman.responses.run import CompletionRun
from dragoman.store.rows import Page, StoredCompletion

if TYPE_CHECKING:
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.http")
FILTER_PAGE = 100  # completions that are read at once while filtering
_METADATA_FIELD = re.compile(r"metadata\[(.*)\]")


class ChatHandlers:
    """Handlers that create chat completions and manage the stored ones."""

    def __init__(self, context: RouteContext) -> None:
        self._reader = context.reader
        self._responder = context.responder
        self._responses = context.responses
        self._services = context.runtime.services
        self._open_store = context.runtime.state.get_store

    async def create(self, request: RequestContext) -> None:
        body = await self._reader.read(request)
        context = await self._reader.make_context(request)
        decoded = await self._reader.decode(request, body, DIALECT.decode, context)
        chat = replace(decoded, owner=request.owner) if request.owner else decoded

        async def prepare() -> CompletionRun:
            store = await self._open_store() if chat.store else None
            run = await CompletionRun.prepare(DIALECT, context, chat, self._services)
            if store is not None:
                run.save = lambda answer: self._store(request, body, answer, store)
            return run

        await self._responder.respond(request, prepare)

    async def count_input_tokens(self, request: RequestContext) -> None:
        """Count the tokens of a request's prompt, as llama-server does."""
        decoded = await self._reader.read_and_decode(request, DIALECT.decode)
        request.warnings += decoded.warnings
        with self._responder.track(request):
            owned = replace(decoded, owner=request.owner)
            count = await count_prompt_tokens(owned, self._services)
        await request.send_response(200, encode_input_tokens(count))

    @staticmethod
    async def _store(request: RequestContext, body: bytes, answer: bytes, store: Store) -> None:
        """Store a completion. If that fails, the client gets the answer and a warning."""
        messages, metadata = stored.decode_stored_fields(body)
        completion = stored.set_metadata(answer, metadata)
        row = StoredCompletion(
            id=stored.get_id(completion),
            owner=request.owner,
            created=int(time.time()),
            body=completion,
            messages=messages,
        )
        try:
            await store.write(lambda tx: tx.completions.add(row))
        except DragomanError as error:
            log.error("failed to store chat completion %s: %s", row.id, error.message)
            request.warnings.append("`store`: storing the answer failed.")

    async def _load(self, request: RequestContext) -> StoredCompletion:
        store, owner, completion = await self._open_store(), request.owner, request.params["id"]
        row = await store.read(lambda tx: tx.completions.get(owner, completion))
        if row is None:
            raise _make_not_found(request)
        return row

    async def get(self, request: RequestContext) -> None:
        await request.send_response(200, (await self._load(request)).body)

    async def update(self, request: RequestContext) -> None:
        decode = pass_strict(stored.decode_update)
        metadata = await self._reader.read_and_decode(request, decode)
        row = await self._load(request)
        updated = stored.set_metadata(row.body, metadata)
        store = await self._open_store()
        if not await store.write(lambda tx: tx.completions.update(row.owner, row.id, updated)):
            raise _make_not_found(request)
        await request.send_response(200, updated)

    async def delete(self, request: RequestContext) -> None:
        store, owner, completion = await self._open_store(), request.owner, request.params["id"]

        def delete() -> Awaitable[bool]:
            return store.delete(lambda tx: tx.delete_completion(owner, completion))

        if not await self._responses.delete_with_turns(owner, [completion], delete):
            raise _make_not_found(request)
        await request.send_response(200, stored.encode_deletion(completion))

    async def list_messages(self, request: RequestContext) -> None:
        limit, newest_first = read_paging(request, "asc")
        row = await self._load(request)
        after = request.query.get("after")
        page = stored.encode_messages(row.id, row.messages, after, limit, newest_first)
        await request.send_response(200, page)

    async def list(self, request: RequestContext) -> None:
        limit, newest_first = read_paging(request, "asc")
        model, after = request.query.get("model"), request.query.get("after")
        metadata = {
            match[1]: value
            for name, value in request.query.items()
            if (match := _METADATA_FIELD.match(name))
        }
        store = await self._open_store()
        # One more than fits on the page tells whether there are more.
        page_size = FILTER_PAGE if metadata or model is not None else limit + 1

        async def load_page(after: str | None) -> list[tuple[str, bytes]]:
            page = Page(after=after, limit=page_size, newest_first=newest_first)
            return await store.read(lambda tx: tx.completions.list_page(request.owner, page))

        matching: list[bytes] = []
        while len(matching) <= limit:
            page = await load_page(after)
            matching += [body for _, body in page if stored.matches(body, model, metadata)]
            if len(page) < page_size:
                break
            after = page[-1][0]
        body = stored.encode_list(matching[:limit], len(matching) > limit)
        await request.send_response(200, body)


def make_routes(context: RouteContext) -> list[Route]:
    handlers = ChatHandlers(context)
    group = RouteGroup("/v1/chat/completions", DIALECT)
    return [
        group.make(
            "POST",
            "",
            handlers.create,
            "Create a chat completion.",
            request_type=ChatRequest,
            response_type=ChatCompletion,
            streams=True,
        ),
        group.make(
            "POST",
            "/input_tokens",
            handlers.count_input_tokens,
            "Count the tokens of a prompt.",
            request_type=ChatRequest,
        ),
        group.make("GET", "", handlers.list, "List stored completions."),
        group.make("GET", "/{id}", handlers.get, "Get a stored completion."),
        group.make(
            "POST",
            "/{id}",
            handlers.update,
            "Update metadata.",
            request_type=stored.CompletionUpdate,
        ),
        group.make("DELETE", "/{id}", handlers.delete, "Delete a stored completion."),
        group.make(
            "GET", "/{id}/messages", handlers.list_messages, "List the messages of a completion."
        ),
    ]


def _make_not_found(request: RequestContext) -> NotFound:
    completion = shorten_id(request.params["id"])
    return NotFound(f"There is no stored chat completion `{completion}`.", param="completion_id")
