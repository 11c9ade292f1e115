"""One response, from its request to its end.

`ResponseRun.prepare` does everything that can be the client's fault. Generating takes rounds: the
model answers; if it called remote tools, the server calls them, and the model continues with their
results. A response is stored before its last frame is sent, so a client that saw the end can rely
on it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, ResponseCancelled
from dragoman.events import Delta, Usage
from dragoman.pipeline import pipeline
from dragoman.pipeline.plan import Plan
from dragoman.pipeline.rendering.tool_media import read_tool_media
from dragoman.pipeline.services import Services
from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest, ResponseEncoder, ResponseInfo
from dragoman.protocols.responses.types import Item
from dragoman.replay import PromptReuse
from dragoman.responses.build_request import build_request
from dragoman.responses.run import Observe, Sink
from dragoman.responses.tool_rounds import NO_REMOTE_TOOLS, RemoteTools
from dragoman.responses.truncation import prepare_truncated
from dragoman.signing import OwnerSigner
from dragoman.store.rows import Status, StoredItem, StoredResponse
from dragoman.telemetry.reports import report_current_request
from dragoman.types import AudioPart, ImagePart, MediaItem, Request

encode = msgspec.json.Encoder().encode


class ResponseContext:
    """The services and the state of a response that its request does not contain."""

    def __init__(
        self,
        services: Services,
        owner: str,
        signer: OwnerSigner,
        history: Sequence[Item] = (),
        remote_tools: RemoteTools = NO_REMOTE_TOOLS,
    ) -> None:
        self.services = services
        self.owner = owner
        self.signer = signer
        self.history = list(history)
        self.remote_tools = remote_tools
        self.response_id = f"resp_{uuid.uuid4().hex}"
        self.rounds = 0  # prepared so far
        self.model = ""  # of the first round


class ResponseRun:
    """A response that is ready to be generated."""

    def __init__(self, request: DecodedRequest, context: ResponseContext, plan: Plan) -> None:
        self.request = request
        self.id = context.response_id
        self.created = int(time.time())
        self.wants_stream = bool(request.fields.stream)
        # stores the response; called with the last frames before they are sent
        self.save: Callable[[list[bytes]], Awaitable[None]] | None = None
        self._saving: asyncio.Future[None] | None = None
        self._last_frames: list[bytes] = []  # encoded, but not sent yet
        self.usage = Usage()
        self._context = context
        self._plan = plan
        self._warnings = plan.warnings
        sampling = plan.jobs[0].sampling
        origins = responses.get_tool_origins(request, context.history)
        info = ResponseInfo(
            id=self.id,
            created=self.created,
            model=plan.model_name,
            echoed_fields=responses.make_echoed_fields(request, plan.model_name, sampling),
            tools=origins | context.remote_tools.tool_origins,
            include=request.include,
            summary=bool(request.wants_summary),
            max_remote_calls=request.fields.max_tool_calls,
            packer=context.signer,
            prefill_only=not request.wants_answer,
            make_report=report_current_request,
        )
        self.encoder = ResponseEncoder(info, plan.request)

    @classmethod
    async def prepare(cls, request: DecodedRequest, context: ResponseContext) -> ResponseRun:
        plan = await _prepare_round(request, context, ())
        try:
            return cls(request, context, plan)
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
        return self._context.owner

    @property
    def items(self) -> list[Item]:
        """All items up to the end of this response: the history of one that continues it."""
        return [*self._context.history, *self.request.items, *self.encoder.finished_items]

    @property
    def stored_items(self) -> list[StoredItem]:
        """The input and output items of this response; none if it failed."""
        if self.encoder.get_resource()["status"] not in ("completed", "incomplete"):
            return []
        inputs = [StoredItem(item["id"], encode(item)) for item in self.request.items]
        outputs = [
            StoredItem(item["id"], encode(item), is_output=True)
            for item in self.encoder.finished_items
        ]
        return inputs + outputs

    def start(self) -> list[bytes]:
        return self.encoder.start()

    async def stream(self, sink: Sink) -> None:
        try:
            if self.request.wants_answer:
                await self._generate_rounds(sink)
            else:
                await self._prefill(sink.observe)
        finally:
            self._context.remote_tools.close()
        self._last_frames = self.encoder.end(self.usage)
        await pipeline.await_delivery(sink.end(await self._save_and_take_frames()))

    async def _generate_rounds(self, sink: Sink) -> None:
        push, tools = sink.push, self._context.remote_tools
        context_size = self._plan.model.capabilities.context
        tools.read_media = self._read_tool_media
        await tools.push_tool_lists(self.encoder, push)
        if tools.has_approved_calls:
            self._plan.ticket.release()  # the engine is free for others while tools are called
        if await tools.make_approved_calls(self.encoder, push, context_size):
            await self._prepare_next_round()
        await self._generate_round(sink)
        while await tools.make_calls(self.encoder, push, context_size):
            await self._prepare_next_round()
            await self._generate_round(sink)

    async def _read_tool_media(self, part: ImagePart | AudioPart) -> MediaItem | None:
        context = self._context
        return await read_tool_media(part, self._plan.model, context.services, context.owner)

    async def _prefill(self, observe: Observe) -> None:
        """Have the engine process the prompt alone, so that a later request with it is faster."""

        def deliver(delta: Delta) -> None:
            observe(delta)
            if delta.usage is not None:
                self.usage += delta.usage

        await pipeline.generate(self._plan, deliver)

    async def _prepare_next_round(self) -> None:
        """Add the output so far to the conversation, and wait for admission again."""
        self._plan.close()
        self._plan = await _prepare_round(
            self.request, self._context, self.encoder.finished_items, self.usage
        )

    async def _generate_round(self, sink: Sink) -> None:
        observe, push, encode_delta = sink.observe, sink.push, self.encoder.encode_delta

        def deliver(delta: Delta) -> Awaitable[None] | None:
            observe(delta)
            if delta.usage is not None:
                self.usage += delta.usage
            return push(encode_delta(delta))

        await pipeline.generate(self._plan, deliver)
        self._plan.ticket.release()

    async def fail(self, error: DragomanError) -> list[bytes]:
        """Return the frames that end the stream; a response that has already ended is unchanged."""
        if not self.encoder.is_over:
            cancelled = isinstance(error, ResponseCancelled)
            self._last_frames = self.encoder.cancel() if cancelled else self.encoder.fail(error)
        return await self._save_and_take_frames()

    def mark_unstored(self) -> None:
        """Encode the last frame again, saying that the response could not be stored."""
        self._last_frames[-1:] = [self.encoder.encode_unstored_end()]

    async def _save_and_take_frames(self) -> list[bytes]:
        """Save the response, once, and return its last frames. Cancelling this does not stop it."""
        if self.save is not None:
            self._saving = asyncio.ensure_future(self.save(self._last_frames))
            self.save = None  # break the reference cycle
        if self._saving is not None:
            await asyncio.shield(self._saving)
        frames, self._last_frames = self._last_frames, []
        return frames

    async def collect(self, observe: Observe) -> bytes:
        await self.stream(Sink(observe, _discard_frames))
        return self.encode_whole()

    def encode_whole(self) -> bytes:
        return self.encoder.encode_whole()

    def close(self) -> None:
        self._plan.close()
        self._context.remote_tools.close()

    def make_row(self) -> StoredResponse:
        """Return the response in its current state, for the store."""
        resource = self.encoder.get_resource()
        status: Status = resource["status"]
        return StoredResponse(
            id=self.id,
            owner=self.owner,
            status=status,
            created=self.created,
            body=encode(resource),
            input=encode(self.request.items),
            previous=self.request.fields.previous_response_id,
            conversation=self.request.conversation_id,
            background=bool(self.request.fields.background),
        )


def _discard_frames(_: list[bytes]) -> None:
    """Ignore frames: no client reads them, but encoding them builds the response."""


async def _prepare_round(
    decoded: DecodedRequest,
    context: ResponseContext,
    output: Sequence[Item],
    spent: Usage | None = None,
) -> Plan:
    """Plan the next round: the history, the request, and the output so far."""
    prepare = prepare_truncated if decoded.fields.truncation == "auto" else pipeline.prepare
    tools = context.remote_tools
    while True:
        request = await build_request(
            responses.continue_request(decoded, output) if output else decoded,
            context.history,
            owner=context.owner,
            packer=context.signer,
            remote=tools.tools,
        )
        warnings = (*request.warnings, *tools.warnings)
        request = replace(
            request, response_id=context.response_id, round=context.rounds, warnings=warnings
        )
        if not request.model:
            request = replace(request, model=context.model)
        if spent is not None:
            request = _reduce_max_tokens(request, spent)
        try:
            plan = await prepare(request, context.services, bool(output))
        except BadRequest as error:
            if not tools.drop_schemas(error):
                raise
        else:
            context.rounds += 1
            context.model = plan.model.id
            return plan


def _reduce_max_tokens(request: Request, spent: Usage) -> Request:
    """Lower the limit by what earlier rounds generated: it applies to all rounds together."""
    max_tokens = request.sampling.max_tokens
    if max_tokens is None:
        return request
    remaining = max(1, max_tokens - spent.completion)
    return replace(request, sampling=replace(request.sampling, max_tokens=remaining))
