"""Grammars, patterns and choices that a client brings.

A grammar may be GBNF or Lark; which one is told, or seen: only GBNF has `::=`. It becomes a part of
a larger one, so its rules get names that nothing else has, and schemas in it are read as schemas
are read elsewhere. What two patterns both match takes the engine a time that grows with their
product, at a place that only an answer comes to; so a pattern may only be met with what single
others do not match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from dragoman.errors import BadRequest
from dragoman.grammar.complexity import is_limit_message, make_too_complex_error
from dragoman.grammar.lark_builder import LarkBuilder, quote_literal
from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.schema import schema_parser
from dragoman.grammar.writer.json_writer import JsonWriter
from dragoman.types import Constraint

MAX_GRAMMAR_LENGTH = 64 * 1024  # characters
MAX_NESTING = 256  # brackets inside each other
MAX_PATTERN_LENGTH = 4096
PREFIX = "own_"
# What is not closed goes on to the end of its line, or it would be looked for again and again.
_TEXT = r'"(?:[^"\\\n]|\\.)*+(?:"i?|(?=\n)|\Z)'
_CLASS = r"\[(?:[^\]\\\n]|\\.)*+(?:\]|(?=\n)|\Z)"
_REGEX = rf"/(?:[^/\\\n\[]|\\.|{_CLASS})++(?:/[a-z]*|(?=\n)|\Z)"
# what is no name in a grammar, before names
_LARK = re.compile(
    rf"{_TEXT}|{_REGEX}"
    r"|(?P<comment>//[^\n]*|\#[^\n]*)"
    r"|<[^>\s]{0,256}>"
    r"|(?P<order>%\w+)"
    r"|::\w+\([^)]{0,256}\)|::\w+"
    rf"|(?P<meet>&(?!\s*~\s*(?:{_TEXT}|{_REGEX})[ \t]*(?:[&|)\r\n]|//|\#|\Z)))"
    r"|(?P<name>!?[A-Za-z_][A-Za-z0-9_\-]*)"
)
_OPTIONS = re.compile(r"\s*\[(?:[^\]\"/]|\"(?:[^\"\\]|\\.)*\"|/(?:[^/\\]|\\.)*/)*\]\s*:")
_GBNF = re.compile(rf"{_TEXT}|{_CLASS}|#[^\n]*")
_IMPORT = re.compile(r"%import([^\n]*)")
_HEADER = re.compile(r"\s*%llguidance(?=\s*\{)")
_CONDITION = re.compile(r"[^|\n]*")
_JSON = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}]')


def write_constraint(lark: LarkBuilder, shape: Constraint, warnings: list[str]) -> str:
    """The content that a shape demands, as an expression."""
    match shape.kind:
        case "choice":
            return lark.add_terminal(" | ".join(map(quote_literal, shape.value)), "CHOICE")
        case "regex":
            return lark.add_terminal(f"/{read_regex(shape)}/", "PATTERN")
    return include_grammar(lark, shape, warnings)


def read_regex(shape: Constraint) -> str:
    """A pattern that matches all of the content; anchors say what is so anyhow."""
    said: str = shape.value
    if len(said) > MAX_PATTERN_LENGTH:
        raise make_too_complex_error(shape.param, f"is longer than {MAX_PATTERN_LENGTH} characters")
    found = to_full_match(said, whole=True)
    _validate(f"start: /{found}/", shape)
    return found


def read_grammar(shape: Constraint) -> str:
    """A client's grammar in Lark, without its header."""
    said: str = shape.value
    if not said.strip() or len(said) > MAX_GRAMMAR_LENGTH:
        raise _invalid_grammar(
            shape, f"The grammar is empty, or longer than {MAX_GRAMMAR_LENGTH:,} characters."
        )
    language = shape.language or ("gbnf" if "::=" in said and "%llguidance" not in said else "lark")
    if nesting_depth(said, language) > MAX_NESTING:
        raise _invalid_grammar(shape, "The grammar is nested too deeply.")
    if language == "gbnf":
        said = _convert_gbnf(said, shape)
    header = _HEADER.match(said)
    if header is not None:
        said = said[_find_block_end(said, header.end()) :]
    if re.search(r"(?m)^\s*!?start\b", said) is None:
        raise _invalid_grammar(shape, "The grammar has no rule called `start`.")
    _validate(_blank_schemas(said), shape)
    return said


