"""A typical server, as a peer: FastAPI, a pydantic object per chunk, a queue per request.

One coroutine is the engine: at each step it puts a token into the queue of every open request. The
handler of a request waits for its queue, builds the objects of a chunk, encodes them as JSON and
yields the event. Run as `python -m bench.fastapi_server PORT PACE`.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from bench.measure import TOKEN

PACE = 0.0
queues: set[asyncio.Queue[str]] = set()


class ChatRequest(BaseModel):
    model: str
    messages: list[dict[str, Any]]
    max_tokens: int = 16
    stream: bool = False
    stream_options: dict[str, Any] | None = None


class Message(BaseModel):
    role: str | None = None
    content: str | None = None


class Choice(BaseModel):
    index: int
    delta: Message
    logprobs: None = None
    finish_reason: str | None = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Chunk(BaseModel):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


async def run_engine() -> None:
    """Generate one token for every open request at each step."""
    while True:
        await asyncio.sleep(PACE if queues else PACE or 0.01)
        for queue in queues:
            if PACE or queue.empty():  # nothing else bounds the queues if there is no pace
                queue.put_nowait(TOKEN)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(run_engine())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/v1/chat/completions")
async def chat(request: ChatRequest) -> StreamingResponse:
    return StreamingResponse(stream_events(request), media_type="text/event-stream")


async def stream_events(request: ChatRequest) -> AsyncGenerator[str, None]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    common: dict[str, Any] = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}

    def encode_chunk(delta: Message, finish: str | None = None) -> str:
        choice = Choice(index=0, delta=delta, finish_reason=finish)
        chunk = Chunk(model=request.model, choices=[choice], **common)
        return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"

    queues.add(queue)
    try:
        yield encode_chunk(Message(role="assistant", content=""))
        for _ in range(request.max_tokens):
            yield encode_chunk(Message(content=await queue.get()))
        yield encode_chunk(Message(), "length")
        count = request.max_tokens
        usage = Usage(prompt_tokens=1, completion_tokens=count, total_tokens=count + 1)
        last = Chunk(model=request.model, choices=[], usage=usage, **common)
        yield f"data: {last.model_dump_json(exclude_unset=True)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        queues.discard(queue)


if __name__ == "__main__":
    PACE = float(sys.argv[2])
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
