"""Compiles one `GrammarSpec`: a plain function, which a worker process runs.

The schemas of the tools and the constraint on the content are parsed into nodes; the writers turn
those, and the description of the model's output format, into rules; the finished grammar is
verified. Errors name the request field that they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from dragoman.errors import InvalidGrammar, UnsupportedKeyword
from dragoman.formats import find_tools
from dragoman.grammar.banned_text import write_without_strings
from dragoman.grammar.client.constraint import write_constraint
from dragoman.grammar.compiler.verify import Verdict, verify
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.grammar.lark_builder import LarkBuilder
from dragoman.grammar.regex.full_match import is_supported_pattern
from dragoman.grammar.schema.closed_objects import close_objects
from dragoman.grammar.schema.nodes import Object
from dragoman.grammar.schema.schema_parser import parse_schema
from dragoman.grammar.writer.answer_writer import AnswerWriter
from dragoman.grammar.writer.call_writer import CallWriter
from dragoman.grammar.writer.free_text_tools import build_arguments
from dragoman.grammar.writer.json_writer import JsonWriter
from dragoman.grammar.writer.message_writer import HeaderWriter, MessageWriter
from dragoman.grammar.writer.tool_adapter import adapt_tool
from dragoman.grammar.writer.tool_names import ParsedTool
from dragoman.output.library import combine_formats
from dragoman.output.rules import FormatRules
from dragoman.types import Constraint, Json, Tool

MAX_GRAMMAR_LENGTH = 1 << 19  # characters; parsing one blocks the engine for a proportional time
MAX_PARTS = 64  # parts of a rejected spec that are tried one by one


def compile_grammar(spec: GrammarSpec) -> CompiledGrammar:
    """Write and verify the grammar of a spec; raise `BadRequest` if the spec is at fault."""
    is_supported_pattern.cache_clear()  # its time must not tell what patterns other owners use
    warnings: list[str] = []
    tools = [_parse_tool(tool, spec.tool_format, warnings) for tool in spec.tools]
    constraint = spec.constraint
    if constraint is None and not tools and not spec.banned_strings:
        return CompiledGrammar(None)
    rules = combine_formats(spec.tool_format if tools else None, spec.reasoning_format)
    lark = LarkBuilder(spec.special_tokens)
    content = None if constraint is None else _write_content(lark, constraint, rules, warnings)
    grammar = lark.build(_write_start(lark, spec, rules, tools, content))
    if len(grammar) > MAX_GRAMMAR_LENGTH:
        raise make_too_complex_error(spec.param)
    verdict = verify(grammar)
    if verdict != "ok":
        _raise_error(spec, verdict)
    return CompiledGrammar(
        grammar,
        tuple(dict.fromkeys(warnings)),
        decides_end=spec.tool_choice == "required"
        or (constraint is not None and constraint.kind == "json"),
        constrains_content=constraint is not None,
    )


def _parse_tool(tool: Tool, tool_format: str | None, warnings: list[str]) -> ParsedTool:
    if tool.takes_free_text:
        param = tool.param if tool.input is None else tool.input.param
        return ParsedTool(tool.name, build_arguments(tool.input), {}, param, tool.input is not None)
    strict = bool(tool.strict)
    schema = parse_schema(tool.parameters, param=tool.param, strict=strict, for_tool=True)
    warnings += schema.warnings
    parsed = ParsedTool(tool.name, schema.root, dict(schema.definitions), tool.param, strict)
    if tool_format is None:
        return parsed
    parsed, pointers = adapt_tool(find_tools(tool_format), parsed, tool.parameters)
    for pointer in pointers:
        place = f"`{tool.param}`: `{pointer}`" if pointer else f"`{tool.param}`"
        if strict:
            raise UnsupportedKeyword(
                f"{place} cannot be fully enforced in this model's format.",
                param=tool.param,
            )
        warnings.append(f"{place} is only partly enforced in this model's format.")
    return parsed


def _write_content(
    lark: LarkBuilder, constraint: Constraint, rules: FormatRules, warnings: list[str]
) -> str:
    if constraint.kind != "json":

        def write_schema(value: Json) -> str:
            """Write a schema that stands inside a client's grammar."""
            schema = parse_schema(value, param=constraint.param, strict=False)
            warnings.extend(schema.warnings)
            writer = JsonWriter(lark, dict(schema.definitions))
            return writer.write_value(schema.root)

        return write_constraint(lark, constraint, write_schema)
    # the parser would act on a marker inside a string of the content
    banned = [
        marker
        for marker, meaning in rules.in_text.meanings.items()
        if meaning != "first" and len(marker) > 3
    ]
    if constraint.value is None:
        return JsonWriter(lark, {}, banned=banned, param=constraint.param).write_value(Object())
    value = close_objects(constraint.value) if constraint.closes_objects else constraint.value
    schema = parse_schema(value, param=constraint.param, strict=bool(constraint.strict))
    warnings += schema.warnings
    definitions = dict(schema.definitions)
    writer = JsonWriter(lark, definitions, banned=banned, param=constraint.param)
    return writer.write_value(schema.root)


