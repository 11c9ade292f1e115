"""Grammars, patterns and choices that a client brings.

A grammar may be GBNF or Lark; which one is told, or seen: only GBNF has `::=`. It becomes a part of
a larger one, so its rules get names that nothing else has.
"""

from __future__ import annotations

import re

from dragoman.constraint.lark import Lark, quoted
from dragoman.constraint.texts import searched
from dragoman.errors import BadRequest
from dragoman.types import Shape

LONGEST = 256 * 1024  # characters
DEEPEST = 256  # brackets inside each other
LONGEST_PATTERN = 4096
PREFIX = "own_"
# what is no name in a grammar, before names
_LARK = re.compile(
    r'"(?:[^"\\\n]|\\.)*"i?'
    r"|/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*"
    r"|//[^\n]*|\#[^\n]*"
    r"|<[^>\s]*>"
    r"|%\w+"
    r"|::\w+\([^)]*\)|::\w+"
    r"|(?P<name>!?[A-Za-z_][A-Za-z0-9_\-]*)"
)
_OPTIONS = re.compile(r"\[(?:[^\]\"/]|\"(?:[^\"\\]|\\.)*\"|/(?:[^/\\]|\\.)*/)*\]\s*:")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]|#[^\n]*')
_IMPORT = re.compile(r"%import([^\n]*)")
_HEADER = re.compile(r"\s*%llguidance\s*\{[^}]*\}")


def written(lark: Lark, shape: Shape) -> str:
    """The content that a shape demands, as an expression."""
    match shape.kind:
        case "choice":
            return lark.terminal(" | ".join(map(quoted, shape.value)), "CHOICE")
        case "regex":
            return lark.terminal(f"/{matched(shape)}/", "PATTERN")
    return included(lark, shape)


def matched(shape: Shape) -> str:
    """A pattern that matches all of the content; anchors say what is so anyhow."""
    said: str = shape.value
    if len(said) > LONGEST_PATTERN:
        raise BadRequest(
            f"`{shape.param}` is longer than {LONGEST_PATTERN} characters.",
            param=shape.param,
            code="constraint_too_complex",
        )
    return searched(said, whole=True)


def included(lark: Lark, shape: Shape) -> str:
    """The start of a client's grammar, whose rules were added."""
    said: str = shape.value
    if not said.strip() or len(said) > LONGEST:
        raise _invalid(shape, "The grammar is empty or too long.")
    if depth(said) > DEEPEST:
        raise _invalid(shape, "The grammar is nested too deeply.")
    language = shape.language or ("gbnf" if "::=" in said and "%llguidance" not in said else "lark")
    if language == "gbnf":
        said = _converted(said, shape)
    said = _HEADER.sub("", said)
    if re.search(r"(?m)^\s*!?start\b", said) is None:
        raise _invalid(shape, "The grammar has no rule called `start`.")
    lark.include(_renamed(said))
    return f"{PREFIX}start"


def _converted(said: str, shape: Shape) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(said))
    except Exception as error:
        line = str(error).strip().splitlines()
        raise _invalid(
            shape, f"The grammar cannot be read: {line[0][:200] if line else ''}"
        ) from None


def _renamed(said: str) -> str:
    """A grammar whose names cannot be met elsewhere."""
    kept = {word for line in _IMPORT.findall(said) for word in re.findall(r"\w+", line)}
    out, at = [], 0
    while at < len(said):
        found = _LARK.search(said, at)
        if found is None:
            break
        out.append(said[at : found.start()])
        at = found.end()
        name = found["name"]
        if found.group() in ("%json", "%regex", "%llguidance"):
            end = _block(said, at)
            out.append(found.group() + said[at:end])
            at = end
        elif name is None or name in kept:
            out.append(found.group())
        else:
            options = re.match(r"\s*\[", said[at:])
            out.append(_own(name))
            if options is not None and _OPTIONS.match(said, at):
                end = _OPTIONS.match(said, at).end()  # type: ignore[union-attr]
                out.append(said[at:end])
                at = end
    return "".join(out) + said[at:]


def _own(name: str) -> str:
    mark = "!" if name.startswith("!") else ""
    name = name.lstrip("!")
    return f"{mark}{PREFIX.upper() if name[0].isupper() or name.isupper() else PREFIX}{name}"


def _block(said: str, at: int) -> int:
    """Where a block of JSON ends."""
    level = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}]', said[at:]):
        level += {"{": 1, "}": -1}.get(found.group(), 0)
        if level == 0 and found.group() == "}":
            return at + found.end()
    return len(said)


def depth(grammar: str) -> int:
    """How deep brackets stand inside each other, quoted ones apart."""
    level = deepest = 0
    for letter in _QUOTED.sub("", grammar):
        if letter in "([{":
            level += 1
            deepest = max(deepest, level)
        elif letter in ")]}":
            level -= 1
    return deepest


def _invalid(shape: Shape, message: str) -> BadRequest:
    return BadRequest(message, param=shape.param, code="invalid_grammar")
