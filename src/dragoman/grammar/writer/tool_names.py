"""Names and keys as a format words them, and the tools that a grammar is written for."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.errors import Unsupported
from dragoman.grammar.lark_builder import LarkBuilder, quote_literal
from dragoman.grammar.schema.nodes import Anything, LlguidanceSchema, Node, Object
from dragoman.grammar.schema.simplify import expand_options
from dragoman.output import spec

SLOT = re.compile(r"(\{\w+\})")
FREE = {"{id}": r"/[A-Za-z0-9_.:\-]{1,64}/", "{number}": r"/[0-9]{1,4}/"}
PYTHON_NAME = re.compile(r"[^\W\d][\w.\-]*")


@dataclass(frozen=True)
class ParsedTool:
    """A tool that may be called."""

    name: str
    root: Node
    definitions: Mapping[str, Node]
    param: str = "tools"  # what the client calls its place
    strict: bool = False

    @property
    def argument_nodes(self) -> tuple[Node, ...]:
        """The objects that its arguments may be."""
        every = expand_options(self.root, self.definitions)
        plain = [Object() if isinstance(node, Anything) else node for node in every]
        return tuple(node for node in plain if isinstance(node, Object | LlguidanceSchema))


def list_argument_objects(offer: ParsedTool) -> list[Object]:
    """The same where each member is written by itself."""
    return [node if isinstance(node, Object) else Object() for node in offer.argument_nodes]


def write_name(lark: LarkBuilder, way: str, name: str, body: spec.CallBody, **words: str) -> str:
    """A name with what the format writes around it."""
    if isinstance(body, spec.TaggedArguments) and body.html_entities:
        name = html.escape(name)
    found = []
    for part in SLOT.split(way):
        if part in FREE:
            found.append(lark.add_terminal(FREE[part], "ID"))
        elif part == "{name}":
            found.append(quote_literal(name))
        elif part[1:-1] in words:
            found.append(words[part[1:-1]])
        elif part:
            found.append(lark.write_marker(part))
    return " ".join(found)


def check_name(tools: spec.ToolFormat, offer: ParsedTool) -> None:
    """Refuse a name that the format's reader would not read back."""
    for body in tools.bodies:
        if _is_readable_name(body, offer.name):
            return
    raise Unsupported(
        f"A tool called `{offer.name[:64]}` cannot be called in this model's format "
        f"(`{tools.name}`). Use letters, digits, `_` and `-` only.",
        param=offer.param,
    )


def _is_readable_name(body: spec.CallBody, name: str) -> bool:
    match body:
        case spec.JsonObjects():
            return True
        case spec.PythonCalls():
            return PYTHON_NAME.fullmatch(name) is not None
    escapes = isinstance(body, spec.TaggedArguments) and body.html_entities
    said = html.escape(name) if escapes else name
    way = SLOT.sub(lambda slot: {"{name}": said, "{id}": "a1"}.get(slot[0], "0"), body.spellings[0])
    found = re.fullmatch(body.name_pattern, way.strip())
    return found is not None and found["name"].strip() == said and name == name.strip()