def _write_start(
    lark: LarkBuilder,
    spec: GrammarSpec,
    rules: FormatRules,
    tools: Sequence[ParsedTool],
    content: str | None,
) -> str:
    """Write the rules of the whole answer; return the expression for `start`."""
    without_reasoning = spec.without_reasoning
    if spec.banned_strings:
        openers = rules.reasoning.open if without_reasoning else ()
        return write_without_strings(lark, spec.banned_strings, openers)
    starts_in_reasoning = spec.starts_in_reasoning
    if starts_in_reasoning is None:
        starts_in_reasoning = rules.reasoning.starts_inside
    starts_in_reasoning = starts_in_reasoning and not without_reasoning
    calls = None
    if tools and spec.tool_format is not None:
        calls = CallWriter(lark, find_tools(spec.tool_format), tools, spec.max_calls)
    constrained = content is not None or spec.tool_choice == "required"
    may_stay_open = not any(tool.strict for tool in tools)
    if rules.header is not None and rules.header.spellings:
        headers = HeaderWriter(
            lark, rules.header, spec.header_start or "", without_reasoning=without_reasoning
        )
        banned = rules.reasoning.open if without_reasoning else ()
        messages = MessageWriter(headers, calls, tools, banned)
        if constrained:
            return messages.write_constrained(content, starts_in_reasoning=starts_in_reasoning)
        return messages.write_free(
            starts_in_reasoning=starts_in_reasoning, may_stay_open=may_stay_open
        )
    answer = AnswerWriter(
        lark,
        rules,
        calls,
        starts_in_reasoning=starts_in_reasoning,
        without_reasoning=without_reasoning,
    )
    if constrained:
        return answer.write_constrained(content)
    return answer.write_free(may_stay_open=may_stay_open)


def _raise_error(spec: GrammarSpec, verdict: Verdict) -> NoReturn:
    """Raise the error of the part that cannot be compiled, which compiling each alone finds."""
    parts = [
        GrammarSpec(tools=(tool,), tool_choice="required", tool_format=spec.tool_format)
        for tool in spec.tools
    ]
    constraint = spec.constraint
    if constraint is not None:
        parts = [GrammarSpec(constraint=constraint), *parts]
    for part in parts if 1 < len(parts) <= MAX_PARTS else ():
        compile_grammar(part)
    if (
        verdict == "too_complex"
        or constraint is None
        or constraint.kind not in ("grammar", "regex")
    ):
        raise make_too_complex_error(spec.param)
    raise InvalidGrammar(
        f"`{constraint.param}` matches nothing: no answer can satisfy it."
        if verdict == "empty"
        else f"`{constraint.param}` is not a valid {constraint.kind}.",
        param=constraint.param,
    )
