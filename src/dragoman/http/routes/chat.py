"""Chat completions, and the routes to those that a client wanted to be kept."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.errors import DragomanError, NotFound
from dragoman.http.asgi import RequestContext
from dragoman.http.paging import read_paging
from dragoman.http.respond import make_warning_headers
from dragoman.http.router import Route
from dragoman.protocols.chat import decode, encode, stored
from dragoman.protocols.shared.openai import new_id
from dragoman.responses.run import CompletionRun
from dragoman.store.rows import StoredCompletion

if TYPE_CHECKING:
    from dragoman.http.app import App
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.http")
_FILTER = re.compile(r"metadata\[(.*)\]")
_SOME = 100  # completions that are looked through at once


class Chats:
    """The handlers."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def _store(self) -> Store:
        return await self._app.state.get_store()

    async def complete(self, exchange: RequestContext) -> None:
        body = await self._app.body(exchange)
        said = await self._app.decoded(body, decode.decode_request)
        request = replace(said, owner=exchange.owner, response_id=new_id("chatcmpl"))

        async def prepare() -> CompletionRun:
            store = await self._store() if request.store else None
            answer = await CompletionRun.prepare(decode, request, self._app.services)
            if store is not None:
                answer.keep = lambda whole: self._keep(exchange, body, whole, store)
            return answer

        await self._app.responder.respond(exchange, prepare)

    @staticmethod
    async def _keep(exchange: RequestContext, body: bytes, whole: bytes, store: Store) -> None:
        """An answer is told even if it cannot be kept; a whole one says so."""
        messages, metadata = stored.decode_stored_fields(body)
        kept = stored.set_metadata(whole, metadata)
        row = StoredCompletion(
            id=stored.get_id(kept),
            owner=exchange.owner,
            created=int(time.time()),
            body=kept,
            messages=messages,
        )
        try:
            await store.write(lambda tx: tx.completions.add(row))
        except DragomanError as error:
            log.error("chat completion %s could not be kept: %s", row.id, error.message)
            exchange.headers += make_warning_headers(["`store`: the answer could not be kept."])

    async def _found(self, exchange: RequestContext) -> StoredCompletion:
        store, owner, completion = await self._store(), exchange.owner, exchange.params["id"]
        row = await store.read(lambda tx: tx.completions.get(owner, completion))
        if row is None:
            raise _nothing(exchange)
        return row

    async def get(self, exchange: RequestContext) -> None:
        await exchange.send_response(200, (await self._found(exchange)).body)

    async def change(self, exchange: RequestContext) -> None:
        body = await self._app.body(exchange)
        metadata = stored.decode_update(body, self._app.settings.strict_params)
        row = await self._found(exchange)
        changed = stored.set_metadata(row.body, metadata)
        store = await self._store()
        if not await store.write(lambda tx: tx.completions.update(row.owner, row.id, changed)):
            raise _nothing(exchange)
        await exchange.send_response(200, changed)

    async def delete(self, exchange: RequestContext) -> None:
        owner, name = exchange.owner, exchange.params["id"]
        store = await self._store()
        if not await self._app.desk.delete_with_turns(
            owner, [name], lambda: store.write(lambda tx: tx.delete_completion(owner, name))
        ):
            raise _nothing(exchange)
        await exchange.send_response(200, stored.encode_deletion(name))

    async def messages(self, exchange: RequestContext) -> None:
        limit, newest = read_paging(exchange, "asc")
        row = await self._found(exchange)
        after = exchange.query.get("after")
        page = stored.encode_messages(row.id, row.messages, after, limit, newest)
        await exchange.send_response(200, page)

    async def every(self, exchange: RequestContext) -> None:
        limit, newest = read_paging(exchange, "asc")
        model, after = exchange.query.get("model"), exchange.query.get("after")
        wanted = {
            key[1]: value for name, value in exchange.query.items() if (key := _FILTER.match(name))
        }
        store = await self._store()
        found: list[bytes] = []
        # of those that are all wanted, one more than are shown says that there are more
        some = _SOME if wanted or model is not None else limit + 1

        async def load_page(after: str | None) -> list[tuple[str, bytes]]:
            return await store.read(
                lambda tx: tx.completions.list_page(
                    exchange.owner, after=after, limit=some, newest_first=newest
                )
            )

        while len(found) <= limit:
            page = await load_page(after)
            found += [body for _, body in page if stored.matches(body, model, wanted)]
            if len(page) < some:
                break
            after = page[-1][0]
        await exchange.send_response(200, stored.encode_list(found[:limit], len(found) > limit))

    def routes(self) -> list[Route]:
        path = "/v1/chat/completions"
        one = f"{path}/{{id}}"
        return [
            Route(
                path=path,
                method="POST",
                handler=self.complete,
                summary="Go on with a conversation.",
                request_type=decode.ChatRequest,
                response_type=encode.ChatCompletion,
                streams=True,
            ),
            Route(path=path, method="GET", handler=self.every, summary="Those that were kept."),
            Route(path=one, method="GET", handler=self.get, summary="One that was kept."),
            Route(
                path=one,
                method="POST",
                handler=self.change,
                summary="Change what is noted of it.",
                request_type=stored.CompletionUpdate,
            ),
            Route(path=one, method="DELETE", handler=self.delete, summary="Forget it."),
            Route(
                path=f"{one}/messages",
                method="GET",
                handler=self.messages,
                summary="What it was asked.",
            ),
        ]


def _nothing(exchange: RequestContext) -> NotFound:
    name = exchange.params["id"][:80]
    return NotFound(f"There is no chat completion `{name}` that was kept.", param="completion_id")
