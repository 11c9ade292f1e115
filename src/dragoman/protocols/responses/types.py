"""Data types of both decoding and encoding of the Responses API.

Items stay plain JSON objects: they are stored, loaded and shown to the client as they are. The
model knows each tool by one flat name; `ToolOrigin` maps it back to the name that the client, or a
remote server, uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.protocols.shared.report import MakeReport
from dragoman.protocols.shared.signer import ContentPacker
from dragoman.types import Json

Item: TypeAlias = dict[str, Json]


class ToolOrigin(Struct, frozen=True, kw_only=True):
    """Who runs a tool, and its name there."""

    kind: Literal["function", "custom", "mcp"]
    name: str
    namespace: str | None = None
    server_label: str = ""  # of the remote server that has the tool
    needs_approval: bool = False  # the client must approve each call


class UniqueNames:
    """Makes names unique by appending a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: Counter[str] = Counter()

    def make_unique(self, name: str) -> str:
        unique = name
        while unique in self._taken:
            self._counts[name] += 1
            unique = f"{name}_{self._counts[name] + 1}"
        self._taken.add(unique)
        return unique


class ResponseInfo(Struct, frozen=True, kw_only=True):
    """Information about a response that is known before the model generates anything."""

    id: str
    created: int
    model: str
    echoed_fields: dict[str, Json]  # the fields of the resource that repeat the request
    tools: dict[str, ToolOrigin] = {}  # by the names that the model knows
    include: frozenset[str] = frozenset()
    summary: bool = False  # reasoning is also sent as a summary
    max_remote_calls: int | None = None  # `max_tool_calls`
    prefill_only: bool = False  # only the prompt is processed
    packer: ContentPacker | None = None  # for `reasoning.encrypted_content`
    make_report: MakeReport = dict  # what the client wants to know about its request


class RemoteCall(Struct, frozen=True):
    """A call that the server itself must make."""

    item_id: str
    server_label: str
    name: str
    arguments: str
