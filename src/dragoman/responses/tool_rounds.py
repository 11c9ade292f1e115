"""The remote tools of a turn: listed before the model speaks, called between its rounds.

A server that cannot be listed, a call that fails and a limit that is reached are told to the model,
or to the client, as what they are; none of them breaks the response. A tool that the client wants
to approve is not called before it has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.mcp.types import CallResult, ListedTool, McpServer, ToolClient, ToolsUnavailable
from dragoman.pipeline.pipeline import await_delivery
from dragoman.protocols.responses import McpTool, ResponseEncoder, make_remote_name
from dragoman.protocols.responses.types import Item, RemoteCall, ToolOrigin, UniqueNames
from dragoman.responses.run import Push
from dragoman.types import Tool

MAX_SERVERS = 32  # of one request
MAX_TOOLS = 1000  # tools of one server
ANYTHING = {"type": "object"}
# what is said of a schema that cannot be used, and of tools that cannot be used together
UNUSABLE = ("invalid_schema", "unsupported_keyword", "schema_too_complex")
TOGETHER = ("constraint_too_complex", "template_rejected")
PATIENCE = 8  # schemas that are looked for one by one
ENOUGH = "No more remote calls can be made for this response. Answer with what is known."


class RemoteToolLimits(Struct, frozen=True, kw_only=True):
    """How much a turn may do with remote tools."""

    rounds: int = 16
    seconds: float = 300.0  # all of a turn's calls together
    output_chars: int = 64 * 1024  # characters of one output


class AttachedServer(Struct):
    """A server of this turn and what it offers."""

    server: McpServer
    offered: list[ListedTool] = []
    error: str | None = None
    told: bool = False  # the client has its list from an earlier turn


class RemoteTools:
    """What a turn has of remote tools."""

    def __init__(
        self,
        toolbox: ToolClient | None = None,
        attached: Sequence[AttachedServer] = (),
        known: dict[str, ToolOrigin] | None = None,
        bounds: RemoteToolLimits | None = None,
    ) -> None:
        self._toolbox = toolbox
        self._attached = {one.server.label: one for one in attached}
        self.tool_origins = known or {}
        self._bounds = bounds or RemoteToolLimits()
        self._rounds = 0
        self._left = self._bounds.seconds
        self._approved: list[Item] = []  # requests of earlier turns that the client approved
        self.tools = tuple(self._tools())  # as the model is told of them

    def _tools(self) -> Iterable[Tool]:
        offered = {
            (label, tool.name): tool
            for label, one in self._attached.items()
            for tool in one.offered
        }
        for flat, known in self.tool_origins.items():
            tool = offered[known.server_label, known.name]
            yield Tool(
                name=flat,
                description=tool.description,
                parameters=tool.input_schema,
                param=f"tools.{flat}",
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        loose = [tool.name for tool in self.tools if tool.parameters is ANYTHING]
        return tuple(f"The schema of the remote tool `{name}` is not used." for name in loose)

    def drop_schemas(self, error: BadRequest) -> bool:
        """Do without schemas of strangers if they are to blame; whether there are such."""
        held = [tool for tool in self.tools if tool.parameters is not ANYTHING]
        named = [tool for tool in held if tool.param == error.param]
        if error.code in TOGETHER or (named and len(self.tools) - len(held) >= PATIENCE):
            named = held
        elif error.code not in UNUSABLE:
            return False
        names = {tool.name for tool in named}
        self.tools = tuple(
            replace(tool, parameters=ANYTHING) if tool.name in names else tool
            for tool in self.tools
        )
        return bool(named)

    def approve(self, approved: Sequence[Item]) -> None:
        """Let calls of earlier turns be made, if their tools may still be called."""
        known = {(tool.server_label, tool.name) for tool in self.tool_origins.values()}
        for item in approved:
            if (item["server_label"], item["name"]) not in known:
                raise BadRequest(
                    f"The tool `{str(item['name'])[:80]}` of an approved call may not be called.",
                    param="tools",
                )
        self._approved = list(approved)

    async def push_tool_lists(self, writer: ResponseEncoder, push: Push) -> None:
        """Say what the servers offer."""
        for label, one in self._attached.items():
            if one.told:
                continue
            tools = [msgspec.to_builtins(tool) for tool in one.offered]
            await await_delivery(push(writer.start_tool_list(label)))
            await await_delivery(push(writer.finish_tool_list(label, tools, one.error)))

    @property
    def has_approved_calls(self) -> bool:
        """Whether there are calls that were approved."""
        return bool(self._approved)

    async def make_approved_calls(self, writer: ResponseEncoder, push: Push, context: int | None) -> bool:
        """Make the calls that were approved; whether there were any."""
        for item in self._approved:
            await await_delivery(push(writer.start_approved_call(item)))
        return await self.make_calls(writer, push, context)

    async def make_calls(self, writer: ResponseEncoder, push: Push, context: int | None) -> bool:
        """Make the calls of a round; whether the model must go on with what came of them.

        Once it has had enough it is told so, and may say a last word. No output takes more than
        half of the model's `context`, even if every character is a token.
        """
        calls = writer.get_remote_calls()
        if not calls:
            return False
        self._rounds += 1
        began = time.monotonic()
        most = self._bounds.output_chars if context is None else min(self._bounds.output_chars, context // 2)
        tasks = [asyncio.create_task(self._call(call, most)) for call in calls]
        try:
            for call, task in zip(calls, tasks, strict=True):
                outcome = await task
                await await_delivery(
                    push(writer.finish_remote_call(call, outcome.output, outcome.error))
                )
        finally:
            for task in tasks:
                task.cancel()
            self._left -= time.monotonic() - began
        return not writer.needs_client and self._rounds <= self._bounds.rounds + 1

    async def _call(self, call: RemoteCall, most: int) -> CallResult:
        if self._rounds > self._bounds.rounds or self._left <= 0:
            return CallResult(error=ENOUGH)
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict)
        except (msgspec.DecodeError, RecursionError):
            return CallResult(error="The arguments are not a JSON object.")
        assert self._toolbox is not None  # noqa: S101  # there are no calls without one
        try:
            async with asyncio.timeout(self._left):
                server = self._attached[call.server_label].server
                return await self._toolbox.call_tool(server, call.name, arguments, most)
        except TimeoutError:
            return CallResult(error="The tool did not answer in time.")

    def close(self) -> None:
        if self._toolbox is not None:
            self._toolbox.close()


NO_REMOTE_TOOLS = RemoteTools()


async def attach_servers(
    toolbox: ToolClient,
    wanted: Sequence[tuple[McpServer, McpTool]],
    taken: Iterable[str],
    history: Sequence[Item],
    bounds: RemoteToolLimits,
) -> RemoteTools:
    """List the servers of a request, and give their tools names that no other tool has."""
    attached = await asyncio.gather(*(_listed(toolbox, server, history) for server, _ in wanted))
    names, known = UniqueNames(taken), dict[str, ToolOrigin]()
    for one, (_, said) in zip(attached, wanted, strict=True):
        for tool in one.offered[:MAX_TOOLS]:
            if not said.allows(tool.name, tool.read_only):
                continue
            flat = names.make_unique(make_remote_name(one.server.label, tool.name))
            known[flat] = ToolOrigin(
                kind="mcp",
                name=tool.name,
                server_label=one.server.label,
                needs_approval=said.needs_approval(tool.name, tool.read_only),
            )
    return RemoteTools(toolbox, attached, known, bounds)


async def _listed(
    toolbox: ToolClient, server: McpServer, history: Sequence[Item]
) -> AttachedServer:
    """What a server offers: as the client was told in an earlier turn, else asked anew."""
    told = _told(server.label, history)
    if told is not None:
        return AttachedServer(server, told, told=True)
    try:
        return AttachedServer(server, await toolbox.list_tools(server))
    except ToolsUnavailable as error:
        return AttachedServer(server, error=str(error))


def _told(label: str, history: Sequence[Item]) -> list[ListedTool] | None:
    """The last list of a server, if it is one that can be used."""
    lists = (
        item
        for item in reversed(history)
        if item.get("type") == "mcp_list_tools" and item.get("server_label") == label
    )
    last = next(lists, {"error": "there is none"})
    if last.get("error"):
        return None
    try:
        found = msgspec.convert(last.get("tools"), list[ListedTool])
    except msgspec.ValidationError:
        return None
    return list({tool.name: tool for tool in found}.values())


def find_approved_calls(items: Sequence[Item], history: Sequence[Item], labels: set[str]) -> list[Item]:
    """The requests for approval that the client has just approved, but for those that were met."""
    every = [*history, *items]
    requests = {item["id"]: item for item in every if item["type"] == "mcp_approval_request"}
    said = (item.get("approval_request_id") for item in every if item["type"] == "mcp_call")
    met = {name for name in said if isinstance(name, str)}
    found: dict[str, Item] = {}
    for at, item in enumerate(items):
        if item["type"] != "mcp_approval_response":
            continue
        name: str = item["approval_request_id"]
        if name in met:
            continue
        if name not in requests:
            raise BadRequest(
                f"There is no request for approval `{name[:80]}`.",
                param=f"input[{at}].approval_request_id",
            )
        label = requests[name]["server_label"]
        if item["approve"] and label not in labels:
            raise BadRequest(
                f"The server `{label}` of an approved call is not among the tools.", param="tools"
            )
        if item["approve"]:
            found[name] = requests[name]
    return list(found.values())
