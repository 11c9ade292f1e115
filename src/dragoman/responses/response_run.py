"""One response, from its request to its end.

Everything that can be the client's fault is done by `Turn.begin`. Running it takes rounds: the
model answers; where it called remote tools these are asked, and it goes on with what they said.
A response is kept before its last frame is told, so what a client has seen end is there.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError
from dragoman.events import Delta, Usage
from dragoman.pipeline import pipeline
from dragoman.pipeline.services import Services
from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest, ResponseInfo, ResponseEncoder
from dragoman.protocols.responses.types import Item
from dragoman.replay import PromptReuse
from dragoman.responses.run import Push, Sink
from dragoman.responses.tool_rounds import NO_REMOTE_TOOLS, RemoteTools
from dragoman.responses.truncation import prepare_truncated
from dragoman.signing import OwnerSigner
from dragoman.store.rows import Status, StoredItem, StoredResponse
from dragoman.types import Request

encode = msgspec.json.Encoder().encode


class Cancelled(DragomanError):
    """Somebody asked for the response to end."""

    code = "cancelled"


class ResponseContext:
    """What a turn takes place in."""

    def __init__(
        self,
        services: Services,
        owner: str,
        sealing: OwnerSigner,
        history: Sequence[Item] = (),
        remote: RemoteTools = NO_REMOTE_TOOLS,
    ) -> None:
        self.services = services
        self.owner = owner
        self.signer = sealing
        self.history = list(history)
        self.remote_tools = remote
        self.response_id = f"resp_{uuid.uuid4().hex}"  # of the response


class ResponseRun:
    """A response that is ready to run."""

    def __init__(self, asked: DecodedRequest, scene: ResponseContext, plan: pipeline.Plan) -> None:
        self.asked = asked
        self.id = scene.response_id
        self.created = int(time.time())
        self.wants_stream = bool(asked.fields.stream)
        self.save: Callable[[list[bytes]], Awaitable[None]] | None = None  # before the last frames
        self._keeping: asyncio.Future[None] | None = None
        self._last: list[bytes] = []  # frames that end it and were not told yet
        self.usage = Usage()
        self._scene = scene
        self._plan = plan
        self._warnings = plan.warnings
        said = asked.fields
        frame = ResponseInfo(
            id=self.id,
            created=self.created,
            model=plan.model_name,
            echoed_fields=responses.make_echoed_fields(
                asked, plan.model_name, plan.jobs[0].sampling
            ),
            tools=responses.get_tool_origins(asked, scene.history) | scene.remote_tools.tool_origins,
            include=asked.include,
            summary=bool(asked.wants_summary),
            max_remote_calls=said.max_tool_calls,
            packer=scene.signer,
            prefill_only=not asked.wants_answer,
        )
        self.encoder = ResponseEncoder(frame, plan.request)

    @classmethod
    async def prepare(cls, asked: DecodedRequest, scene: ResponseContext) -> ResponseRun:
        plan = await _plan(asked, scene, ())
        try:
            return cls(asked, scene, plan)
        except BaseException:
            plan.close()
            raise

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._warnings

    @property
    def reuse(self) -> PromptReuse | None:
        return self._plan.reuse

    @property
    def owner(self) -> str:
        return self._scene.owner

    @property
    def items(self) -> list[Item]:
        """All there is for whoever goes on from here."""
        return [*self._scene.history, *self.asked.items, *self.encoder.finished_items]

    @property
    def stored_items(self) -> list[StoredItem]:
        """All items of this turn, what it was asked and what it answered, if it has an answer."""
        if self.encoder.get_resource()["status"] not in ("completed", "incomplete"):
            return []
        said = [StoredItem(item["id"], encode(item)) for item in self.asked.items]
        return said + [
            StoredItem(item["id"], encode(item), True) for item in self.encoder.finished_items
        ]

    def start(self) -> list[bytes]:
        return self.encoder.start()

    async def stream(self, sink: Sink) -> None:
        push = sink.push
        try:
            if not self.asked.wants_answer:
                await self._read(sink.observe)
                await self._end(push)
                return
            remote, context = self._scene.remote_tools, self._plan.model.capabilities.context
            await remote.push_tool_lists(self.encoder, push)
            if remote.has_approved_calls:
                self._plan.ticket.release()  # while others are asked, the engine is for all
            if await remote.make_approved_calls(self.encoder, push, context):
                await self._go_on()
            await self._round(sink.observe, push)
            while await remote.make_calls(self.encoder, push, context):
                await self._go_on()
                await self._round(sink.observe, push)
        finally:
            self._scene.remote_tools.close()
        await self._end(push)

    async def _read(self, note: Callable[[Delta], None]) -> None:
        """Have the model read the prompt, so that what follows on it comes faster."""

        def deliver(delta: Delta) -> None:
            note(delta)
            if delta.usage is not None:
                self.usage += delta.usage

        await pipeline.generate(self._plan, deliver)

    async def _go_on(self) -> None:
        """The same conversation with what was answered so far, after another wait for a place."""
        self._plan.close()
        self._plan = await _plan(self.asked, self._scene, self.encoder.finished_items, self.usage)

    async def _round(self, note: Callable[[Delta], None], push: Push) -> None:
        write = self.encoder.encode_delta

        def deliver(delta: Delta) -> Awaitable[None] | None:
            note(delta)
            if delta.usage is not None:
                self.usage += delta.usage
            return push(write(delta))

        await pipeline.generate(self._plan, deliver)
        self._plan.ticket.release()

    async def _end(self, push: Push) -> None:
        self._last = self.encoder.end(self.usage)
        await self._kept()
        frames, self._last = self._last, []
        await pipeline.await_delivery(push(frames))

    async def fail(self, error: DragomanError) -> list[bytes]:
        """What ends it; one that was about to end when this came ends as it would have."""
        if not self.encoder.is_over:
            cancelled = isinstance(error, Cancelled)
            self._last = self.encoder.cancel() if cancelled else self.encoder.fail(error)
        await self._kept()
        frames, self._last = self._last, []
        return frames

    def mark_unstored(self) -> None:
        """It could not be kept, and says so: its last frame is told anew."""
        self._last[-1:] = [self.encoder.encode_unstored_end()]

    async def _kept(self) -> None:
        """Keep it, once. Whoever is interrupted here does not interrupt that."""
        if self.save is not None and self._keeping is None:
            self._keeping = asyncio.ensure_future(self.save(self._last))
        if self._keeping is not None:
            await asyncio.shield(self._keeping)

    async def collect(self, note: Callable[[Delta], None]) -> bytes:
        await self.stream(Sink(note, _discard_frames))
        return self.encode_whole()

    def encode_whole(self) -> bytes:
        return self.encoder.encode_whole()

    def close(self) -> None:
        self._plan.close()
        self._scene.remote_tools.close()

    def make_row(self) -> StoredResponse:
        """The response as it is now, for the store."""
        resource = self.encoder.get_resource()
        status: Status = resource["status"]
        return StoredResponse(
            id=self.id,
            owner=self.owner,
            status=status,
            created=self.created,
            body=encode(resource),
            input=encode(self.asked.items),
            previous=self.asked.fields.previous_response_id,
            conversation=self.asked.conversation_id,
            background=bool(self.asked.fields.background),
        )


def _discard_frames(_: list[bytes]) -> None:
    """Nobody reads the stream; the encoder builds the response all the same."""


async def _plan(
    asked: DecodedRequest,
    scene: ResponseContext,
    output: Sequence[Item],
    spent: Usage | None = None,
) -> pipeline.Plan:
    """The next round: what came before, what is asked, and what was answered so far."""
    prepare = prepare_truncated if asked.fields.truncation == "auto" else pipeline.prepare
    while True:
        request = responses.to_request(
            responses.continue_request(asked, output) if output else asked,
            scene.history,
            owner=scene.owner,
            sealing=scene.signer,
            remote=scene.remote_tools.tools,
        )
        warnings = (*request.warnings, *scene.remote_tools.warnings)
        request = replace(request, response_id=scene.response_id, warnings=warnings)
        if spent is not None:
            request = _shorter(request, spent)
        try:
            return await prepare(request, scene.services, bool(output))
        except BadRequest as error:
            if not scene.remote_tools.drop_schemas(error):
                raise


def _shorter(request: Request, spent: Usage) -> Request:
    """The limit is for all rounds together."""
    most = request.sampling.max_tokens
    if most is None:
        return request
    left = max(1, most - spent.completion)
    return replace(request, sampling=replace(request.sampling, max_tokens=left))
