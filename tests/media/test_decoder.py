"""Workers decode within limits of time and memory; a worker that exceeds them is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import pytest

from dragoman.errors import BadRequest, Draining, Overloaded
from dragoman.media import decoder
from dragoman.media.decoder import MediaDecoder
from dragoman.media.limits import MediaLimits
from dragoman.media.service import MediaReading, MediaService
from dragoman.media.worker import TOO_COSTLY, DecodeTask
from dragoman.types import Chat, ImagePart, MediaItem, Message
from tests.support.media_files import get_items, make_image, make_png, to_base64


@cache
def make_large_picture() -> bytes:
    return make_png(6000, 6000, rows=6000)


def make_task(data: bytes) -> DecodeTask:
    return DecodeTask(kind="image", format="PNG", data=data, pixels=40_000_000, side=512)


@asynccontextmanager
async def open_decoder(cpu_seconds: float = 5.0, workers: int = 1) -> AsyncIterator[MediaDecoder]:
    opened = MediaDecoder(max_pixels=1, cpu_seconds=cpu_seconds, workers=workers)
    try:
        yield opened
    finally:
        await opened.aclose()


def test_nothing_is_started_before_the_first_task() -> None:
    async def check() -> None:
        async with open_decoder() as opened:
            assert not opened.pids
            assert (await opened.decode(make_task(make_image()))).item is not None
            first = opened.pids
            assert (await opened.decode(make_task(make_image()))).item is not None
            assert opened.pids == first
            assert len(first) == 1
        assert not opened.pids

    asyncio.run(check())


def test_a_task_that_takes_too_long_fails_alone() -> None:
    async def check() -> None:
        async with open_decoder(cpu_seconds=0.02) as opened:
            assert (await opened.decode(make_task(make_large_picture()))).message == TOO_COSTLY
        async with open_decoder() as opened:
            assert (await opened.decode(make_task(make_large_picture()))).item is not None

    asyncio.run(check())


def test_a_task_that_takes_too_much_memory_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with open_decoder() as opened:
            assert (await opened.decode(make_task(data))).message == TOO_COSTLY
            assert (await opened.decode(make_task(make_image()))).item is not None

    data = make_png(4500, 4500, rows=4500, is_grey=False)  # four bytes for each pixel
    monkeypatch.setattr(decoder, "BASE_MEMORY", 120 << 20)
    asyncio.run(check())


def test_a_worker_that_dies_is_replaced() -> None:
    async def check() -> None:
        async with open_decoder() as opened:
            await opened.decode(make_task(make_image()))
            [pid] = opened.pids
            os.kill(pid, signal.SIGKILL)
            results = [await opened.decode(make_task(make_image())) for _ in range(2)]
            assert results[-1].item is not None
            assert opened.pids != [pid]

    asyncio.run(check())


def test_a_cancelled_task_ends_its_worker() -> None:
    async def check() -> None:
        async with open_decoder() as opened:
            await opened.decode(make_task(make_image()))
            task = asyncio.create_task(opened.decode(make_task(make_large_picture())))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await opened.decode(make_task(make_image()))).item is not None

    asyncio.run(check())


def test_idle_workers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with open_decoder() as opened:
            await opened.decode(make_task(make_image()))
            [worker] = opened._workers
            await worker.exited
            assert (await opened.decode(make_task(make_image()))).item is not None

    monkeypatch.setattr(decoder, "IDLE_SECONDS", 0.05)
    asyncio.run(check())


def test_the_queue_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with open_decoder() as opened:
            tasks = [asyncio.create_task(opened.decode(make_task(make_image()))) for _ in range(6)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
        rejected = [result for result in results if isinstance(result, Overloaded)]
        assert len(rejected) == 3  # one runs and two wait

    monkeypatch.setattr(decoder, "MAX_WAITING", 2)
    asyncio.run(check())


def test_a_decoder_that_is_closed_rejects_tasks() -> None:
    async def check() -> None:
        async with open_decoder() as opened:
            pass
        with pytest.raises(Draining):
            await opened.decode(make_task(make_image()))

    asyncio.run(check())


def make_chat(*pictures: bytes) -> Chat:
    parts = tuple(
        ImagePart(wire_type="image_url", param="p", data=to_base64(data)) for data in pictures
    )
    return Chat(messages=(Message(role="user", content=parts),))


def test_items_are_cached_for_their_owner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[DecodeTask] = []
    decode = MediaDecoder.decode

    async def record(self: MediaDecoder, task: DecodeTask) -> object:
        tasks.append(task)
        return await decode(self, task)

    async def check() -> None:
        service = MediaService()

        async def read(owner: str, data: bytes) -> MediaItem:
            reading = MediaReading(modalities=("image",), owner=owner)
            chat = await service.read_chat(make_chat(data), reading)
            return get_items(chat.messages[0].content)[0]

        counts, large = [], make_large_picture()
        for owner, data in (("a", large), ("a", large), ("b", large), ("a", make_image())):
            await read(owner, data)
            counts.append(len(tasks))
        assert counts == [1, 1, 2, 3]
        assert await read("a", large) == await read("b", large)
        await service.aclose()

    monkeypatch.setattr(MediaDecoder, "decode", record)
    asyncio.run(check())


def test_the_error_of_a_costly_picture_says_so() -> None:
    async def check() -> None:
        service = MediaService(MediaLimits(cpu_seconds=0.02))
        with pytest.raises(BadRequest, match="takes too much time or memory") as caught:
            await service.read_chat(
                make_chat(make_large_picture()), MediaReading(modalities=("image",))
            )
        assert caught.value.code == "invalid_image"
        await service.aclose()

    asyncio.run(check())
