"""Creates the objects that the suites' tests expect: responses and conversations with fixed ids.

One response is created through the server, in the background, because only those can be streamed
again and cancelled. The others are copies of it with other ids, and so is the chat completion. What
the suite's clients check is therefore what the server wrote.
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

RESPONSE_IDS = (
    "resp_677efb5139a88190b512bc3fef8e535d",
    "resp_123",
    "response_id",
    "previous_response_id",
)
COMPLETION_ID = "completion_id"
CONVERSATION_IDS = ("conv_123", "string")
RESPONSE_REQUEST: dict[str, Any] = {
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
CHAT_REQUEST: dict[str, Any] = {
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


class Seeder:
    """Creates all objects before a test, and replaces those that exist."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._response: StoredResponse | None = None
        self._completion: StoredCompletion | None = None
        self._frames: list[tuple[int, bytes]] = []

    def create(self) -> None:
        if self._response is None:
            reply = httpx.post(f"{self._server.url}/v1/chat/completions", json=CHAT_REQUEST)
            ids = self._create_response(), str(reply.raise_for_status().json()["id"])
            self._server.run_coroutine(self._load_templates(*ids))
        self._server.run_coroutine(self._create_copies())

    def _create_response(self) -> str:
        """Create a response and wait for its end."""
        url = f"{self._server.url}/v1/responses"
        response = httpx.post(url, json=RESPONSE_REQUEST).raise_for_status().json()
        deadline = time.monotonic() + 30
        while response["status"] != "completed":
            assert time.monotonic() < deadline, response
            response = httpx.get(f"{url}/{response['id']}").raise_for_status().json()
        return str(response["id"])

    async def _get_store(self) -> Store:
        return await self._server.app.runtime.state.get_store()

    async def _load_templates(self, response: str, completion: str) -> None:
        store = await self._get_store()
        self._response = await get_response(store, "", response)
        self._frames = await list_frames(store, "", response, -1)
        self._completion = await store.read(lambda tx: tx.completions.get("", completion))

    async def _create_copies(self) -> None:
        store, response, completion = await self._get_store(), self._response, self._completion
        assert response is not None
        assert completion is not None
        await store.write(lambda tx: tx.delete_completion("", COMPLETION_ID))
        body = _replace_id(completion.body, completion.id, COMPLETION_ID)
        await add_completion(store, replace(completion, id=COMPLETION_ID, body=body))
        for name in RESPONSE_IDS:
            await delete_response(store, "", name)
            copies = [
                _replace_id(data, response.id, name) for data in (response.body, response.input)
            ]
            copy = replace(response, id=name, status="in_progress", body=copies[0], input=copies[1])
            await add_response(store, copy)
            frames = [
                (number, _replace_id(data, response.id, name)) for number, data in self._frames
            ]
            await _finish_response(store, replace(copy, status="completed"), frames)
        for name in CONVERSATION_IDS:
            await _replace_conversation(store, name)


async def _finish_response(store: Store, row: StoredResponse, frames: NumberedFrames) -> None:
    await store.write(lambda tx: tx.finish_response(row, frames=frames))


async def _replace_conversation(store: Store, name: str) -> None:
    row = StoredConversation(id=name, owner="", created=int(time.time()))
    item = StoredItem("msg_abc", msgspec.json.encode(ITEM))
    await store.write(lambda tx: tx.delete_conversation("", name))
    await store.write(lambda tx: tx.conversations.add(row, [item]))


def _replace_id(data: bytes, old: str, new: str) -> bytes:
    return data.replace(old.encode(), new.encode())
