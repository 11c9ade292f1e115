"""Constraints that a client sends as a grammar, a regular expression or a list of choices.

A grammar is GBNF or Lark: the client says which, or the text shows it, as only GBNF contains
`::=`. It becomes part of a larger grammar, so its rules are prefixed to keep their names unique,
and the schemas inside it are written as other schemas are.

llguidance intersects two regular expressions in time proportional to the product of their sizes,
and only when an answer reaches them. So `&` is accepted only before the complement of one pattern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeAlias

from dragoman.errors import BadRequest, InvalidGrammar
from dragoman.grammar.complexity import is_limit_message, make_too_complex_error
from dragoman.grammar.lark_builder import LarkBuilder, quote_literal
from dragoman.grammar.regex.full_match import to_full_match
from dragoman.types import Constraint, Json

MAX_GRAMMAR_LENGTH = 64 * 1024  # characters
MAX_NESTING = 256  # brackets
MAX_PATTERN_LENGTH = 4096
PREFIX = "own_"
# An unclosed string or class extends to the end of its line: backtracking would be quadratic.
_STRING = r'"(?:[^"\\\n]|\\.)*+(?:"i?|(?=\n)|\Z)'
_CLASS = r"\[(?:[^\]\\\n]|\\.)*+(?:\]|(?=\n)|\Z)"
_REGEX = rf"/(?:[^/\\\n\[]|\\.|{_CLASS})++(?:/[a-z]*|(?=\n)|\Z)"
# tokens that may contain a name come before names
_LARK_TOKEN = re.compile(
    rf"{_STRING}|{_REGEX}"
    r"|(?P<comment>//[^\n]*|\#[^\n]*)"
    r"|<[^>\s]{0,256}>"
    r"|(?P<directive>%\w+)"
    r"|::\w+\([^)]{0,256}\)|::\w+"
    rf"|(?P<intersection>&(?!\s*~\s*(?:{_STRING}|{_REGEX})[ \t]*(?:[&|)\r\n]|//|\#|\Z)))"
    r"|(?P<name>!?[A-Za-z_][A-Za-z0-9_\-]*)"
)
_RULE_OPTIONS = re.compile(r"\s*\[(?:[^\]\"/]|\"(?:[^\"\\]|\\.)*\"|/(?:[^/\\]|\\.)*/)*\]\s*:")
_GBNF_QUOTED = re.compile(rf"{_STRING}|{_CLASS}|#[^\n]*")
_IMPORT = re.compile(r"%import([^\n]*)")
_HEADER = re.compile(r"\s*%llguidance(?=\s*\{)")
_CONDITION = re.compile(r"[^|\n]*")
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}]')

WriteSchema: TypeAlias = Callable[[Json], str]  # adds the rules of a schema, returns an expression


def write_constraint(lark: LarkBuilder, constraint: Constraint, write_schema: WriteSchema) -> str:
    """Add the rules of a constraint and return the expression for the constrained text."""
    match constraint.kind:
        case "choice":
            return lark.add_terminal(" | ".join(map(quote_literal, constraint.value)), "CHOICE")
        case "regex":
            return lark.add_terminal(f"/{read_regex(constraint)}/", "PATTERN")
    return _include_grammar(lark, constraint, write_schema)


def read_regex(constraint: Constraint) -> str:
    """Validate a pattern, which must match the whole text, and remove its redundant anchors."""
    pattern: str = constraint.value
    if len(pattern) > MAX_PATTERN_LENGTH:
        problem = f"is longer than {MAX_PATTERN_LENGTH} characters"
        raise make_too_complex_error(constraint.param, problem)
    regex = to_full_match(pattern, whole=True)
    _validate(f"start: /{regex}/", constraint)
    return regex


def read_grammar(constraint: Constraint) -> str:
    """Validate a client's grammar and return it as Lark, without its header."""
    source: str = constraint.value
    if not source.strip():
        raise _make_invalid_grammar_error(constraint, "The grammar is empty.")
    if len(source) > MAX_GRAMMAR_LENGTH:
        message = f"The grammar is longer than {MAX_GRAMMAR_LENGTH:,} characters."
        raise _make_invalid_grammar_error(constraint, message)
    is_gbnf = "::=" in source and "%llguidance" not in source
    language = constraint.language or ("gbnf" if is_gbnf else "lark")
    if _measure_nesting(source, language) > MAX_NESTING:
        raise _make_invalid_grammar_error(constraint, "The grammar is nested too deeply.")
    if language == "gbnf":
        source = _convert_gbnf(source, constraint)
    header = _HEADER.match(source)
    if header is not None:
        source = source[_find_block_end(source, header.end()) :]
    if re.search(r"(?m)^\s*!?start\b", source) is None:
        raise _make_invalid_grammar_error(constraint, "The grammar has no rule called `start`.")
    _validate(_blank_schemas(source), constraint)
    return source


