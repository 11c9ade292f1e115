"""The usual stack, as a peer: FastAPI, a pydantic chunk per token, a queue per request.

One coroutine is the engine: each step it puts a token into the queue of every open request. Each
request's handler waits for its queue, builds the chunk's objects, dumps them to JSON and yields.
Run as `python -m bench.reference PORT PACE`.
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


async def engine() -> None:
    """One token for every open request, each step."""
    while True:
        await asyncio.sleep(PACE if queues else PACE or 0.01)
        for queue in queues:
            if PACE or queue.empty():  # without a pace nothing else would bound the queues
                queue.put_nowait(TOKEN)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(engine())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/v1/chat/completions")
async def chat(request: ChatRequest) -> StreamingResponse:
    return StreamingResponse(stream(request), media_type="text/event-stream")


async def stream(request: ChatRequest) -> AsyncGenerator[str, None]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    fixed: dict[str, Any] = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}

    def chunk(delta: Message, finish: str | None = None) -> str:
        choice = Choice(index=0, delta=delta, finish_reason=finish)
        made = Chunk(model=request.model, choices=[choice], **fixed)
        return f"data: {made.model_dump_json(exclude_unset=True)}\n\n"

    queues.add(queue)
    try:
        yield chunk(Message(role="assistant", content=""))
        for _ in range(request.max_tokens):
            yield chunk(Message(content=await queue.get()))
        yield chunk(Message(), "length")
        count = request.max_tokens
        usage = Usage(prompt_tokens=1, completion_tokens=count, total_tokens=count + 1)
        last = Chunk(model=request.model, choices=[], usage=usage, **fixed)
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
