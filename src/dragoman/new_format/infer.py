"""Infers a format from an answer: proposes formats, and tries them with the parser.

A proposal is a place of the arguments, a place of the name, and a way to divide the markers around
both into those of a section and those of a call. Only a format that reads the whole answer counts:
every call, and nothing but prose besides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from dragoman.new_format.arguments import (
    ElementArguments,
    ObjectArguments,
    PythonArguments,
    TagArguments,
    find_elements,
    find_objects,
    find_python_calls,
    find_tag_arguments,
)
from dragoman.new_format.example import add_example
from dragoman.new_format.markup import (
    find_tags,
    join_markers,
    split_markers_after,
    split_markers_before,
)
from dragoman.new_format.names import NameSlot, find_names
from dragoman.new_format.readers import (
    Declarations,
    Reading,
    list_names,
    list_reasoning,
    read_answer,
    read_schemas,
)
from dragoman.output.library import OutputParser
from dragoman.output.spec import (
    CallBody,
    Evidence,
    JsonObjects,
    MarkerPair,
    NamedObject,
    NestedElements,
    PythonCalls,
    ReasoningFormat,
    TaggedArguments,
    ToolFormat,
    Trim,
)
from dragoman.testing.format_checks import fold_spans, parse_pieces
from dragoman.types import Json

NAME_KEYS = ("name", "tool_name", "function", "tool", "function_name", "action", "recipient_name")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "params", "input", "kwargs", "action_input")
MAX_GROUPS = 4  # places of the first argument that are tried
EVIDENCE: Evidence = "assumed"
SOURCES = "an answer of the model"
PIECES = (1, 2, 3, 7)  # characters; the pieces of an answer never change what is read
IDENTIFIER = re.compile(r"[A-Za-z_][\w.-]*")
# an attribute that gives the type of a value: string="true", type="number"
TYPE_ATTRIBUTE = re.compile(r"\s+(?P<attribute>string|type)=(?P<quote>[\"']?)\w+(?P=quote)\s*")


@dataclass(frozen=True)
class InferredFormat:
    """A format that reads an answer, and what it reads."""

    tools: ToolFormat
    reading: Reading
    summary: str  # how a call is written, in a sentence


@dataclass(frozen=True)
class Proposal:
    """A body of calls, and the markers around the first and after the last."""

    body: CallBody
    before: list[str]
    after: list[str]
    summary: str


def infer_format(name: str, answer: str, declared: Declarations | None) -> InferredFormat | None:
    """Return a format that reads an answer, or None."""
    known = list_names(declared)
    for reasoning in list_reasoning(name, answer):
        text = read_answer(None, reasoning, answer, None).text if reasoning else answer
        found = [
            InferredFormat(tools, reading, summary)
            for tools, summary in _list_formats(name, text, known)
            if (reading := read_answer(tools, reasoning, answer, declared)).is_complete
        ]
        # of formats that read the same, the first is the most specific
        found.sort(key=lambda inferred: _rate_reading(inferred.reading, declared), reverse=True)
        for inferred in found:
            if _reads_all_pieces_alike(inferred, answer, declared):
                return inferred
    return None


def describe_format(inferred: InferredFormat, models: str) -> InferredFormat:
    """Add what a reader of the format wants to know: its models, and how sure it is."""
    reasoning = inferred.reading.reasoning
    own = isinstance(reasoning, ReasoningFormat)
    tools = replace(
        inferred.tools,
        models=models,
        default_reasoning=inferred.tools.name if own else str(reasoning or ""),
        evidence=EVIDENCE,
        sources=SOURCES,
    )
    if isinstance(reasoning, ReasoningFormat):
        reasoning = replace(reasoning, models=models, evidence=EVIDENCE, sources=SOURCES)
    return replace(inferred, tools=tools, reading=replace(inferred.reading, reasoning=reasoning))


def _list_formats(name: str, text: str, known: Collection[str]) -> Iterator[tuple[ToolFormat, str]]:
    for proposal in _propose(text, known):
        for tools in _divide_markers(name, proposal):
            yield add_example(tools, text), proposal.summary


def _rate_reading(reading: Reading, declared: Declarations | None) -> tuple[int, int]:
    """Return how many calls a format reads, and how many of their arguments are declared."""
    arguments = [(name, key) for name, text in reading.calls for key in json.loads(text)]
    parameters = {
        (name, key)
        for name, schema in read_schemas(declared).items()
        for key in schema.get("properties", {})
    }
    return len(reading.calls), sum(argument in parameters for argument in arguments)


def _reads_all_pieces_alike(
    inferred: InferredFormat, answer: str, declared: Declarations | None
) -> bool:
    outputs = [
        fold_spans(
            parse_pieces(
                OutputParser(inferred.tools, inferred.reading.reasoning, tools=declared),
                [answer[start : start + size] for start in range(0, len(answer), size)],
            )
        )
        for size in PIECES
    ]
    return all(tuple(output.raw_calls) == inferred.reading.calls for output in outputs)


def _propose(text: str, known: Collection[str]) -> Iterator[Proposal]:
    """Yield proposals, the most specific first."""
    objects = find_objects(text)
    yield from _propose_envelopes(text, objects, known)
    yield from _propose_named_objects(text, objects, known)
    for groups in find_tag_arguments(text):
        yield from _propose_tags(text, groups, known)
    yield from _propose_elements(text, find_elements(text), known)
    calls = find_python_calls(text)
    if calls is not None:
        yield _propose_python(text, calls)


# a name and arguments in one object


def _propose_envelopes(
    text: str, objects: Sequence[ObjectArguments], known: Collection[str]
) -> Iterator[Proposal]:
    for index, found in enumerate(objects):
        entries = found.value if isinstance(found.value, list) else [found.value]
        bodies = [_read_envelope(entry, known, found.is_python) for entry in entries]
        body = bodies[0] if bodies else None
        if body is None or any(other != body for other in bodies):
            continue
        last = objects[-1] if objects[-1].end >= found.end else objects[index]
        yield Proposal(
            body,
            split_markers_before(text[: found.start]),
            split_markers_after(text[last.end :]),
            "A JSON object between markers."
            if not body.keyed
            else "The name is a key of an object.",
        )
        return


def _read_envelope(value: Json, known: Collection[str], is_python: bool) -> JsonObjects | None:
    """Return the keys of an object that names a tool and its arguments."""
    if not isinstance(value, dict):
        return None
    names = [key for key, item in value.items() if _is_name(key, item, known)]
    arguments = [key for key, item in value.items() if isinstance(item, dict | str)]
    arguments = [key for key in arguments if key in ARGUMENT_KEYS or isinstance(value[key], dict)]
    arguments.sort(key=lambda key: ARGUMENT_KEYS.index(key) if key in ARGUMENT_KEYS else 99)
    if names and arguments and names[0] != arguments[0]:
        default = JsonObjects(python=is_python)
        ids = [key for key in value if key.lower().endswith("id")]
        return replace(
            default,
            name=default.name if names[0] in default.name else (names[0],),
            arguments=default.arguments if arguments[0] in default.arguments else (arguments[0],),
            id=default.id if not ids or ids[0] in default.id else (ids[0],),
        )
    keys = list(value)
    is_keyed = len(keys) == 1 and isinstance(value[keys[0]], dict)
    if is_keyed and (keys[0] in known if known else IDENTIFIER.fullmatch(keys[0])):
        return JsonObjects(keyed=True, python=is_python)
    return None


def _is_name(key: str, value: Json, known: Collection[str]) -> bool:
    if not isinstance(value, str) or not IDENTIFIER.fullmatch(value):
        return False
    return value in known if known else key in NAME_KEYS


# a name, and then the arguments


def _propose_named_objects(
    text: str, objects: Sequence[ObjectArguments], known: Collection[str]
) -> Iterator[Proposal]:
    for found in objects:
        if isinstance(found.value, list) or _read_envelope(found.value, known, False) is not None:
            continue
        for slot in find_names(text, found.start, known):
            after = _find_ending(text[objects[-1].end :], slot)
            fence = ("```",) if "```" in slot.end_marker and after[:1] == ["```"] else ()
            body = NamedObject(
                name_ends=_make_name_ends(slot),
                name_pattern=slot.pattern,
                spellings=(slot.spelling,),
                fence=fence,
                unquoted_values=found.is_unquoted,
                string_markers=_find_string_markers(text[found.start : found.end]),
            )
            summary = "A name, and the arguments as one object."
            yield Proposal(body, slot.before, after[1:] if fence else after, summary)
        return


def _find_ending(rest: str, slot: NameSlot) -> list[str]:
    """Return the markers after the last arguments, and the bracket of `NAME({…})`."""
    if slot.end_marker == "(" and rest.lstrip().startswith(")"):
        return [")", *split_markers_after(rest.lstrip()[1:])]
    return split_markers_after(rest)


def _find_string_markers(text: str) -> tuple[str, ...]:
    """Return the marker around strings in an object, if there is one instead of quotes."""
    tags = [tag.text for tag in find_tags(text)]
    is_pair = len(tags) > 1 and len(tags) % 2 == 0 and len(set(tags)) == 1
    return (tags[0],) if is_pair and '"' not in text.replace(tags[0], "") else ()


def _make_name_ends(slot: NameSlot) -> tuple[str, ...]:
    return (slot.end_marker,) if slot.end_marker else ()


def _propose_tags(
    text: str, groups: Sequence[TagArguments], known: Collection[str]
) -> Iterator[Proposal]:
    if not groups:
        return
    first = groups[0]
    for slot in find_names(text, first.start, known):
        body = TaggedArguments(
            name_ends=_make_name_ends(slot) or ("\n",),
            name_pattern=slot.pattern,
            spellings=(slot.spelling,),
            key=MarkerPair(open=(first.key_open,), close=(first.key_close,)),
            value=MarkerPair(
                open=(first.value_open,) if first.value_open else (), close=(first.value_close,)
            ),
            key_spelling=f"{first.quote}{{key}}{first.quote}",
            trim=_find_trim([value for group in groups for value in group.values]),
        )
        if first.attributes:
            body = _add_attributes(body, first)
        after = split_markers_after(text[groups[-1].end :])
        for markers in _list_endings(slot.before, after):
            yield Proposal(body, slot.before, markers, "A name, then each argument in tags.")


def _add_attributes(body: TaggedArguments, first: TagArguments) -> TaggedArguments:
    """Let keys have more attributes; one of them may give the type of the value."""
    key = r"[\"']?(?P<key>[^\"'<>\s]+)[\"']?"
    match = TYPE_ATTRIBUTE.fullmatch(first.attributes)
    if match is None:
        return replace(body, key_pattern=key + r"(?:\s[^<>]*)?")
    attribute, quote = match["attribute"], match["quote"]
    kind = "{text}" if attribute == "string" else "{type}"
    return replace(
        body,
        key_pattern=rf"{key}(?:\s+{attribute}=[\"']?(?P<type>\w+)[\"']?)?",
        key_spelling=f"{body.key_spelling} {attribute}={quote}{kind}{quote}",
    )


def _list_endings(before: list[str], after: list[str]) -> Iterator[list[str]]:
    """Yield the markers that may end a call. Calls without arguments may follow the last ones."""
    starts = [index for index, tag in enumerate(after) if tag.startswith(tuple(before[-1:]))]
    if before and starts:
        yield [*after[: starts[0]], *after[-1:]]
    yield after


def _find_trim(values: Sequence[str]) -> Trim:
    """Return which white space around values is markup: that around all of them."""
    if all(value.startswith("\n") and value.endswith("\n") for value in values):
        return "newline"
    return "space" if all(value != value.strip() for value in values) else "none"


def _propose_elements(
    text: str, groups: Sequence[ElementArguments], known: Collection[str]
) -> Iterator[Proposal]:
    for first in groups[:MAX_GROUPS]:
        for slot in find_names(text, first.start, known):
            body = NestedElements(
                name_ends=_make_name_ends(slot) or ("\n",),
                name_pattern=slot.pattern,
                spellings=(slot.spelling,),
            )
            after = split_markers_after(text[groups[-1].end :])
            for markers in _list_endings(slot.before, after):
                yield Proposal(body, slot.before, markers, "A name, then arguments as elements.")


def _propose_python(text: str, calls: PythonArguments) -> Proposal:
    return Proposal(
        PythonCalls(brackets=text[calls.start] == "["),
        split_markers_before(text[: calls.start]),
        split_markers_after(text[calls.end :]),
        "Calls in Python syntax between markers.",
    )


def _divide_markers(name: str, proposal: Proposal) -> Iterator[ToolFormat]:
    """Yield the ways to divide the markers into those of a section and those of a call."""
    before, after = proposal.before, proposal.after
    base = ToolFormat(name=name, models="", example="", bodies=(proposal.body,))
    is_plain = isinstance(proposal.body, JsonObjects | PythonCalls)
    if len(before) > 1:
        for ends in (1, 0, 2):
            if ends > len(after):
                continue
            split = len(after) - ends
            yield replace(
                base,
                section=MarkerPair(open=(before[0],), close=join_markers(after[split:])),
                call=MarkerPair(open=join_markers(before[1:]), close=join_markers(after[:split])),
            )
    whole = MarkerPair(open=join_markers(before), close=join_markers(after))
    if before and (is_plain or len(before) == 1):
        yield replace(base, section=whole)
        yield replace(base, call=whole)
    elif before:
        yield replace(base, call=whole)
        yield replace(base, section=whole)
