"""Writes a template in Go's language as a Jinja template.

Ollama runs a template in one of two ways. If it names `.Messages`, it is run once, with all of
them. Otherwise it is run for each question and its answer, with `.System`, `.Prompt` and
`.Response`; the last time, the template ends at `.Response`. One that names neither gets
`.Response` at its end.

To fill in text, a template that names `.Suffix` is run once, with `.Prompt` and `.Suffix` alone.

Text is written as strings, so that no setting of Jinja changes the white space beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from dragoman.errors import InvalidValue
from dragoman.prompt.go_template.expression import ExpressionWriter, quote
from dragoman.prompt.go_template.nodes import (
    Action,
    Branch,
    Command,
    Dot,
    Fields,
    Jump,
    Node,
    Pipeline,
    Text,
    find_fields,
)
from dragoman.prompt.go_template.parser import parse_template
from dragoman.prompt.go_template.scopes import ROOT, Scopes

MAX_LENGTH = 64 * 1024  # characters of a template
SUFFIX = "go_suffix"  # the variable with the text after the one to fill in
RESPONSE = Action(Pipeline((Command((Fields(Dot(), ("Response",)),)),)))
# fields about reasoning, and the variables of Jinja from which they are made
REASONING = {
    "Think": '"think": enable_thinking is defined and enable_thinking',
    "IsThinkSet": '"is_think_set": enable_thinking is defined',
    "ThinkLevel": '"think_level": reasoning_effort|default("")',
}
_WORDS = r"if|else|end|range(?!\()|with|block|define|template|break|continue|and|or|not|json|len"
_GO = re.compile(rf"\{{\{{-?\s*(?:[.$`]|/\*|(?:{_WORDS})\b)")
_JINJA = re.compile(r"\{%|\{#")


def is_go_template(source: str) -> bool:
    """Whether a template is in Go's language, not in Jinja."""
    return _GO.search(source) is not None and _JINJA.search(source) is None


def writes_suffix(template: str | None) -> bool:
    """Whether a converted template has a place for the text after the one to fill in."""
    return template is not None and SUFFIX in template


@lru_cache(maxsize=64)
def convert_go_template(source: str) -> str:
    """Return the Jinja template that writes the same prompts; raise `InvalidValue` if none does."""
    if len(source) > MAX_LENGTH:
        raise InvalidValue(
            f"`template` is too long: it may have {MAX_LENGTH} characters.", param="template"
        )
    if _JINJA.search(source):
        raise InvalidValue(
            "`template` must be a template in Go's language, not in Jinja.", param="template"
        )
    nodes = parse_template(source)
    fields = {name for node in nodes for name in find_fields(node)}
    chat = _write_chat(nodes, fields)
    if "Suffix" not in fields:
        return chat
    infill = _write_infill(nodes, fields)
    return f"{{%- if {SUFFIX} is defined -%}}{infill}{{%- else -%}}{chat}{{%- endif -%}}"


def _write_infill(nodes: tuple[Node, ...], fields: set[str]) -> str:
    values = (
        '"system": "", "messages": [], "tools": [], "response": ""',
        f'"prompt": (messages|go_turns)[0].prompt, "suffix": {SUFFIX}',
        *_list_reasoning(fields),
    )
    return f"{{%- set {ROOT} = {{{', '.join(values)}}} -%}}{TemplateWriter().write(nodes)}"


def _write_chat(nodes: tuple[Node, ...], fields: set[str]) -> str:
    reasoning = _list_reasoning(fields)
    writer = TemplateWriter()
    if "Messages" in fields:
        values = (
            '"system": messages|go_system, "messages": messages|go_messages, "tools": tools or []',
            '"prompt": "", "response": "", "suffix": ""',
            *reasoning,
        )
        return f"{{%- set {ROOT} = {{{', '.join(values)}}} -%}}{writer.write(nodes)}"
    if "Response" not in fields:
        nodes = (*nodes, RESPONSE)
    body, end = writer.write(nodes), writer.write(cut_after_response(nodes))
    values = (
        *(f'"{name}": go_turn.{name}' for name in ("system", "prompt", "response")),
        '"suffix": ""',
        *reasoning,
    )
    return (
        "{%- for go_turn in messages|go_turns -%}"
        f"{{%- set {ROOT} = {{{', '.join(values)}}} -%}}"
        f"{{%- if not loop.last -%}}{body}{{%- else -%}}{end}{{%- endif -%}}{{%- endfor -%}}"
    )


