"""Receives a file that a client uploads, and writes it while it arrives.

The body is any number of bytes up to the limit of the store. No more than a few chunks are in
memory, and the client may take as long as it keeps sending (`receive_chunks`).
"""

from __future__ import annotations

import asyncio

from dragoman.http.asgi import RequestContext
from dragoman.models.management.blobs import CHUNK, BlobStore, BlobWriter


async def receive_blob(
    request: RequestContext, blobs: BlobStore, digits: str, timeout: float
) -> bool:
    """Write the body of a request as a blob; return whether it is new."""
    if await asyncio.to_thread(blobs.find, digits) is not None:
        return False
    request.refuse_compressed_body()
    length = request.headers.get(b"content-length") or b""
    size = int(length) if length.isdigit() and len(length) < 20 else None
    writer = await asyncio.to_thread(blobs.open_writer, digits, size)
    try:
        await _receive(request, writer, timeout)
        await asyncio.to_thread(writer.commit)
    finally:
        await asyncio.shield(asyncio.to_thread(writer.discard))
    return True


async def _receive(request: RequestContext, writer: BlobWriter, timeout: float) -> None:
    buffer = bytearray()
    async for chunk in request.receive_chunks(timeout):
        buffer += chunk
        if len(buffer) >= CHUNK:
            await asyncio.to_thread(writer.write, bytes(buffer))
            buffer.clear()
    await asyncio.to_thread(writer.write, bytes(buffer))
