"""The tools of a grammar, and how a format writes their names."""

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
FREE_SLOTS = {"{id}": r"/[A-Za-z0-9_.:\-]{1,64}/", "{number}": r"/[0-9]{1,4}/"}
PYTHON_NAME = re.compile(r"[^\W\d][\w.\-]*")


@dataclass(frozen=True)
class ParsedTool:
    """A tool that may be called, with its parsed schema."""

    name: str
    root: Node
    definitions: Mapping[str, Node]
    param: str = "tools"  # the request field that holds its schema
    strict: bool = False

    @property
    def argument_nodes(self) -> tuple[Node, ...]:
        """The alternatives for its arguments, as one object."""
        options = expand_options(self.root, self.definitions)
        nodes = [Object() if isinstance(node, Anything) else node for node in options]
        return tuple(node for node in nodes if isinstance(node, Object | LlguidanceSchema))


def list_argument_objects(tool: ParsedTool) -> list[Object]:
    """Return the alternatives for the arguments of a tool, if each is written by itself."""
    return [node if isinstance(node, Object) else Object() for node in tool.argument_nodes]


def write_name(
    lark: LarkBuilder, spelling: str, name: str, body: spec.CallBody, **slots: str
) -> str:
    """Write a spelling of the format; `slots` are expressions for slots of its own."""
    if isinstance(body, spec.TaggedArguments) and body.html_entities:
        name = html.escape(name)
    parts = []
    for part in SLOT.split(spelling):
        if part in FREE_SLOTS:
            parts.append(lark.add_terminal(FREE_SLOTS[part], "ID"))
        elif part == "{name}":
            parts.append(quote_literal(name))
        elif part[1:-1] in slots:
            parts.append(slots[part[1:-1]])
        elif part:
            parts.append(lark.write_marker(part))
    return " ".join(parts)


def check_name(tool_format: spec.ToolFormat, tool: ParsedTool) -> None:
    """Reject a tool whose name the parser would not read back."""
    if any(_is_readable_name(body, tool.name) for body in tool_format.bodies):
        return
    raise Unsupported(
        f"A tool called `{tool.name[:64]}` cannot be called in this model's format "
        f"(`{tool_format.name}`). Use letters, digits, `_` and `-` only.",
        param=tool.param,
    )


def _is_readable_name(body: spec.CallBody, name: str) -> bool:
    match body:
        case spec.JsonObjects():
            return True
        case spec.PythonCalls():
            return PYTHON_NAME.fullmatch(name) is not None
    escapes = isinstance(body, spec.TaggedArguments) and body.html_entities
    written = html.escape(name) if escapes else name
    samples = {"{name}": written, "{id}": "a1"}
    text = SLOT.sub(lambda slot: samples.get(slot[0], "0"), body.spellings[0])
    match = re.fullmatch(body.name_pattern, text.strip())
    return match is not None and match["name"].strip() == written and name == name.strip()
