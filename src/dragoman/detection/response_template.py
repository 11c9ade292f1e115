"""Formats that a checkpoint defines itself: transformers' `response_template`.

It is part of a `tokenizer_config.json` and gives, for each field of a message, the opening and
closing marker and how to parse the content. Our formats describe the same, so it is converted to
one: literal markers unchanged; patterns as far as they consist of literals, optional parts, white
space and named groups. No pattern is ever run: it comes with an untrusted model, and a pattern can
be written to run forever. Parts that a format cannot express are omitted and listed.

A known format that parses the same is preferred, because it also handles the mistakes that models
make. The older `response_schema` is read as far as it contains the same information.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from dragoman.detection.markers import (
    contains_any_marker,
    get_call_openers,
    make_marker_check,
    measure_coverage,
)
from dragoman.detection.regex_markers import (
    NamedGroup,
    Pieces,
    UnsupportedPattern,
    expand_pattern,
    join_literal,
)
from dragoman.detection.result import ProbeTurn
from dragoman.detection.round_trip import parse_answer
from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.output.library import OutputParser
from dragoman.output.spec import (
    GAP,
    CallBody,
    JsonObjects,
    MarkerPair,
    NamedObject,
    ReasoningFormat,
    TaggedArguments,
    ToolFormat,
)
from dragoman.types import Json

T = TypeVar("T")

NAME = "response_template"
MODELS = "a checkpoint with a response template"
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
SPACES = GAP + " \n\t"
PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


@dataclass(frozen=True)
class CheckpointFormats:
    """The formats that a checkpoint defines, and the parts that are not supported."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    unsupported: tuple[str, ...] = ()


def read_checkpoint_formats(config: Mapping[str, Json]) -> CheckpointFormats | None:
    """Read the formats from a tokenizer configuration, if it has any."""
    template, schema = config.get("response_template"), config.get("response_schema")
    if isinstance(template, dict) and isinstance(template.get("fields"), dict):
        return _read_fields(template["fields"])
    if isinstance(schema, dict):
        return _read_fields(_read_schema_fields(schema))
    return None


def _read_fields(fields: Mapping[str, Json]) -> CheckpointFormats:
    unsupported: list[str] = []
    content_field = _get_field(fields, "content")
    dropped = _try(unsupported, "content", lambda: _read_markers(content_field, "open")) or ()
    if dropped:  # without an opening marker, the closing marker is the end of the turn
        dropped += _try(unsupported, "content", lambda: _read_markers(content_field, "close")) or ()
    reasoning_name = next((name for name in REASONING_FIELDS if name in fields), None)
    reasoning = None
    if reasoning_name is not None:
        reasoning_field = _get_field(fields, reasoning_name)
        reasoning = _try(
            unsupported, reasoning_name, lambda: _make_reasoning(reasoning_field, dropped)
        )
    tools = None
    if "tool_calls" in fields:
        calls_field = _get_field(fields, "tool_calls")
        tools = _try(unsupported, "tool_calls", lambda: _make_tools(calls_field, dropped))
    return CheckpointFormats(
        tools and _prefer_known_tools(tools),
        reasoning and _prefer_known_reasoning(reasoning),
        tuple(unsupported),
    )


def _try(unsupported: list[str], field_name: str, make: Callable[[], T]) -> T | None:
    """Return what `make` returns, or None and a note if it meets an unsupported pattern."""
    try:
        return make()
    except UnsupportedPattern as error:
        unsupported.append(f"{field_name}: {error}")
        return None


def _get_field(fields: Mapping[str, Json], name: str) -> dict[str, Json]:
    field = fields.get(name)
    return field if isinstance(field, dict) else {}


# markers


def _list_marker_spellings(field: Mapping[str, Json], side: str) -> list[Pieces]:
    """Return the spellings of a field's opening or closing marker."""
    value = field.get(side)
    if isinstance(value, str):
        return [[value]]
    if isinstance(value, list):
        return [[marker] for marker in value if isinstance(marker, str)]
    pattern = field.get(f"{side}_pattern")
    return expand_pattern(pattern) if isinstance(pattern, str) else []


def _read_markers(field: Mapping[str, Json], side: str) -> tuple[str, ...]:
    markers = (join_literal(spelling) for spelling in _list_marker_spellings(field, side))
    return tuple(dict.fromkeys(marker for marker in markers if marker.replace(GAP, "").strip()))


