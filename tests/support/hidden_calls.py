"""Calls that no schema constrains, hidden in text: a grammar must not allow what reads as one.

The parser repairs much that the grammar of a call does not have. `find_hidden_calls` writes calls
with invalid arguments in such ways, damaged like those of `damage_catalogue`, in places where free
text may stand: before and after calls, between them, after reasoning. Where the strict grammar of
the format allows the whole answer, the parser must read no call in it that its schema forbids.

    python -m tests.support.hidden_calls 3000     tries so many answers per format
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

from dragoman.formats import find_reasoning, find_tools, get_tool_formats
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.output.library import collect_markers
from dragoman.output.spec import GAP
from dragoman.testing.grammars import match_grammar
from dragoman.types import Tool
from tests.support.answers import AnswerWriter
from tests.support.damage_catalogue import DAMAGES
from tests.support.grammars import FormatPair, make_object

TOOLS = {
    "f": make_object("a", a={"type": "integer"}),
    "h": make_object("a", a={"type": "string"}),
}
INVALID: tuple[dict[str, Any], ...] = (
    {"wrong": 1},
    {"a": "Paris"},
    {},
    {"a": [1]},
    {"a": 1, "b": 2},
)
BETWEEN: tuple[str, ...] = (
    "",
    "\n",
    " ",
    "\n\n",
    ", ",
    "; ",
    "}",
    "]",
    "\n}",
    " Then ",
    "```\n",
    "\n```json\n",
    '"',
)
BETWEEN += ("'", ": ", "(", "<", "\x0b", "\xa0", "\ufeff", "\u200b", "</s>", "<|im_end|>", "\r\n")
BETWEEN += (">", "|", "# ", "// x\n", ">>>", "[", "{")
SPACES = ("\x0b", "\xa0", "\u2003", "\t")


def find_hidden_calls(name: str, random: Random, count: int) -> Iterator[str]:
    """Yield what is wrong with answers that the grammar of a format allows."""
    pair = FormatPair(name, TOOLS)
    tools = tuple(Tool(name=tool, parameters=schema, strict=True) for tool, schema in TOOLS.items())
    source = compile_grammar(
        GrammarSpec(
            tools=tools,
            tool_format=name,
            reasoning_format=pair.reasoning,
            starts_in_reasoning=False,
        )
    ).grammar
    assert source is not None
    markers = [
        marker
        for marker in collect_markers(find_tools(name), find_reasoning(pair.reasoning))
        if marker.replace(GAP, "")
    ]
    starts = list_starts(pair, random)
    allowed = [match_grammar(source, start)[0] for start in starts]
    for _ in range(count):
        text = random.choice(starts) + random.choice(BETWEEN)
        if random.random() < 0.3:
            text += random.choice((*BETWEEN, *markers)).replace(GAP, "")
        text += write_invalid_call(name, random, markers)
        while random.random() < 0.4:
            text += random.choice((*BETWEEN, *markers)).replace(GAP, "")
        if match_grammar(source, text)[0] and (error := find_error(pair, text)):
            yield f"{error} <= {text!r}"
    # all matches share what the grammar may cost, and none used it up
    if allowed != [match_grammar(source, start)[0] for start in starts]:
        yield "the grammar is too complex"


def find_error(pair: FormatPair, text: str) -> str | None:
    try:
        return pair.find_error(text, forced=False)
    except KeyError as error:
        return f"{error} is not declared"


def list_starts(pair: FormatPair, random: Random) -> list[str]:
    """List what may stand before the hidden call."""
    source = pair.compile(tool_choice="required", max_calls=1)
    calls = [text.rstrip() for text in pair.iter_walks(source, random, [""] * 6)]
    spec, reasoning = find_reasoning(pair.reasoning), []
    if spec.open_with_name and spec.close:
        reasoning = [f"{spec.open_with_name[0]}Hm.{spec.close[0]}"]
    starts = ["", "Well. ", "```json\n", *calls, *reasoning, *(f"Ok {call}" for call in calls)]
    starts += [call + random.choice(("\nOk. ", "\n", "; ", " ")) for call in calls]
    if calls:
        starts += [first + random.choice(("\n", "")) + random.choice(calls) for first in calls]
        starts += [thought + random.choice(calls) for thought in reasoning]
        starts += [random.choice(calls) + thought for thought in reasoning]
    return starts


def write_invalid_call(name: str, random: Random, markers: list[str]) -> str:
    """Write a damaged call with invalid arguments, in the format or in another way."""
    tool, arguments = random.choice(("f", "f", "f", "undeclared")), random.choice(INVALID)
    if random.random() < 0.6:
        text = write_damaged_call(name, tool, arguments, random)
    else:
        text = write_other_call(tool, arguments, random)
        text = f"[{text}]" if random.random() < 0.4 else text
        if random.random() < 0.3:
            text = random.choice(markers) + text
    for marker in markers:
        if GAP in marker and random.random() < 0.3:
            spaced = marker.replace(GAP, random.choice(SPACES))
            text = text.replace(marker.replace(GAP, ""), spaced).replace(marker, spaced)
            text = text.replace(marker.replace(GAP, " "), spaced)
    if random.random() < 0.15:
        text = text.replace("\n", "\r\n")
    if random.random() < 0.15:
        position = random.randrange(len(text) + 1)
        text = text[:position] + random.choice(BETWEEN) + text[position:]
    return text.replace(GAP, "")


def write_damaged_call(name: str, tool: str, arguments: dict[str, Any], random: Random) -> str:
    tool_format = find_tools(name)
    writer = AnswerWriter(tool_format)
    call = writer.write_call(tool, arguments, random.randrange(2))
    text = DAMAGES[random.choice(list(DAMAGES))](call, tool_format, random) if call.body else ""
    if writer.has_sections:
        text = writer.open_section(tool) * random.randrange(2) + text
        text += writer.close_section() * random.randrange(2)
    return text


def write_other_call(tool: str, arguments: dict[str, Any], random: Random) -> str:
    """Write a call as other formats do, with the keys and quotes that parsers forgive."""
    quote, value = random.choice("\"'"), json.dumps(arguments)
    name_key = random.choice(("name", "function", "tool_name"))
    name = f"{quote}{name_key}{quote}: {quote}{tool}{quote}"
    rest = f"{quote}{random.choice(('arguments', 'parameters', 'args', 'input'))}{quote}: {value}"
    return random.choice(
        (
            f"{{{name}, {rest}}}",
            f"{{{name}, {rest}}}".replace(quote, ""),
            f"{{{rest}, {name}}}",
            f"{{{name}}}",
            f"{name}, {rest}}}",
            f"{{{quote}id{quote}: {quote}x{quote}, {name}, {rest}}}",
            f'{{"type": "function", "function": {{{name}, {rest}}}}}',
            f"{{{name}, {rest}}}".replace(f": {quote}", f": {quote} "),
            f"{{{name}, {rest}}}".replace(": ", random.choice(("::", "=>", " = ", ":\n")), 1),
            f"{tool}({', '.join(f'{key}={item!r}' for key, item in arguments.items())})",
            f"{tool}.{tool}({', '.join(f'{key}={item!r}' for key, item in arguments.items())})",
            f"{tool}\n{value}",
            f"{tool} {value}",
            f'{{"{tool}": {value}}}',
        )
    )


def main(count: int) -> None:
    """Print and count the hidden calls that the grammar of each format allows."""
    total = 0
    for name in get_tool_formats():
        for error in find_hidden_calls(name, Random(name), count):
            total += 1
            print(f"{name}: {error}")
    print(f"{total} hidden calls in {count * len(get_tool_formats())} answers")
    sys.exit(bool(total))


if __name__ == "__main__":
    main(int(sys.argv[1]))