def include_grammar(lark: LarkBuilder, shape: Constraint, warnings: list[str]) -> str:
    """The start of a client's grammar, whose rules were added."""

    def read(text: str) -> str:
        """A schema inside the grammar."""
        try:
            said = json.loads(text)
        except ValueError:
            raise _invalid_grammar(shape, "A schema in the grammar is not valid JSON.") from None
        checked = schema_parser.parse_schema(said, param=shape.param, strict=False)
        warnings.extend(checked.warnings)
        return JsonWriter(lark, dict(checked.definitions), ordered=True).write_value(checked.root)

    lark.include(_rename_rules(read_grammar(shape), shape, read))
    return f"{PREFIX}start"


def _convert_gbnf(said: str, shape: Constraint) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(said))
    except RecursionError:
        raise _invalid_grammar(shape, "The grammar is nested too deeply.") from None
    except Exception as error:
        line = str(error).strip().splitlines()
        raise _invalid_grammar(
            shape, f"The grammar cannot be read: {line[0][:200] if line else ''}"
        ) from None


def _validate(said: str, shape: Constraint) -> None:
    """Refuse what cannot be read, and say where, before it becomes part of something larger."""
    from llguidance import LLMatcher

    wrong = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(said))
    if wrong and is_limit_message(wrong):
        raise make_too_complex_error(shape.param)
    if wrong:
        raise _invalid_grammar(shape, f"`{shape.param}` cannot be read: {_extract_reason(wrong)}")


def _extract_reason(wrong: str) -> str:
    lines = [line.strip() for line in wrong.splitlines()]
    told = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    first = re.sub(r"^(?:at )?([0-9]+)\([0-9]+\):", r"line \1:", lines[0])
    return next(told, first)[:200]


def _blank_schemas(said: str) -> str:
    """A grammar of as many lines, in which every schema allows anything."""
    out, at = [], 0
    for found in _LARK.finditer(said):
        if found.group() == "%json" and found.start() >= at:
            end = _find_block_end(said, found.end())
            lines = said.count("\n", found.end(), end)
            out.append(said[at : found.end()] + " {" + "\n" * lines + "}")
            at = end
    return "".join(out) + said[at:]


def _rename_rules(said: str, shape: Constraint, read: Callable[[str], str]) -> str:
    """A grammar whose names cannot be met elsewhere."""
    kept = {word for line in _IMPORT.findall(said) for word in re.findall(r"\w+", line)}
    out, at = [], 0
    while found := _LARK.search(said, at):
        out.append(said[at : found.start()])
        text, name, at = found.group(), found["name"], found.end()
        if found["order"] is not None:
            end = _find_directive_end(text, said, at)
            out.append(_rewrite_directive(text, said[at:end], shape, read))
            at = end
        elif found["meet"] is not None:
            raise _invalid_grammar(
                shape, "In a grammar, `&` must come before a `~` and one pattern."
            )
        elif name is not None and name not in kept:
            options = _OPTIONS.match(said, at)
            out += [_prefix_name(name), options.group() if options is not None else ""]
            at = at if options is None else options.end()
        elif found["comment"] is None:
            out.append(text)
    return "".join(out) + said[at:]


def _rewrite_directive(
    order: str, block: str, shape: Constraint, read: Callable[[str], str]
) -> str:
    """An order to the reader of the grammar, and what it is about."""
    if order == "%json":
        return f" ({read(block)}) "
    if order not in ("%regex", "%import", "%ignore", "%if"):
        raise _invalid_grammar(shape, f"`{order[:32]}` is not supported in a grammar.")
    return order + block


def _prefix_name(name: str) -> str:
    mark = "!" if name.startswith("!") else ""
    name = name.lstrip("!")
    return f"{mark}{PREFIX.upper() if name[0].isupper() or name.isupper() else PREFIX}{name}"


def _find_directive_end(order: str, said: str, at: int) -> int:
    """Where that ends which an order is about."""
    if order in ("%json", "%regex"):
        return _find_block_end(said, at)
    condition = _CONDITION.match(said, at) if order == "%if" else None
    return at if condition is None else condition.end()


def _find_block_end(said: str, at: int) -> int:
    """Where a block of JSON ends."""
    level = 0
    for found in _JSON.finditer(said, at):
        level += {"{": 1, "}": -1}.get(found.group(), 0)
        if level == 0 and found.group() == "}":
            return found.end()
    return len(said)


def nesting_depth(grammar: str, language: str) -> int:
    """How deep brackets stand inside each other, quoted ones apart."""
    level = deepest = 0
    for letter in (_GBNF if language == "gbnf" else _LARK).sub("", grammar):
        if letter in "([{":
            level += 1
            deepest = max(deepest, level)
        elif letter in ")]}":
            level -= 1
    return deepest


def _invalid_grammar(shape: Constraint, message: str) -> BadRequest:
    return BadRequest(message, param=shape.param, code="invalid_grammar")
