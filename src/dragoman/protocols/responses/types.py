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


class Known(Struct, frozen=True, kw_only=True):
    """Whose a tool is, and what it is called there."""

    kind: Literal["function", "custom", "mcp"]
    name: str
    namespace: str | None = None  # of a tool that came in one
    label: str = ""  # of the remote server that has it
    asks: bool = False  # the client must approve each call


class Names:
    """Gives names that are not taken."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._times: Counter[str] = Counter()

    def unused(self, name: str) -> str:
        tried = name
        while tried in self._taken:
            self._times[name] += 1
            tried = f"{name}_{self._times[name] + 1}"
        self._taken.add(tried)
        return tried


class Frame(Struct, frozen=True, kw_only=True):
    """What is certain of a response before the model says anything."""

    id: str
    created: int
    model: str
    echo: dict[str, Any]  # the fields of the resource that repeat the request
    tools: dict[str, Known] = {}  # by the names that the model knows
    include: frozenset[str] = frozenset()
    summary: bool = False  # thoughts are also told as a summary
    most_calls: int | None = None  # `max_tool_calls`
    silent: bool = False  # the prompt is only read
    sealing: ContentPacker | None = None  # for `reasoning.encrypted_content`


class RemoteCall(Struct, frozen=True):
    """A call that the server itself must make."""

    item: str  # the id of its item
    label: str
    name: str
    arguments: str
