"""Formats that a checkpoint brings along: transformers' `response_template`.

It stands in a `tokenizer_config.json` and says, for each field of a message, what opens it, what
closes it, and how its content is to be read. That is what our formats say, so it becomes one:
literal markers as they are, patterns as far as they are literals, optional parts, white space and
named captures. No pattern is ever run: they come with a model from a stranger, and a pattern can be
made to take for ever. What cannot be turn in a format is left out and named.

A format that we already know and that reads the same is taken instead: it knows the ways in which
models miss it. The older `response_schema` is read for what it has in common with this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

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

NAME = "response_template"
MODELS = "a checkpoint with a response template"
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
SPACES = GAP + " \n\t"
PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


@dataclass(frozen=True)
class CheckpointFormats:
    """The formats that came with a checkpoint, and what of them could not be turn."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    missing: tuple[str, ...] = ()


def read_checkpoint_formats(config: Mapping[str, Any]) -> CheckpointFormats | None:
    """The formats of a tokenizer's configuration, if it has any."""
    template, schema = config.get("response_template"), config.get("response_schema")
    if isinstance(template, dict) and isinstance(template.get("fields"), dict):
        return _read_fields(template["fields"])
    if isinstance(schema, dict):
        return _read_fields(_fields_of(schema))
    return None


def _read_fields(fields: Mapping[str, Any]) -> CheckpointFormats:
    missing: list[str] = []
    answer = _field(fields, "content")
    drop = _try(missing, "content", lambda: _markers(answer, "open")) or ()
    if drop:  # what closes an answer that nothing opens is the end of the turn
        drop += _try(missing, "content", lambda: _markers(answer, "close")) or ()
    field_name = next((name for name in REASONING_FIELDS if name in fields), None)
    reasoning = None
    if field_name is not None:
        given = _field(fields, field_name)
        reasoning = _try(missing, field_name, lambda: _make_reasoning(given, drop))
    tools = None
    if "tool_calls" in fields:
        given_calls = _field(fields, "tool_calls")
        tools = _try(missing, "tool_calls", lambda: _make_tools(given_calls, drop))
    return CheckpointFormats(
        tools and _prefer_known_tools(tools),
        reasoning and _prefer_known_reasoning(reasoning),
        tuple(missing),
    )


def _try(missing: list[str], what: str, make: Any) -> Any:
    try:
        return make()
    except UnsupportedPattern as error:
        missing.append(f"{what}: {error}")
        return None


