"""Answers with one damaged call, in every format, and the laws that the parser must keep.

`make_answer` writes a valid answer of one to four calls, with text and reasoning around them, and
damages one call in a way in which models do (`damage_catalogue`). `find_violations` parses it and
returns the laws that the result breaks:

- every other call, and the text and reasoning around the calls, are as they were written;
- damage that leaves no doubt about what is meant (`REPAIRED`) changes neither call nor text;
- the damaged call is at most one call; its name, keys and values were in the text;
- no marker of the call is part of an argument;
- no word is lost: what the call does not take is text;
- however the answer is cut into pieces, the result is the same.

    python -m tests.support.damage 2000     tries so many answers per format
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from msgspec import Struct

from dragoman.formats import find_tools, get_tool_formats
from dragoman.output.library import OutputParser
from dragoman.testing.format_checks import ParsedOutput, fold_spans, parse_pieces
from tests.support.answers import AnswerWriter, WrittenCall
from tests.support.damage_catalogue import DAMAGES, REPAIRED, UNENDED

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": "string"},
        "place": {"type": "object", "properties": {"label": {"type": "string"}}},
        "stays": {"type": "array", "items": {"type": "object"}},
    },
}
NAMES = ("get_weather", "find_hotel", "book", "write_note")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
WORDS = ("Paris", "Oslo", "Lagos", "Quito", "Turin", "Kyoto")
REASONING = "I look it up."
# Without markers, an answer that does not start with a proper call is text.
UNMARKED = frozenset(
    name
    for name, entry in get_tool_formats().items()
    if entry.unmarked_starts and not entry.section.close
)


class DamagedAnswer(Struct, frozen=True):
    """An answer with one damaged call."""

    format: str
    damage: str
    reasoning: str
    before: str  # the text before all calls
    calls: list[WrittenCall]
    index: int  # of the damaged call
    damaged: str  # its text
    text: str  # the whole answer
    after: str  # the text after all calls

    @property
    def words(self) -> str:
        """The text around the calls, without white space."""
        return "".join((self.before + self.after).split())

    def make_parser(self) -> OutputParser:
        return OutputParser(self.format, "think" if self.reasoning else None, tools=TOOLS)


def make_arguments(random: Random) -> dict[str, Any]:
    makers: dict[str, Callable[[], Any]] = {
        "city": lambda: random.choice(WORDS),
        "days": lambda: random.randrange(100),
        "metric": lambda: random.random() < 0.5,
        "tags": lambda: random.sample(WORDS, random.randrange(1, 3)),
        "note": lambda: " ".join(random.sample(WORDS, 3)),
        "place": lambda: {"label": random.choice(WORDS), "size": random.randrange(9)},
        "stays": lambda: [{"at": word} for word in random.sample(WORDS, random.randrange(1, 3))],
    }
    return {key: makers[key]() for key in random.sample(list(makers), random.randrange(1, 4))}


def make_answer(name: str, random: Random, damage: str | None = None) -> DamagedAnswer:
    """Make an answer; the same state of `random` makes the same one."""
    tool_format = find_tools(name)
    writer = AnswerWriter(tool_format)
    count = 1 if tool_format.unmarked_at_start else random.randrange(1, 5)
    calls = [
        writer.write_call(random.choice(NAMES), make_arguments(random), number)
        for number in range(count)
    ]
    index = random.randrange(count)
    damage = random.choice(list(DAMAGES)) if damage is None else damage
    texts = [call.text for call in calls]
    texts[index] = DAMAGES[damage](calls[index], tool_format, random)
    is_plain = tool_format.header is None and not tool_format.unmarked_at_start
    reasoning = random.choice(("", REASONING)) if is_plain else ""
    before = random.choice(("", "First this. ")) if is_plain else ""
    is_ended = bool(tool_format.section.close) and damage not in UNENDED
    after = random.choice(("", "\nThat is all.")) if is_plain and is_ended else ""
    section = writer.separator.join(texts)
    if writer.has_sections:
        section = writer.open_section(calls[0].name) + section + writer.close_section()
    return DamagedAnswer(
        format=name,
        damage=damage,
        reasoning=reasoning,
        before=before,
        calls=calls,
        index=index,
        damaged=texts[index],
        text=f"<think>{reasoning}</think>" * bool(reasoning) + before + section + after,
        after=after,
    )


# the laws


def parse(answer: DamagedAnswer, size: int = 0) -> ParsedOutput:
    """Parse an answer as a whole, or in pieces of this size."""
    text, step = answer.text, size or len(answer.text)
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    return fold_spans(parse_pieces(answer.make_parser(), pieces))


def find_violations(answer: DamagedAnswer) -> list[str]:
    """Return which laws the parser breaks."""
    output = parse(answer)
    broken = [] if all(parse(answer, size) == output for size in (1, 5)) else ["cuts change it"]
    parsed: list[tuple[str, Any]] = []
    for name, arguments in output.raw_calls:
        try:
            parsed.append((name, json.loads(arguments)))
        except ValueError:
            return [*broken, "arguments are not JSON"]
    broken += check_calls(parsed, answer)
    if not output.text.lstrip().startswith(answer.before.strip()):
        broken.append("the text before the calls changed")
    if not output.text.rstrip().endswith(answer.after.strip()):
        broken.append("the text after the calls changed")
    if answer.damage in REPAIRED and "".join(output.text.split()) != answer.words:
        broken.append("markup became text")
    if output.reasoning != answer.reasoning:
        broken.append("the reasoning changed")
    # as text: of two values for one key, the raw arguments keep both
    kept = output.text + "".join(arguments for _, arguments in output.raw_calls)
    words = re.findall(r"[A-Z][a-z]+", answer.damaged)
    if any(word in WORDS and word not in kept for word in words):
        broken.append("a word was lost")
    return broken


def check_calls(parsed: list[tuple[str, Any]], answer: DamagedAnswer) -> list[str]:
    others = [call for number, call in enumerate(answer.calls) if number != answer.index]
    expected = [(call.name, call.arguments) for call in others]
    found = find_damaged(parsed, expected, answer.index)
    if found is None:
        is_text = not parsed and answer.format in UNMARKED and answer.index == 0
        return [] if is_text else ["another call changed"]
    if len(found) > 1:
        return ["a call was invented"]
    written = answer.calls[answer.index]
    if answer.damage in REPAIRED and found != [(written.name, written.arguments)]:
        return ["the call was not repaired"]
    return [broken for call in found for broken in check_damaged(call, answer)]


def find_damaged(
    parsed: list[tuple[str, Any]], others: list[tuple[str, Any]], index: int
) -> list[tuple[str, Any]] | None:
    """Return the calls in the place of the damaged one; None if the others are not all there."""
    before, after = others[:index], others[index:]
    if len(parsed) < len(others) or parsed[: len(before)] != before:
        return None
    rest = parsed[len(before) :]
    if after and rest[-len(after) :] != after:
        return None
    return rest[: len(rest) - len(after)]


def check_damaged(call: tuple[str, Any], answer: DamagedAnswer) -> Iterator[str]:
    name, arguments = call
    written = answer.calls[answer.index]
    text = answer.text[answer.text.index(answer.damaged) :].replace('\\"', '"')
    if name not in answer.damaged:
        yield "a name was invented"
    if not isinstance(arguments, dict):
        yield "arguments are not an object"
        return
    markers = [marker for marker in (written.opening.strip(), written.closing.strip()) if marker]
    for key, value in arguments.items():
        if key not in answer.damaged:
            yield "a key was invented"
        for leaf in list_leaves(value):
            shown = leaf if isinstance(leaf, str) else json.dumps(leaf)
            if any(len(marker) > 3 and marker in shown for marker in markers):
                yield "a marker became part of an argument"
            if not shown and not EMPTY.search(answer.damaged):
                yield "an empty string was invented"
            if isinstance(leaf, float):
                shown = shown.removesuffix("0")  # Python writes `25.`
            if shown.strip().lower() not in text.lower():
                yield "a value was invented"


EMPTY = re.compile(r"""["']["']|><|["'>]\W*$""")


def list_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from list_leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from list_leaves(item)
    else:
        yield value


def main(count: int) -> None:
    """Try so many answers per format; print and count those that break a law."""
    broken: Counter[str] = Counter()
    for name in get_tool_formats():
        for seed in range(count):
            answer = make_answer(name, Random(f"{name}{seed}"))
            for law in find_violations(answer):
                broken[name] += 1
                print(f"{name} {seed}, {answer.damage}: {law}\n    {answer.text!r}")
    print(f"{sum(broken.values())} violations in {count * len(get_tool_formats())} damaged answers")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main(int(sys.argv[1]))
