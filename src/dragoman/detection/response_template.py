"""Formats that a checkpoint defines itself: transformers' `response_template`.

It is part of a `tokenizer_config.json` and gives, for each field of a message, the opening and
closing marker and how to parse the content. That is what our formats describe, so it becomes one:
literal markers unchanged; patterns as far as they consist of literals, optional parts, white space
and named groups. No pattern is ever run: it comes with an untrusted model, and a pattern can be
written to run forever. Parts that a format cannot express are omitted and listed.

A known format that parses the same is preferred, because it also handles the mistakes that models
make. The older `response_schema` is read as far as it says the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dragoman.detection.markers import (
    call_openers,
    contains_any_marker,
    make_marker_test,
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
from dragoman.detection.round_trip import fold_spans
from dragoman.formats import reasoning_formats, tool_formats
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

NAME = "response_template"
MODELS = "a checkpoint with a response template"
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
SPACES = GAP + " \n\t"
PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


@dataclass(frozen=True)
class CheckpointFormats:
    """The formats that a checkpoint defines, and which parts are not supported."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    missing: tuple[str, ...] = ()


def read_checkpoint_formats(config: Mapping[str, Json]) -> CheckpointFormats | None:
    """Read the formats from a tokenizer configuration, if it has any."""
    template, schema = config.get("response_template"), config.get("response_schema")
    if isinstance(template, dict) and isinstance(template.get("fields"), dict):
        return _read_fields(template["fields"])
    if isinstance(schema, dict):
        return _read_fields(_fields_of(schema))
    return None


def _read_fields(fields: Mapping[str, Json]) -> CheckpointFormats:
    missing: list[str] = []
    answer = _field(fields, "content")
    drop = _try(missing, "content", lambda: _markers(answer, "open")) or ()
    if drop:  # without an opening marker, the closing marker is the end of the turn
        drop += _try(missing, "content", lambda: _markers(answer, "close")) or ()
    field_name = next((name for name in REASONING_FIELDS if name in fields), None)
    reasoning = None
    if field_name is not None:
        field_value = _field(fields, field_name)
        reasoning = _try(missing, field_name, lambda: _make_reasoning(field_value, drop))
    tools = None
    if "tool_calls" in fields:
        given_calls = _field(fields, "tool_calls")
        tools = _try(missing, "tool_calls", lambda: _make_tools(given_calls, drop))
    return CheckpointFormats(
        tools and _prefer_known_tools(tools),
        reasoning and _prefer_known_reasoning(reasoning),
        tuple(missing),
    )


def _try(missing: list[str], what: str, make: Json) -> Json:
    try:
        return make()
    except UnsupportedPattern as error:
        missing.append(f"{what}: {error}")
        return None


def _field(fields: Mapping[str, Json], name: str) -> dict[str, Json]:
    parts = fields.get(name)
    return parts if isinstance(parts, dict) else {}


# markers


def _marker_spellings(field: Mapping[str, Json], side: str) -> list[Pieces]:
    """Return the spellings of a field's opening or closing marker."""
    value = field.get(side)
    if isinstance(value, str):
        return [[value]]
    if isinstance(value, list):
        return [[part] for part in value if isinstance(part, str)]
    pattern = field.get(f"{side}_pattern")
    return expand_pattern(pattern) if isinstance(pattern, str) else []


def _markers(field: Mapping[str, Json], side: str) -> tuple[str, ...]:
    parts = (join_literal(part) for part in _marker_spellings(field, side))
    return tuple(dict.fromkeys(marker for marker in parts if marker.replace(GAP, "").strip()))


def _make_reasoning(field: Mapping[str, Json], drop: tuple[str, ...]) -> ReasoningFormat:
    opened, closed = _markers(field, "open"), _markers(field, "close")
    if not closed:
        raise UnsupportedPattern("there is no closing marker")
    example = f"{_without_gaps(opened[0]) if opened else ''}reasoning{_without_gaps(closed[0])}"
    example += f"{_without_gaps(drop[0])}answer{_without_gaps(drop[-1])}" if drop else "answer"
    return ReasoningFormat(
        name=NAME,
        models=MODELS,
        example=example,
        open=opened,
        close=closed,
        dropped=drop,
        trim="space",
        starts_inside=not opened,
    )


