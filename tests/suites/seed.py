"""What the suites' tests expect to be there: responses and conversations by the ids they use.

One response is made by asking the server for it, in the background, as that is the kind that can
be streamed again and cancelled. The others are copies of it under other ids, and so is a chat
completion, so what the suite's clients check when they fetch one is what the server wrote.
"""

from __future__ import annotations

import time
from typing import Any

import httpx
import msgspec
from msgspec.structs import replace

from dragoman.store.rows import (
    NumberedFrames,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
)
from dragoman.store.store import Store
from tests.support.serving import RunningServer
from tests.support.stores import (
    add_completion,
    add_response,
    delete_response,
    get_response,
    list_frames,
)

RESPONSES = (
    "resp_677efb5139a88190b512bc3fef8e535d",
    "resp_123",
    "response_id",
    "previous_response_id",
)
COMPLETION = "completion_id"
CONVERSATIONS = ("conv_123", "string")
ASKED: dict[str, Any] = {
    "model": "scripted",
    "background": True,
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Is it warm in Paris?"},
        {"type": "function_call", "call_id": "call_1", "name": "warmth", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "21 °C"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "note", "input": "warm"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "noted"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "It is."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Thank you."}]},
    ],
    "tools": [
        {"type": "function", "name": "warmth", "parameters": {"type": "object"}, "strict": False},
        {
            "type": "custom",
            "name": "note",
            "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"},
        },
    ],
    "metadata": {"suite": "yes"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
}
CHAT: dict[str, Any] = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "Hello."}],
    "metadata": {"suite": "yes"},
    "store": True,
}
ITEM = {
    "type": "message",
    "id": "msg_abc",
    "status": "completed",
    "role": "user",
    "content": [{"type": "input_text", "text": "Hello."}],
}


class Seeds:
    """Puts everything there before a test; what is there already is made anew."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._model: StoredResponse | None = None
        self._chat: StoredCompletion | None = None
        self._frames: list[tuple[int, bytes]] = []

    def plant(self) -> None:
        if self._model is None:
            chat = httpx.post(f"{self._server.url}/v1/chat/completions", json=CHAT)
            made = self._make(), str(chat.raise_for_status().json()["id"])
            self._server.run_coroutine(self._take(*made))
        self._server.run_coroutine(self._plant())

    def _make(self) -> str:
        """A response that has ended."""
        url = f"{self._server.url}/v1/responses"
        made = httpx.post(url, json=ASKED).raise_for_status().json()
        until = time.monotonic() + 30
        while made["status"] != "completed":
            assert time.monotonic() < until, made
            made = httpx.get(f"{url}/{made['id']}").raise_for_status().json()
        return str(made["id"])

    async def _store(self) -> Store:
        return await self._server.app.runtime.state.get_store()

    async def _take(self, response: str, chat: str) -> None:
        store = await self._store()
        self._model = await get_response(store, "", response)
        self._frames = await list_frames(store, "", response, -1)
        self._chat = await store.read(lambda tx: tx.completions.get("", chat))

    async def _plant(self) -> None:
        store, model, chat = await self._store(), self._model, self._chat
        assert model is not None
        assert chat is not None
        await store.write(lambda tx: tx.delete_completion("", COMPLETION))
        body = _renamed(chat.body, chat.id, COMPLETION)
        await add_completion(store, replace(chat, id=COMPLETION, body=body))
        for name in RESPONSES:
            await delete_response(store, "", name)
            named = [_renamed(data, model.id, name) for data in (model.body, model.input)]
            copy = replace(model, id=name, status="in_progress", body=named[0], input=named[1])
            await add_response(store, copy)
            frames = [(at, _renamed(data, model.id, name)) for at, data in self._frames]
            await _finish(store, replace(copy, status="completed"), frames)
        for name in CONVERSATIONS:
            await _replace_conversation(store, name)


async def _finish(store: Store, row: StoredResponse, frames: NumberedFrames) -> None:
    await store.write(lambda tx: tx.finish_response(row, frames=frames))


async def _replace_conversation(store: Store, name: str) -> None:
    row = StoredConversation(id=name, owner="", created=int(time.time()))
    item = StoredItem("msg_abc", msgspec.json.encode(ITEM))
    await store.write(lambda tx: tx.delete_conversation("", name))
    await store.write(lambda tx: tx.conversations.add(row, [item]))


def _renamed(data: bytes, before: str, after: str) -> bytes:
    return data.replace(before.encode(), after.encode())