def _list_reasoning(fields: set[str]) -> list[str]:
    return [text for name, text in REASONING.items() if name in fields]


def cut_after_response(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return a template up to the place where it writes `.Response`."""
    return _ResponseCutter().cut(nodes)


class _ResponseCutter:
    def __init__(self) -> None:
        self._is_cut = False

    def cut(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(self._cut_nodes(nodes))

    def _cut_nodes(self, nodes: tuple[Node, ...]) -> Iterator[Node]:
        for node in nodes:
            if self._is_cut:
                return
            if isinstance(node, Branch):
                yield Branch(
                    node.kind, node.pipeline, self.cut(node.body), self.cut(node.otherwise)
                )
                continue
            yield node
            self._is_cut = isinstance(node, Action) and "Response" in find_fields(node)


class TemplateWriter:
    """Writes the nodes of a template."""

    def __init__(self) -> None:
        self._scopes = Scopes()
        self._expressions = ExpressionWriter(self._scopes)

    def write(self, nodes: tuple[Node, ...]) -> str:
        return "".join(map(self._write_node, nodes))

    def _write_node(self, node: Node) -> str:
        match node:
            case Text(text):
                return f"{{{{- {quote(text)} -}}}}"
            case Jump(kind):
                return f"{{%- {kind} -%}}"
            case Action(pipeline) if pipeline.variables:
                value = self._expressions.write_pipeline(pipeline)
                return self._write_assignment(pipeline, value)
            case Action(pipeline):
                return f"{{{{- {self._expressions.write_pipeline(pipeline)}|go_text -}}}}"
            case Branch("range"):
                return self._write_range(node)
            case Branch():
                return self._write_branch(node)

    def _write_assignment(self, pipeline: Pipeline, value: str) -> str:
        [variable] = pipeline.variables
        if pipeline.declares:
            return self._declare(variable, value)
        namespace = self._scopes.find(variable)
        if namespace is None:
            raise InvalidValue(
                f"`template`: the variable `${variable}` is not declared.", param="template"
            )
        return f"{{%- set {namespace}.value = {value} -%}}"

    def _declare(self, variable: str, value: str) -> str:
        return f"{{%- set {self._scopes.declare(variable)} = namespace(value={value}) -%}}"

    def _write_branch(self, branch: Branch) -> str:
        """Write `if` or `with`; both may declare a variable, and `with` changes `.`"""
        value = self._expressions.write_pipeline(branch.pipeline)
        name = self._scopes.make_name("with")
        before = f"{{%- set {name} = {value} -%}}"
        is_with = branch.kind == "with"
        with self._scopes.open_block():
            if branch.pipeline.variables:
                before += self._write_assignment(branch.pipeline, name)
            with self._scopes.open_block(name if is_with else None):
                body = self.write(branch.body)
            with self._scopes.open_block():
                otherwise = self.write(branch.otherwise)
        if not is_with and not branch.pipeline.variables:
            before, name = "", value
        rest = f"{{%- else -%}}{otherwise}" if otherwise else ""
        return f"{before}{{%- if {name} -%}}{body}{rest}{{%- endif -%}}"

    def _write_range(self, branch: Branch) -> str:
        value = self._expressions.write_pipeline(branch.pipeline)
        key, item = self._scopes.make_name("key"), self._scopes.make_name("item")
        with self._scopes.open_block(item):
            names = (key, item) if len(branch.pipeline.variables) == 2 else (item,)
            before = "".join(
                self._write_assignment(Pipeline((), (variable,), branch.pipeline.declares), name)
                for variable, name in zip(branch.pipeline.variables, names, strict=False)
            )
            body = before + self.write(branch.body)
        with self._scopes.open_block():
            otherwise = self.write(branch.otherwise)
        rest = f"{{%- else -%}}{otherwise}" if otherwise else ""
        return f"{{%- for {key}, {item} in {value}|go_items -%}}{body}{rest}{{%- endfor -%}}"