# calls


def _make_tools(field: Mapping[str, Json], drop: tuple[str, ...]) -> ToolFormat:
    opened = _marker_spellings(field, "open")
    closed = tuple(marker.strip(SPACES) for marker in _markers(field, "close"))
    if not opened:
        raise UnsupportedPattern("there is no opening marker")
    splits = [_split(part) for part in opened]
    before = tuple(dict.fromkeys(join_literal(head) for head, _, _ in splits))
    after = tuple(dict.fromkeys(join_literal(tail) for _, _, tail in splits))
    has_name = any(name for _, name, _ in splits)
    kind, args = field.get("content", "text"), field.get("content_args") or {}
    if kind == "json":
        body = _json_body(field, args, after) if has_name else _objects_body(field)
    elif kind == "xml-inline" and has_name:
        body = _tagged_body(args, after)
    else:
        raise UnsupportedPattern(f"content {kind!r} contains no arguments")
    derived = ToolFormat(
        name=NAME,
        models=MODELS,
        example="",
        bodies=(body,),
        section=MarkerPair(open=before, close=closed),
        dropped=drop,
    )
    return replace(derived, example=_make_example(derived, body))


def _split(parts: Pieces) -> tuple[Pieces, bool, Pieces]:
    """Return the pieces before the name, whether there is a name, and the pieces after it."""
    at = next((at for at, part in enumerate(parts) if isinstance(part, NamedGroup)), None)
    if at is None:
        return parts, False, []
    return parts[:at], True, parts[at + 1 :]


def _json_body(
    field: Mapping[str, Json], args: Mapping[str, Json], after: tuple[str, ...]
) -> CallBody:
    """Describe arguments that are an object after a name."""
    delimiters = args.get("string_delims") or ()
    quotes = tuple(dict.fromkeys(pair[0] for pair in delimiters if pair and pair[0] == pair[-1]))
    if len(quotes) != len(delimiters):
        raise UnsupportedPattern("strings open and close with different markers")
    ends = tuple(marker for marker in after if marker)
    loose = bool(args.get("unquoted_keys"))
    return NamedObject(
        name_ends=ends, unquoted_values=loose, string_markers=quotes, types_from_schema=loose
    )


def _objects_body(field: Mapping[str, Json]) -> CallBody:
    """Describe objects that contain the name too; the transform gives the keys."""
    function = field.get("transform")
    function = function.get("function", function) if isinstance(function, dict) else function
    if isinstance(function, str) or function is None:
        return JsonObjects()
    keys = {key: _placeholder_key(function.get(key)) for key in ("name", "arguments")}
    default = JsonObjects()
    name, arguments = keys["name"], keys["arguments"]
    return JsonObjects(
        name=tuple(dict.fromkeys([*([name] if name else []), *default.name])),
        arguments=tuple(dict.fromkeys([*([arguments] if arguments else []), *default.arguments])),
    )


def _placeholder_key(value: Json) -> str | None:
    """Return the key of a placeholder: `{content.args}` and `{args}` are `args`."""
    parts = PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    return parts[1].rpartition(".")[2] if parts else None


def _tagged_body(args: Mapping[str, Json], after: tuple[str, ...]) -> CallBody:
    pattern = args.get("tag_pattern")
    if not isinstance(pattern, str):
        raise UnsupportedPattern("there is no tag pattern")
    [parts, *others] = expand_pattern(pattern)
    positions = [at for at, part in enumerate(parts) if isinstance(part, NamedGroup)]
    if others or [parts[at] for at in positions] != [NamedGroup("key"), NamedGroup("value")]:
        raise UnsupportedPattern("a tag must be a key followed by a value")
    key, value = positions
    return TaggedArguments(
        name_ends=tuple(marker for marker in after if marker) or (">",),
        key=MarkerPair(
            open=(_strip_marker(parts[:key]),), close=(_strip_marker(parts[key + 1 : value]),)
        ),
        value=MarkerPair(close=(_strip_marker(parts[value + 1 :]),)),
        implicit_end=True,
    )