def _field(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


# Marks


def _marker_spellings(field: Mapping[str, Any], side: str) -> list[Pieces]:
    """The spellings of what opens or closes a field."""
    turn = field.get(side)
    if isinstance(turn, str):
        return [[turn]]
    if isinstance(turn, list):
        return [[one] for one in turn if isinstance(one, str)]
    pattern = field.get(f"{side}_pattern")
    return expand_pattern(pattern) if isinstance(pattern, str) else []


def _markers(field: Mapping[str, Any], side: str) -> tuple[str, ...]:
    found = (join_literal(one) for one in _marker_spellings(field, side))
    return tuple(dict.fromkeys(marker for marker in found if marker.replace(GAP, "").strip()))


def _make_reasoning(field: Mapping[str, Any], drop: tuple[str, ...]) -> ReasoningFormat:
    opened, closed = _markers(field, "open"), _markers(field, "close")
    if not closed:
        raise UnsupportedPattern("nothing closes it")
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


# Calls


def _make_tools(field: Mapping[str, Any], drop: tuple[str, ...]) -> ToolFormat:
    opened = _marker_spellings(field, "open")
    closed = tuple(marker.strip(SPACES) for marker in _markers(field, "close"))
    if not opened:
        raise UnsupportedPattern("nothing opens it")
    splits = [_split(one) for one in opened]
    before = tuple(dict.fromkeys(join_literal(head) for head, _, _ in splits))
    after = tuple(dict.fromkeys(join_literal(tail) for _, _, tail in splits))
    named = any(name for _, name, _ in splits)
    kind, args = field.get("content", "text"), field.get("content_args") or {}
    if kind == "json":
        body = _json_body(field, args, after) if named else _objects_body(field)
    elif kind == "xml-inline" and named:
        body = _tagged_body(args, after)
    else:
        raise UnsupportedPattern(f"content {kind!r} holds no arguments")
    made = ToolFormat(
        name=NAME,
        models=MODELS,
        example="",
        bodies=(body,),
        section=MarkerPair(open=before, close=closed),
        dropped=drop,
    )
    return replace(made, example=_make_example(made, body))


def _split(found: Pieces) -> tuple[Pieces, bool, Pieces]:
    """What stands before the name, whether there is one, and what stands behind it."""
    at = next((at for at, one in enumerate(found) if isinstance(one, NamedGroup)), None)
    if at is None:
        return found, False, []
    return found[:at], True, found[at + 1 :]


def _json_body(
    field: Mapping[str, Any], args: Mapping[str, Any], after: tuple[str, ...]
) -> CallBody:
    """Arguments as an object behind a name."""
    delimiters = args.get("string_delims") or ()
    quotes = tuple(dict.fromkeys(pair[0] for pair in delimiters if pair and pair[0] == pair[-1]))
    if len(quotes) != len(delimiters):
        raise UnsupportedPattern("strings that open and close differently")
    ends = tuple(marker for marker in after if marker)
    loose = bool(args.get("unquoted_keys"))
    return NamedObject(
        name_ends=ends, unquoted_values=loose, string_markers=quotes, types_from_schema=loose
    )


def _objects_body(field: Mapping[str, Any]) -> CallBody:
    """Objects that hold the name as well; the transform says under which keys."""
    function = field.get("transform")
    function = function.get("function", function) if isinstance(function, dict) else function
    if isinstance(function, str) or function is None:
        return JsonObjects()
    keys = {key: _placeholder_key(function.get(key)) for key in ("name", "arguments")}
    usual = JsonObjects()
    name, arguments = keys["name"], keys["arguments"]
    return JsonObjects(
        name=tuple(dict.fromkeys([*([name] if name else []), *usual.name])),
        arguments=tuple(dict.fromkeys([*([arguments] if arguments else []), *usual.arguments])),
    )


def _placeholder_key(turn: Any) -> str | None:
    """The key that a placeholder means: `{content.args}` and `{args}` are `args`."""
    found = PLACEHOLDER.fullmatch(turn) if isinstance(turn, str) else None
    return found[1].rpartition(".")[2] if found else None


def _tagged_body(args: Mapping[str, Any], after: tuple[str, ...]) -> CallBody:
    pattern = args.get("tag_pattern")
    if not isinstance(pattern, str):
        raise UnsupportedPattern("no pattern of a tag")
    [found, *others] = expand_pattern(pattern)
    where = [at for at, one in enumerate(found) if isinstance(one, NamedGroup)]
    if others or [found[at] for at in where] != [NamedGroup("key"), NamedGroup("value")]:
        raise UnsupportedPattern("a tag that is not a key and then a value")
    key, value = where
    return TaggedArguments(
        name_ends=tuple(marker for marker in after if marker) or (">",),
        key=MarkerPair(
            open=(_strip_marker(found[:key]),), close=(_strip_marker(found[key + 1 : value]),)
        ),
        value=MarkerPair(close=(_strip_marker(found[value + 1 :]),)),
        implicit_end=True,
    )


def _strip_marker(found: Pieces) -> str:
    """A marker without the white space around it, which is no part of a value either."""
    marker = join_literal(found).strip().strip(GAP).strip()
    if not marker:
        raise UnsupportedPattern("a tag without a marker")
    return marker


# Examples, and formats that are known already


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


def _prefer_known_tools(made: ToolFormat) -> ToolFormat:
    """A format of ours that reads the example just so, else this one."""
    wanted = fold_spans(OutputParser(made), made.example)
    fits = [
        one
        for one in tool_formats().values()
        if contains_any_marker(call_openers(one), made.example)
        and fold_spans(OutputParser(one.name), made.example) == wanted
    ]
    return max(fits, key=lambda one: _rank_likeness(one, made.example)) if fits else made


def _prefer_known_reasoning(made: ReasoningFormat) -> ReasoningFormat:
    wanted = fold_spans(OutputParser(reasoning=made), made.example)
    fits = [
        one
        for one in reasoning_formats().values()
        if contains_any_marker(_outer_markers(one), made.example)
        and not one.keeps_markers
        and _same_output(fold_spans(OutputParser(reasoning=one.name), made.example), wanted)
    ]
    return max(fits, key=lambda one: _rank_likeness(one, made.example)) if fits else made


def _outer_markers(reasoning: ReasoningFormat) -> tuple[str, ...]:
    return reasoning.open or reasoning.close or (reasoning.header.open if reasoning.header else ())


def _same_output(one: ProbeTurn, two: ProbeTurn) -> bool:
    return (one.text.strip(), one.reasoning.strip()) == (two.text.strip(), two.reasoning.strip())


def _rank_likeness(known: ToolFormat | ReasoningFormat, example: str) -> tuple[int, int]:
    missing, length = measure_coverage(known, make_marker_test(example))
    return -missing, length


# The older `response_schema`


def _fields_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """As much of a schema as can be turn in fields: the markers around its named groups."""
    properties = schema.get("properties")
    found: dict[str, Any] = {}
    for name, one in (properties if isinstance(properties, dict) else {}).items():
        if not isinstance(one, dict):
            continue
        iterator = one.get("x-regex-iterator")
        if name == "tool_calls" and isinstance(iterator, str):
            opened, _, closed = re.sub(r"\(\?P<\w+>", "(", iterator).partition("(.*?)")
            found[name] = {"open_pattern": opened, "close_pattern": closed, "content": "json"}
        elif name in REASONING_FIELDS:
            found |= {name: dict(_tags_around(str(schema.get("x-regex", "")), name))}
    return found


def _tags_around(pattern: str, group: str) -> Iterator[tuple[str, str]]:
    """The literal tags right before and right behind a named group."""
    before, found, behind = pattern.partition(f"(?P<{group}>")
    tag = r"(?:<[^<>()]+>|\[[^\[\]()]+\])"
    if not found:
        return
    opened = re.search(rf"({tag})(?:\\n\??|\\s\*|\s)*$", before)
    closed = re.search(rf"^[^()]*\)(?:\\n\??|\\s\*|\s)*({tag})", behind)
    if opened:
        yield "open_pattern", opened[1]
    if closed:
        yield "close_pattern", closed[1]