def _make_reasoning(field: Mapping[str, Json], dropped: tuple[str, ...]) -> ReasoningFormat:
    openers, closers = _read_markers(field, "open"), _read_markers(field, "close")
    if not closers:
        raise UnsupportedPattern("there is no closing marker")
    example = f"{_remove_gaps(openers[0]) if openers else ''}reasoning{_remove_gaps(closers[0])}"
    example += (
        f"{_remove_gaps(dropped[0])}answer{_remove_gaps(dropped[-1])}" if dropped else "answer"
    )
    return ReasoningFormat(
        name=NAME,
        models=MODELS,
        example=example,
        open=openers,
        close=closers,
        dropped=dropped,
        trim="space",
        starts_inside=not openers,
    )


# calls


def _make_tools(field: Mapping[str, Json], dropped: tuple[str, ...]) -> ToolFormat:
    openers = _list_marker_spellings(field, "open")
    closers = tuple(marker.strip(SPACES) for marker in _read_markers(field, "close"))
    if not openers:
        raise UnsupportedPattern("there is no opening marker")
    splits = [_split_at_name(spelling) for spelling in openers]
    section_openers = tuple(dict.fromkeys(join_literal(head) for head, _, _ in splits))
    after = tuple(dict.fromkeys(join_literal(tail) for _, _, tail in splits))
    has_name = any(name for _, name, _ in splits)
    kind, args = field.get("content", "text"), field.get("content_args") or {}
    if kind == "json":
        body = _describe_named_object(args, after) if has_name else _describe_objects(field)
    elif kind == "xml-inline" and has_name:
        body = _describe_tagged_arguments(args, after)
    else:
        raise UnsupportedPattern(f"content {kind!r} contains no arguments")
    derived = ToolFormat(
        name=NAME,
        models=MODELS,
        example="",
        bodies=(body,),
        section=MarkerPair(open=section_openers, close=closers),
        dropped=dropped,
    )
    return replace(derived, example=_make_example(derived, body))


def _split_at_name(pieces: Pieces) -> tuple[Pieces, bool, Pieces]:
    """Return the pieces before the name, whether there is a name, and the pieces after it."""
    for index, piece in enumerate(pieces):
        if isinstance(piece, NamedGroup):
            return pieces[:index], True, pieces[index + 1 :]
    return pieces, False, []


def _describe_named_object(args: Mapping[str, Json], after: tuple[str, ...]) -> CallBody:
    """Describe arguments that are an object after a name."""
    delimiters = args.get("string_delims") or ()
    quotes = tuple(dict.fromkeys(pair[0] for pair in delimiters if pair and pair[0] == pair[-1]))
    if len(quotes) != len(delimiters):
        raise UnsupportedPattern("strings open and close with different markers")
    ends = tuple(marker for marker in after if marker)
    is_unquoted = bool(args.get("unquoted_keys"))
    return NamedObject(
        name_ends=ends,
        unquoted_values=is_unquoted,
        string_markers=quotes,
        types_from_schema=is_unquoted,
    )


def _describe_objects(field: Mapping[str, Json]) -> CallBody:
    """Describe objects that contain the name too; the transform gives the keys."""
    function = field.get("transform")
    function = function.get("function", function) if isinstance(function, dict) else function
    if isinstance(function, str) or function is None:
        return JsonObjects()
    keys = {key: _read_placeholder(function.get(key)) for key in ("name", "arguments")}
    default = JsonObjects()
    name, arguments = keys["name"], keys["arguments"]
    return JsonObjects(
        name=tuple(dict.fromkeys([*([name] if name else []), *default.name])),
        arguments=tuple(dict.fromkeys([*([arguments] if arguments else []), *default.arguments])),
    )


def _read_placeholder(value: Json) -> str | None:
    """Return the key of a placeholder: `{content.args}` and `{args}` are `args`."""
    match = PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    return match[1].rpartition(".")[2] if match else None


def _describe_tagged_arguments(args: Mapping[str, Json], after: tuple[str, ...]) -> CallBody:
    pattern = args.get("tag_pattern")
    if not isinstance(pattern, str):
        raise UnsupportedPattern("there is no tag pattern")
    [pieces, *alternatives] = expand_pattern(pattern)
    groups = [index for index, piece in enumerate(pieces) if isinstance(piece, NamedGroup)]
    if alternatives or [pieces[index] for index in groups] != [
        NamedGroup("key"),
        NamedGroup("value"),
    ]:
        raise UnsupportedPattern("a tag must be a key followed by a value")
    key, value = groups
    return TaggedArguments(
        name_ends=tuple(marker for marker in after if marker) or (">",),
        key=MarkerPair(
            open=(_strip_marker(pieces[:key]),), close=(_strip_marker(pieces[key + 1 : value]),)
        ),
        value=MarkerPair(close=(_strip_marker(pieces[value + 1 :]),)),
    )