def _strip_marker(parts: Pieces) -> str:
    """Return a marker without surrounding white space, which is not part of a value either."""
    marker = join_literal(parts).strip().strip(GAP).strip()
    if not marker:
        raise UnsupportedPattern("a tag has no marker")
    return marker


# examples, and known formats


def _without_gaps(marker: str) -> str:
    return marker.replace(GAP, "")


def _make_example(tools: ToolFormat, body: CallBody) -> str:
    opened = _without_gaps(tools.section.open[0])
    closed = _without_gaps(tools.section.close[0]) if tools.section.close else ""
    if isinstance(body, JsonObjects):
        inner = f'{{"{body.name[0]}": "f", "{body.arguments[0]}": {{"a": 1}}}}'
    elif isinstance(body, NamedObject):
        inner = f"f{_without_gaps(body.name_ends[0]) if body.name_ends else ''}" + (
            "{a:1}" if body.unquoted_values else '{"a": 1}'
        )
    elif isinstance(body, TaggedArguments):
        key, value = body.key, body.value
        inner = f"f{_without_gaps(body.name_ends[0])}{key.open[0]}a{key.close[0]}1{value.close[0]}"
    else:
        inner = ""
    return f"{opened}{inner}{closed}"


def _prefer_known_tools(derived: ToolFormat) -> ToolFormat:
    """Return the known format that parses the example identically, else this one."""
    wanted = fold_spans(OutputParser(derived), derived.example)
    matches = [
        part
        for part in tool_formats().values()
        if contains_any_marker(call_openers(part), derived.example)
        and fold_spans(OutputParser(part.name), derived.example) == wanted
    ]
    return (
        max(matches, key=lambda part: _rank_likeness(part, derived.example)) if matches else derived
    )


def _prefer_known_reasoning(derived: ReasoningFormat) -> ReasoningFormat:
    wanted = fold_spans(OutputParser(reasoning=derived), derived.example)
    matches = [
        part
        for part in reasoning_formats().values()
        if contains_any_marker(_outer_markers(part), derived.example)
        and not part.keeps_markers
        and _same_output(fold_spans(OutputParser(reasoning=part.name), derived.example), wanted)
    ]
    return (
        max(matches, key=lambda part: _rank_likeness(part, derived.example)) if matches else derived
    )


def _outer_markers(reasoning: ReasoningFormat) -> tuple[str, ...]:
    return reasoning.open or reasoning.close or (reasoning.header.open if reasoning.header else ())


def _same_output(part: ProbeTurn, other: ProbeTurn) -> bool:
    return (part.text.strip(), part.reasoning.strip()) == (
        other.text.strip(),
        other.reasoning.strip(),
    )


def _rank_likeness(known: ToolFormat | ReasoningFormat, example: str) -> tuple[int, int]:
    missing, length = measure_coverage(known, make_marker_test(example))
    return -missing, length


# the older `response_schema`


def _fields_of(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Express a schema as fields, as far as possible: the markers around its named groups."""
    properties = schema.get("properties")
    parts: dict[str, Json] = {}
    for name, part in (properties if isinstance(properties, dict) else {}).items():
        if not isinstance(part, dict):
            continue
        iterator = part.get("x-regex-iterator")
        if name == "tool_calls" and isinstance(iterator, str):
            opened, _, closed = re.sub(r"\(\?P<\w+>", "(", iterator).partition("(.*?)")
            parts[name] = {"open_pattern": opened, "close_pattern": closed, "content": "json"}
        elif name in REASONING_FIELDS:
            parts |= {name: dict(_tags_around(str(schema.get("x-regex", "")), name))}
    return parts


def _tags_around(pattern: str, group: str) -> Iterator[tuple[str, str]]:
    """Yield the literal tags directly before and after a named group."""
    before, parts, behind = pattern.partition(f"(?P<{group}>")
    tag = r"(?:<[^<>()]+>|\[[^\[\]()]+\])"
    if not parts:
        return
    opened = re.search(rf"({tag})(?:\\n\??|\\s\*|\s)*$", before)
    closed = re.search(rf"^[^()]*\)(?:\\n\??|\\s\*|\s)*({tag})", behind)
    if opened:
        yield "open_pattern", opened[1]
    if closed:
        yield "close_pattern", closed[1]
