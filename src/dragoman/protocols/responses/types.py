"""What the reading and the writing half of the Responses dialect have in common.

Items are kept as plain JSON objects: they go to the store, come back from it, and are shown to the
client as they are. A tool is known to the model by one flat name; `Known` says what the client, or
a remote server, calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dragoman.protocols.shared.signer import ContentPacker

Item: TypeAlias = dict[str, Any]


class ToolOrigin(Struct, frozen=True, kw_only=True):
    """Whose a tool is, and what it is called there."""

    kind: Literal["function", "custom", "mcp"]
    name: str
    namespace: str | None = None  # of a tool that came in one
    server_label: str = ""  # of the remote server that has it
    needs_approval: bool = False  # the client must approve each call


class UniqueNames:
    """Gives names that are not taken."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._times: Counter[str] = Counter()

    def make_unique(self, name: str) -> str:
        tried = name
        while tried in self._taken:
            self._times[name] += 1
            tried = f"{name}_{self._times[name] + 1}"
        self._taken.add(tried)
        return tried


class ResponseInfo(Struct, frozen=True, kw_only=True):
    """What is certain of a response before the model says anything."""

    id: str
    created: int
    model: str
    echoed_fields: dict[str, Any]  # the fields of the resource that repeat the request
    tools: dict[str, ToolOrigin] = {}  # by the names that the model knows
    include: frozenset[str] = frozenset()
    summary: bool = False  # thoughts are also told as a summary
    max_remote_calls: int | None = None  # `max_tool_calls`
    prefill_only: bool = False  # the prompt is only read
    packer: ContentPacker | None = None  # for `reasoning.encrypted_content`


class RemoteCall(Struct, frozen=True):
    """A call that the server itself must make."""

    item_id: str  # the id of its item
    server_label: str
    name: str
    arguments: str
