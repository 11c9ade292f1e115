"""The remote tools of a response: listed before the model answers, called between its rounds.

If a server's tools cannot be listed, the client gets the error in the response; if a call fails or
the limit is reached, the model gets the error. Neither fails the response. A tool that needs
approval is not called before the client approves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import (
    BadRequest,
    ConstraintTooComplex,
    InvalidSchema,
    SchemaTooComplex,
    TemplateRejected,
    UnsupportedKeyword,
    shorten_id,
)
from dragoman.mcp.types import (
    ListedTool,
    McpServer,
    ResultMedia,
    ToolCallResult,
    ToolClient,
    ToolsUnavailable,
)
from dragoman.pipeline.pipeline import await_delivery
from dragoman.protocols.responses import McpTool, ResponseEncoder, make_remote_name
from dragoman.protocols.responses.types import Item, RemoteCall, ToolOrigin, UniqueNames
from dragoman.responses.run import Push
from dragoman.telemetry.record import get_record
from dragoman.telemetry.spans import TOOL_STAGE
from dragoman.types import AudioPart, ImagePart, MediaItem, Tool

ReadMedia: TypeAlias = Callable[[ImagePart | AudioPart], Awaitable[MediaItem | None]]

MAX_SERVERS = 32  # of one request
MAX_TOOLS = 1000  # of one server
MAX_MEDIA = 8  # pictures and sounds of all results that the model gets
ANY_OBJECT = {"type": "object"}
# error codes of one schema that cannot be used, and of schemas that cannot be used together
SCHEMA_ERRORS = (InvalidSchema.code, UnsupportedKeyword.code, SchemaTooComplex.code)
COMBINATION_ERRORS = (ConstraintTooComplex.code, TemplateRejected.code)
MAX_SINGLE_DROPS = 8  # schemas that are dropped one at a time, before all are
LIMIT_REACHED = "No more remote calls can be made for this response. Answer with what is known."


class RemoteToolLimits(Struct, frozen=True, kw_only=True):
    """How much one response may use remote tools."""

    rounds: int = 16
    seconds: float = 300.0  # for all calls of a response together
    output_chars: int = 64 * 1024  # of one output


class AttachedServer(Struct):
    """A server of this response and its tools."""

    server: McpServer
    tools: list[ListedTool] = []
    error: str | None = None
    is_from_history: bool = False  # the client has the list from an earlier response


class RemoteTools:
    """The remote tools of one response."""

    def __init__(
        self,
        client: ToolClient | None = None,
        attached: Sequence[AttachedServer] = (),
        tool_origins: dict[str, ToolOrigin] | None = None,
        limits: RemoteToolLimits | None = None,
    ) -> None:
        self._client = client
        self._attached = {entry.server.label: entry for entry in attached}
        self.tool_origins = tool_origins or {}  # by the names that the model uses
        self._limits = limits or RemoteToolLimits()
        self._rounds = 0
        self._seconds_left = self._limits.seconds
        self.read_media: ReadMedia | None = None  # decodes pictures and sound for the model
        self._media_count = 0  # of media that the model got
        self._approved: list[Item] = []  # approval requests that the client has approved
        self.tools = tuple(self._make_tools())  # as the model gets them

    def _make_tools(self) -> Iterable[Tool]:
        listed = {
            (label, tool.name): tool
            for label, entry in self._attached.items()
            for tool in entry.tools
        }
        for name, origin in self.tool_origins.items():
            tool = listed[origin.server_label, origin.name]
            yield Tool(
                name=name,
                description=tool.description,
                parameters=tool.input_schema,
                param=f"tools.{name}",
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        dropped = [tool.name for tool in self.tools if tool.parameters is ANY_OBJECT]
        return tuple(f"The schema of the remote tool `{name}` is not used." for name in dropped)

    def drop_schemas(self, error: BadRequest) -> bool:
        """Drop the schemas that caused an error; return False if none of them did."""
        with_schema = [tool for tool in self.tools if tool.parameters is not ANY_OBJECT]
        at_fault = [tool for tool in with_schema if tool.param == error.param]
        dropped_before = len(self.tools) - len(with_schema)
        if error.code in COMBINATION_ERRORS or (at_fault and dropped_before >= MAX_SINGLE_DROPS):
            at_fault = with_schema
        elif error.code not in SCHEMA_ERRORS:
            return False
        names = {tool.name for tool in at_fault}
        self.tools = tuple(
            replace(tool, parameters=ANY_OBJECT) if tool.name in names else tool
            for tool in self.tools
        )
        return bool(at_fault)

    def approve(self, requests: Sequence[Item]) -> None:
        """Approve calls of earlier responses. Their tools must still be allowed."""
        allowed = {(origin.server_label, origin.name) for origin in self.tool_origins.values()}
        for item in requests:
            if (item["server_label"], item["name"]) not in allowed:
                name = shorten_id(str(item["name"]))
                raise BadRequest(
                    f"The tool `{name}` of an approved call is not allowed.", param="tools"
                )
        self._approved = list(requests)

    async def push_tool_lists(self, encoder: ResponseEncoder, push: Push) -> None:
        """Send the tool lists that the client does not have yet."""
        for label, entry in self._attached.items():
            if entry.is_from_history:
                continue
            tools = [msgspec.to_builtins(tool) for tool in entry.tools]
            await await_delivery(push(encoder.start_tool_list(label)))
            await await_delivery(push(encoder.finish_tool_list(label, tools, entry.error)))

    @property
    def has_approved_calls(self) -> bool:
        return bool(self._approved)

    async def make_approved_calls(
        self, encoder: ResponseEncoder, push: Push, context: int | None
    ) -> bool:
        """Make the approved calls; return whether the model must continue with their results."""
        for item in self._approved:
            await await_delivery(push(encoder.start_approved_call(item)))
        return await self.make_calls(encoder, push, context)

    async def make_calls(self, encoder: ResponseEncoder, push: Push, context: int | None) -> bool:
        """Make the calls of a round; return whether the model must continue with their results.

        When the limit is reached, calls return an error, and the model gives a final answer. No
        output takes more than half of the model's `context`, even if every character is a token.
        """
        calls = encoder.get_remote_calls()
        if not calls:
            return False
        self._rounds += 1
        started = time.monotonic()
        max_chars = self._limits.output_chars
        if context is not None:
            max_chars = min(max_chars, context // 2)
        tasks = [asyncio.create_task(self._call(call, max_chars)) for call in calls]
        try:
            for call, task in zip(calls, tasks, strict=True):
                result, media = await self._read_media(await task)
                frames = encoder.finish_remote_call(call, result.output, result.error, media)
                await await_delivery(push(frames))
        finally:
            for task in tasks:
                task.cancel()
            self._seconds_left -= time.monotonic() - started
        return not encoder.needs_client and self._rounds <= self._limits.rounds + 1

    async def _read_media(self, result: ToolCallResult) -> tuple[ToolCallResult, list[MediaItem]]:
        """Read the media of a result that the model can see, and refer to them in its text."""
        output, items = result.output or "", list[MediaItem]()
        for media in result.media:
            if self.read_media is None or self._media_count >= MAX_MEDIA:
                break
            item = await self.read_media(_make_part(media))
            if item is not None:
                self._media_count += 1
                items.append(item)
                output = output.replace(media.description, media.shown_description, 1)
        return (replace(result, output=output) if items else result), items

    async def _call(self, call: RemoteCall, max_chars: int) -> ToolCallResult:
        if self._rounds > self._limits.rounds or self._seconds_left <= 0:
            return ToolCallResult(error=LIMIT_REACHED)
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict)
        except (msgspec.DecodeError, RecursionError):
            return ToolCallResult(error="The arguments are not a JSON object.")
        assert self._client is not None  # noqa: S101  # without a client there are no calls
        try:
            async with asyncio.timeout(self._seconds_left):
                server = self._attached[call.server_label].server
                with get_record().measure(TOOL_STAGE, call.name):
                    return await self._client.call_tool(server, call.name, arguments, max_chars)
        except TimeoutError:
            return ToolCallResult(error="The tool did not answer in time.")

    def close(self) -> None:
        self.read_media = None  # it refers to the response, which would stay in memory
        if self._client is not None:
            self._client.close()


def _make_part(media: ResultMedia) -> ImagePart | AudioPart:
    part_type = ImagePart if media.kind == "image" else AudioPart
    return part_type(
        wire_type=media.kind, param="output", data=media.data, media_type=media.media_type
    )


NO_REMOTE_TOOLS = RemoteTools()


async def attach_servers(
    client: ToolClient,
    requested: Sequence[tuple[McpServer, McpTool]],
    used_names: Iterable[str],
    history: Sequence[Item],
    limits: RemoteToolLimits,
) -> RemoteTools:
    """List the tools of a request's servers, and give them names that no other tool has."""
    attached = await asyncio.gather(
        *(_attach_server(client, server, history) for server, _ in requested)
    )
    names, origins = UniqueNames(used_names), dict[str, ToolOrigin]()
    for entry, (_, settings) in zip(attached, requested, strict=True):
        label = entry.server.label
        for tool in entry.tools[:MAX_TOOLS]:
            if not settings.allows(tool.name, tool.is_read_only):
                continue
            origins[names.make_unique(make_remote_name(label, tool.name))] = ToolOrigin(
                kind="mcp",
                name=tool.name,
                server_label=label,
                needs_approval=settings.needs_approval(tool.name, tool.is_read_only),
            )
    return RemoteTools(client, attached, origins, limits)


