"""The messages of an engine process, and how its steps are batched."""

from __future__ import annotations

import asyncio

from dragoman.engines.step_queue import MERGE_THRESHOLD
from dragoman.engines.subprocess import messages
from dragoman.engines.subprocess.child import MAX_BUFFERED_BYTES, StepSender
from dragoman.errors import SerializedError
from dragoman.types import Step


class StalledWriter:
    """A writer whose reader may have stopped reading."""

    def __init__(self) -> None:
        self.buffered = 0
        self.sent: list[messages.ToParent] = []
        self.drained = asyncio.Event()

    @property
    def transport(self) -> StalledWriter:
        return self

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def abort(self) -> None:
        raise AssertionError("the reader is only slow")

    def write(self, data: bytes) -> None:
        self.sent.append(messages.parent_decoder.decode(data[4:]))

    async def drain(self) -> None:
        await self.drained.wait()


def test_steps_of_one_loop_iteration_are_one_message() -> None:
    async def go() -> None:
        writer = StalledWriter()
        sender = StepSender(writer)
        for job in range(3):
            for choice in range(2):
                sender.add(job, Step(choice, text="x"))
        sender.end(2, None)
        await asyncio.sleep(0)
        (batch,) = writer.sent
        assert isinstance(batch, messages.StepBatch)
        assert [(number, len(steps)) for number, steps in batch.steps] == [(0, 2), (1, 2), (2, 2)]
        assert batch.ended == [(2, None)]

    asyncio.run(go())


def test_steps_are_merged_while_the_parent_does_not_read() -> None:
    async def go() -> None:
        writer = StalledWriter()
        writer.buffered = MAX_BUFFERED_BYTES + 1
        sender = StepSender(writer)
        for token in range(3000):
            sender.add(1, Step(0, None, [token], 1))
            if token % 100 == 0:
                await asyncio.sleep(0)
        assert writer.sent == []
        writer.buffered = 0
        writer.drained.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        batch = writer.sent[0]
        assert isinstance(batch, messages.StepBatch)
        ((number, steps),) = batch.steps
        assert number == 1
        assert len(steps) <= MERGE_THRESHOLD
        assert [token for step in steps for token in step.ids] == list(range(3000))

    asyncio.run(go())


def test_messages_survive_encoding() -> None:
    error = SerializedError(
        "ContextOverflow", "too long", "messages", "context_length_exceeded", None
    )
    sent: list[messages.ToParent] = [
        messages.Pong(),
        messages.StepBatch([(1, [Step(text="é" * 40)])]),
        messages.CallResult(3, [1.5]),
        messages.StepBatch([], [(1, error)]),
    ]
    bodies = map(messages.encode_message, sent)
    assert [messages.parent_decoder.decode(body) for body in bodies] == sent