def _include_grammar(lark: LarkBuilder, constraint: Constraint, write_schema: WriteSchema) -> str:
    """Add the rules of a client's grammar and return the name of its start rule."""

    def write_block(block: str) -> str:
        try:
            schema = json.loads(block)
        except ValueError:
            message = "A schema in the grammar is not valid JSON."
            raise _make_invalid_grammar_error(constraint, message) from None
        return write_schema(schema)

    lark.include(_prefix_names(read_grammar(constraint), constraint, write_block))
    return f"{PREFIX}start"


def _convert_gbnf(source: str, constraint: Constraint) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(source))
    except RecursionError:
        raise _make_invalid_grammar_error(constraint, "The grammar is nested too deeply.") from None
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0][:200] if lines else ""
        raise _make_invalid_grammar_error(constraint, f"The grammar is invalid: {reason}") from None


def _validate(source: str, constraint: Constraint) -> None:
    """Reject an invalid grammar by itself: inside a larger one, line numbers would be wrong."""
    from llguidance import LLMatcher

    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(source))
    if error and is_limit_message(error):
        raise make_too_complex_error(constraint.param)
    if error:
        message = f"`{constraint.param}` is invalid: {_extract_reason(error)}"
        raise _make_invalid_grammar_error(constraint, message)


def _extract_reason(error: str) -> str:
    lines = [line.strip() for line in error.splitlines()]
    reasons = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    first_line = re.sub(r"^(?:at )?([0-9]+)\([0-9]+\):", r"line \1:", lines[0])
    return next(reasons, first_line)[:200]


def _blank_schemas(source: str) -> str:
    """Replace each schema in a grammar by `{}` with as many lines."""
    parts, position = [], 0
    for token in _LARK_TOKEN.finditer(source):
        if token.group() == "%json" and token.start() >= position:
            end = _find_block_end(source, token.end())
            lines = source.count("\n", token.end(), end)
            parts.append(source[position : token.end()] + " {" + "\n" * lines + "}")
            position = end
    return "".join(parts) + source[position:]


def _prefix_names(source: str, constraint: Constraint, write_block: Callable[[str], str]) -> str:
    """Prefix the names of all rules and terminals that a grammar defines, and write its schemas."""
    imported = {word for line in _IMPORT.findall(source) for word in re.findall(r"\w+", line)}
    parts, position = [], 0
    while token := _LARK_TOKEN.search(source, position):
        parts.append(source[position : token.start()])
        text, name, position = token.group(), token["name"], token.end()
        if token["directive"] is not None:
            end = _find_directive_end(text, source, position)
            parts.append(_rewrite_directive(text, source[position:end], constraint, write_block))
            position = end
        elif token["intersection"] is not None:
            message = "In a grammar, `&` must be followed by `~` and one pattern."
            raise _make_invalid_grammar_error(constraint, message)
        elif name is not None and name not in imported:
            options = _RULE_OPTIONS.match(source, position)
            parts += [_prefix_name(name), options.group() if options is not None else ""]
            position = position if options is None else options.end()
        elif token["comment"] is None:
            parts.append(text)
    return "".join(parts) + source[position:]


def _rewrite_directive(
    directive: str, argument: str, constraint: Constraint, write_block: Callable[[str], str]
) -> str:
    if directive == "%json":
        return f" ({write_block(argument)}) "
    if directive not in ("%regex", "%import", "%ignore", "%if"):
        message = f"`{directive[:32]}` is not supported in a grammar."
        raise _make_invalid_grammar_error(constraint, message)
    return directive + argument


def _prefix_name(name: str) -> str:
    modifier = "!" if name.startswith("!") else ""
    name = name.lstrip("!")
    is_terminal = name[0].isupper() or name.isupper()
    return f"{modifier}{PREFIX.upper() if is_terminal else PREFIX}{name}"


def _find_directive_end(directive: str, source: str, position: int) -> int:
    """Return where the argument of a directive ends."""
    if directive in ("%json", "%regex"):
        return _find_block_end(source, position)
    condition = _CONDITION.match(source, position) if directive == "%if" else None
    return position if condition is None else condition.end()


def _find_block_end(source: str, position: int) -> int:
    """Return where a JSON object ends."""
    depth = 0
    for token in _JSON_TOKEN.finditer(source, position):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0 and token.group() == "}":
            return token.end()
    return len(source)


def _measure_nesting(source: str, language: str) -> int:
    """Return how deep brackets are nested, apart from those in strings, classes and comments."""
    depth = max_depth = 0
    for char in (_GBNF_QUOTED if language == "gbnf" else _LARK_TOKEN).sub("", source):
        if char in "([{":
            depth += 1
            max_depth = max(max_depth, depth)
        elif char in ")]}":
            depth -= 1
    return max_depth


def _make_invalid_grammar_error(constraint: Constraint, message: str) -> BadRequest:
    return InvalidGrammar(message, param=constraint.param)