async def _attach_server(
    client: ToolClient, server: McpServer, history: Sequence[Item]
) -> AttachedServer:
    """Take the tools of a server from the history, or list them."""
    tools = _find_tool_list(server.label, history)
    if tools is not None:
        return AttachedServer(server, tools, is_from_history=True)
    try:
        return AttachedServer(server, await client.list_tools(server))
    except ToolsUnavailable as error:
        return AttachedServer(server, error=str(error))


def _find_tool_list(label: str, history: Sequence[Item]) -> list[ListedTool] | None:
    """Return the last tool list of a server in the history, if it is valid."""
    lists = (
        item
        for item in reversed(history)
        if item.get("type") == "mcp_list_tools" and item.get("server_label") == label
    )
    last = next(lists, None)
    if last is None or last.get("error"):
        return None
    try:
        tools = msgspec.convert(last.get("tools"), list[ListedTool])
    except msgspec.ValidationError:
        return None
    return list({tool.name: tool for tool in tools}.values())


def find_approved_calls(
    items: Sequence[Item], history: Sequence[Item], labels: set[str]
) -> list[Item]:
    """Return the approval requests that the input approves and that were not called yet."""
    every = [*history, *items]
    requests = {item["id"]: item for item in every if item["type"] == "mcp_approval_request"}
    request_ids = (item.get("approval_request_id") for item in every if item["type"] == "mcp_call")
    called = {request_id for request_id in request_ids if isinstance(request_id, str)}
    approved: dict[str, Item] = {}
    for index, item in enumerate(items):
        if item["type"] != "mcp_approval_response":
            continue
        request_id: str = item["approval_request_id"]
        if request_id in called:
            continue
        if request_id not in requests:
            raise BadRequest(
                f"There is no approval request `{shorten_id(request_id)}`.",
                param=f"input[{index}].approval_request_id",
            )
        label = requests[request_id]["server_label"]
        if item["approve"] and label not in labels:
            raise BadRequest(
                f"The server `{label}` of an approved call is not among the tools.", param="tools"
            )
        if item["approve"]:
            approved[request_id] = requests[request_id]
    return list(approved.values())