def _strip_marker(pieces: Pieces) -> str:
    """Return a marker without surrounding white space, which is not part of a value either."""
    marker = join_literal(pieces).strip().strip(GAP).strip()
    if not marker:
        raise UnsupportedPattern("a tag has no marker")
    return marker


# examples, and known formats


def _remove_gaps(marker: str) -> str:
    return marker.replace(GAP, "")


def _make_example(tools: ToolFormat, body: CallBody) -> str:
    opener = _remove_gaps(tools.section.open[0])
    closer = _remove_gaps(tools.section.close[0]) if tools.section.close else ""
    if isinstance(body, JsonObjects):
        inner = f'{{"{body.name[0]}": "f", "{body.arguments[0]}": {{"a": 1}}}}'
    elif isinstance(body, NamedObject):
        inner = f"f{_remove_gaps(body.name_ends[0]) if body.name_ends else ''}" + (
            "{a:1}" if body.unquoted_values else '{"a": 1}'
        )
    elif isinstance(body, TaggedArguments):
        key, value = body.key, body.value
        inner = f"f{_remove_gaps(body.name_ends[0])}{key.open[0]}a{key.close[0]}1{value.close[0]}"
    else:
        inner = ""
    return f"{opener}{inner}{closer}"


def _prefer_known_tools(derived: ToolFormat) -> ToolFormat:
    """Return the known format that parses the example identically, else the derived one."""
    expected = parse_answer(OutputParser(derived), derived.example)
    matches = [
        known
        for known in get_tool_formats().values()
        if contains_any_marker(get_call_openers(known), derived.example)
        and parse_answer(OutputParser(known.name), derived.example) == expected
    ]
    return (
        max(matches, key=lambda known: _rank_likeness(known, derived.example))
        if matches
        else derived
    )


def _prefer_known_reasoning(derived: ReasoningFormat) -> ReasoningFormat:
    expected = parse_answer(OutputParser(reasoning=derived), derived.example)
    matches = [
        known
        for known in get_reasoning_formats().values()
        if contains_any_marker(_list_outer_markers(known), derived.example)
        and not known.keeps_markers
        and _have_same_output(
            parse_answer(OutputParser(reasoning=known.name), derived.example), expected
        )
    ]
    return (
        max(matches, key=lambda known: _rank_likeness(known, derived.example))
        if matches
        else derived
    )


def _list_outer_markers(reasoning: ReasoningFormat) -> tuple[str, ...]:
    return reasoning.open or reasoning.close or (reasoning.header.open if reasoning.header else ())


def _have_same_output(first: ProbeTurn, second: ProbeTurn) -> bool:
    return (
        first.text.strip() == second.text.strip()
        and first.reasoning.strip() == second.reasoning.strip()
    )


def _rank_likeness(known: ToolFormat | ReasoningFormat, example: str) -> tuple[int, int]:
    missing, length = measure_coverage(known, make_marker_check(example))
    return -missing, length


# the older `response_schema`


def _read_schema_fields(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Express a schema as fields, as far as possible: the markers around its named groups."""
    properties = schema.get("properties")
    fields: dict[str, Json] = {}
    for name, property_schema in (properties if isinstance(properties, dict) else {}).items():
        if not isinstance(property_schema, dict):
            continue
        iterator = property_schema.get("x-regex-iterator")
        if name == "tool_calls" and isinstance(iterator, str):
            opener, _, closer = re.sub(r"\(\?P<\w+>", "(", iterator).partition("(.*?)")
            fields[name] = {"open_pattern": opener, "close_pattern": closer, "content": "json"}
        elif name in REASONING_FIELDS:
            fields[name] = dict(_find_tags_around(str(schema.get("x-regex", "")), name))
    return fields


def _find_tags_around(pattern: str, group: str) -> Iterator[tuple[str, str]]:
    """Yield the literal tags directly before and after a named group."""
    before, group_start, after = pattern.partition(f"(?P<{group}>")
    tag = r"(?:<[^<>()]+>|\[[^\[\]()]+\])"
    if not group_start:
        return
    opener = re.search(rf"({tag})(?:\\n\??|\\s\*|\s)*$", before)
    closer = re.search(rf"^[^()]*\)(?:\\n\??|\\s\*|\s)*({tag})", after)
    if opener:
        yield "open_pattern", opener[1]
    if closer:
        yield "close_pattern", closer[1]
