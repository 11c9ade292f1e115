"""One order in, one grammar out: the plain function that a worker runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from dragoman.errors import BadRequest
from dragoman.formats import find_tools
from dragoman.grammar.client.constraint import written
from dragoman.grammar.compiler.verify import Verdict, verify
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.grammar.lark_builder import LarkBuilder
from dragoman.grammar.schema import schema_parser
from dragoman.grammar.schema.nodes import Object
from dragoman.grammar.writer.answer_writer import AnswerWriter
from dragoman.grammar.writer.call_writer import CallWriter
from dragoman.grammar.writer.free_text_tools import build_arguments
from dragoman.grammar.writer.json_writer import JsonWriter
from dragoman.grammar.writer.message_writer import HeaderWriter, MessageWriter
from dragoman.grammar.writer.tool_adapter import adapt_tool
from dragoman.grammar.writer.tool_names import ParsedTool
from dragoman.output.library import combine_formats
from dragoman.output.rules import FormatRules
from dragoman.types import Constraint, Tool

MAX_GRAMMAR_LENGTH = (
    1 << 19
)  # characters of a grammar: engines take as long to read it, and all wait
MAX_PARTS = 64  # that are tried one by one


def compile_grammar(order: GrammarSpec) -> CompiledGrammar:
    """The grammar of an order; what is wrong with the order is a `BadRequest`."""
    warnings: list[str] = []
    offers = [_parse_tool(tool, order.tool_format, warnings) for tool in order.tools]
    if order.constraint is None and not offers:
        return CompiledGrammar(None)
    both = combine_formats(order.tool_format if offers else None, order.reasoning_format)
    lark = LarkBuilder(order.special_tokens)
    content = (
        None if order.constraint is None else _write_content(lark, order.constraint, both, warnings)
    )
    grammar = lark.build(_write_start(lark, order, both, offers, content))
    if len(grammar) > MAX_GRAMMAR_LENGTH:
        raise _too_complex(order)
    said = verify(grammar)
    if said != "fine":
        _raise_error(order, said)
    ends = order.tool_choice == "required" or (
        order.constraint is not None and order.constraint.kind == "json"
    )
    return CompiledGrammar(
        grammar, tuple(dict.fromkeys(warnings)), ends, order.constraint is not None
    )


def _parse_tool(tool: Tool, written: str | None, warnings: list[str]) -> ParsedTool:
    if tool.takes_free_text:
        at = tool.param if tool.input is None else tool.input.param
        return ParsedTool(tool.name, build_arguments(tool.input), {}, at, tool.input is not None)
    strict = bool(tool.strict)
    checked = schema_parser.parse_schema(tool.parameters, param=tool.param, strict=strict, for_tool=True)
    warnings += checked.warnings
    offer = ParsedTool(tool.name, checked.root, dict(checked.definitions), tool.param, strict)
    if written is None:
        return offer
    offer, loose = adapt_tool(find_tools(written), offer, tool.parameters)
    for where in loose:
        place = f"`{tool.param}`: `{where}`" if where else f"`{tool.param}`"
        why = f"{place} cannot be enforced as a whole in this model's format"
        if strict:
            raise BadRequest(f"{why}.", param=tool.param, code="unsupported_keyword")
        warnings.append(f"{why}: parts of it are not.")
    return offer


def _write_content(
    lark: LarkBuilder, shape: Constraint, both: FormatRules, warnings: list[str]
) -> str:
    if shape.kind != "json":
        return written(lark, shape, warnings)
    # a mark in a text of the content would mean to the parser what it means elsewhere
    banned = [
        mark for mark, what in both.in_text.meanings.items() if what != "first" and len(mark) > 3
    ]
    if shape.value is None:
        return JsonWriter(lark, {}, banned=banned, at=shape.param).write_value(Object())
    checked = schema_parser.parse_schema(shape.value, param=shape.param, strict=bool(shape.strict))
    warnings += checked.warnings
    definitions = dict(checked.definitions)
    writer = JsonWriter(lark, definitions, ordered=True, banned=banned, at=shape.param)
    return writer.write_value(checked.root)


def _write_start(
    lark: LarkBuilder,
    order: GrammarSpec,
    both: FormatRules,
    offers: Sequence[ParsedTool],
    content: str | None,
) -> str:
    inside = (
        both.reasoning.starts_inside
        if order.starts_in_reasoning is None
        else order.starts_in_reasoning
    )
    inside, silent = inside and not order.without_reasoning, order.without_reasoning
    calls = None
    if offers and order.tool_format is not None:
        calls = CallWriter(
            lark, find_tools(order.tool_format), offers, parallel=order.parallel_calls
        )
    demanded = content is not None or order.tool_choice == "required"
    endless = not any(offer.strict for offer in offers)
    if both.header is not None and both.header.spellings:
        heads = HeaderWriter(lark, both.header, order.header_start or "", silent=silent)
        messages = MessageWriter(heads, calls, offers, both.reasoning.open if silent else ())
        if demanded:
            return messages.write_constrained(content, inside=inside, parallel=order.parallel_calls)
        return messages.write_free(inside=inside, parallel=order.parallel_calls, endless=endless)
    answer = AnswerWriter(lark, both, calls, inside=inside, silent=silent)
    if demanded:
        return answer.write_constrained(content)
    return answer.write_free(parallel=order.parallel_calls, endless=endless)


def _raise_error(order: GrammarSpec, said: Verdict) -> NoReturn:
    """Say which part of an order cannot be compiled: each is tried by itself."""
    parts = [
        GrammarSpec(tools=(tool,), tool_choice="required", tool_format=order.tool_format)
        for tool in order.tools
    ]
    if order.constraint is not None:
        parts = [GrammarSpec(constraint=order.constraint), *parts]
    for part in parts if 1 < len(parts) <= MAX_PARTS else ():
        compile_grammar(part)
    shape = order.constraint
    if said == "costly" or shape is None or shape.kind not in ("grammar", "regex"):
        raise _too_complex(order)
    nothing = f"`{shape.param}` leads nowhere: nothing fits it."
    raise BadRequest(
        nothing if said == "nowhere" else f"`{shape.param}` cannot be read as a {shape.kind}.",
        param=shape.param,
        code="invalid_grammar",
    )


def _too_complex(order: GrammarSpec) -> BadRequest:
    at = "tools"
    if len(order.tools) == 1:
        [tool] = order.tools
        at = tool.param if tool.input is None else tool.input.param
    return BadRequest(
        "This cannot be compiled into a grammar: it is too large or too complex.",
        param=at if order.constraint is None else order.constraint.param,
        code="constraint_too_complex",
    )
