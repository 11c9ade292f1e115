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

from dragoman.pipeline import done
from dragoman.protocols.responses import McpTool, Writer, remote_name
from dragoman.protocols.responses.nouns import Item, Known, RemoteCall
from dragoman.tools.nouns import Listed, Outcome, Server, Toolbox, ToolsUnavailable
from dragoman.turns.work import Push
from dragoman.types import Tool


class Bounds(Struct, frozen=True, kw_only=True):
    """How much a turn may do with remote tools."""

    rounds: int = 16
    seconds: float = 300.0  # all of a turn's calls together


class Attached(Struct):
    """A server of this turn and what it offers."""

    server: Server
    offered: list[Listed] = []
    error: str | None = None
    told: bool = False  # the client has its list from an earlier turn


class Remote:
    """What a turn has of remote tools."""

    def __init__(
        self,
        toolbox: Toolbox | None = None,
        attached: Sequence[Attached] = (),
        known: dict[str, Known] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._toolbox = toolbox
        self._attached = {one.server.label: one for one in attached}
        self.known = known or {}
        self._bounds = bounds or Bounds()
        self._rounds = 0
        self._spent = 0.0
        self.approved: list[Item] = []  # requests of earlier turns that the client approved

    @property
    def tools(self) -> tuple[Tool, ...]:
        """As the model is told of them."""
        return tuple(self._tool(flat, known) for flat, known in self.known.items())

    def _tool(self, flat: str, known: Known) -> Tool:
        offered = self._attached[known.label].offered
        one = next(tool for tool in offered if tool.name == known.name)
        return Tool(name=flat, description=one.description, parameters=one.input_schema)

    async def tell(self, writer: Writer, push: Push) -> None:
        """Say what the servers offer."""
        for label, one in self._attached.items():
            if one.told:
                continue
            tools = [msgspec.to_builtins(tool) for tool in one.offered]
            await done(push(writer.listing(label)))
            await done(push(writer.listed(label, tools, one.error)))

    async def resume(self, writer: Writer, push: Push) -> bool:
        """Make the calls that were approved; whether there were any."""
        for item in self.approved:
            await done(push(writer.resume_call(item)))
        return await self.answer(writer, push)

    async def answer(self, writer: Writer, push: Push) -> bool:
        """Make the calls of a round; whether the model must go on with what came of them."""
        calls = writer.remote_calls()
        if not calls:
            return False
        self._rounds += 1
        tasks = [asyncio.create_task(self._call(call)) for call in calls]
        try:
            for call, task in zip(calls, tasks, strict=True):
                outcome = await task
                await done(push(writer.result(call, outcome.output, outcome.error)))
        finally:
            for task in tasks:
                task.cancel()
        return not writer.pending and self._rounds <= self._bounds.rounds

    async def _call(self, call: RemoteCall) -> Outcome:
        left = self._bounds.seconds - self._spent
        if self._rounds > self._bounds.rounds or left <= 0:
            return Outcome(error="The limit of remote calls for one response is reached.")
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict)
        except msgspec.DecodeError:
            return Outcome(error="The arguments are not a JSON object.")
        assert self._toolbox is not None  # noqa: S101  # there are no calls without one
        began = time.monotonic()
        try:
            async with asyncio.timeout(left):
                server = self._attached[call.label].server
                return await self._toolbox.call(server, call.name, arguments)
        except TimeoutError:
            return Outcome(error="The tool did not answer in time.")
        finally:
            self._spent += time.monotonic() - began

    async def aclose(self) -> None:
        if self._toolbox is not None:
            await self._toolbox.aclose()


NOTHING = Remote()


async def attach(
    toolbox: Toolbox,
    wanted: Sequence[tuple[Server, McpTool]],
    taken: Iterable[str],
    history: Sequence[Item],
    bounds: Bounds,
) -> Remote:
    """List the servers of a request, and give their tools names that no other tool has."""
    attached = await asyncio.gather(*(_listed(toolbox, server, history) for server, _ in wanted))
    names, known = set(taken), dict[str, Known]()
    for one, (_, said) in zip(attached, wanted, strict=True):
        for tool in one.offered:
            if not said.allows(tool.name, tool.read_only):
                continue
            flat = _unused(remote_name(one.server.label, tool.name), names)
            names.add(flat)
            known[flat] = Known(
                kind="mcp",
                name=tool.name,
                label=one.server.label,
                asks=said.asks(tool.name, tool.read_only),
            )
    return Remote(toolbox, attached, known, bounds)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


async def _listed(toolbox: Toolbox, server: Server, history: Sequence[Item]) -> Attached:
    """What a server offers: as the client was told in an earlier turn, else asked anew."""
    for item in reversed(history):
        if item.get("type") == "mcp_list_tools" and item.get("server_label") == server.label:
            if item.get("error"):
                break
            offered = msgspec.convert(item["tools"], list[Listed])
            return Attached(server, offered, told=True)
    try:
        return Attached(server, await toolbox.list(server))
    except ToolsUnavailable as error:
        return Attached(server, error=str(error))


def approved(items: Sequence[Item], history: Sequence[Item]) -> list[Item]:
    """The requests for approval that the client has just approved."""
    requests = {item["id"]: item for item in history if item.get("type") == "mcp_approval_request"}
    answers = [item for item in items if item.get("type") == "mcp_approval_response"]
    return [
        requests[answer["approval_request_id"]]
        for answer in answers
        if answer.get("approve") and answer.get("approval_request_id") in requests
    ]
