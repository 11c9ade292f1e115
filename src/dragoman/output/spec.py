"""What an output format is made of: plain data, read by the parser, the prover and the detector.

A tool format says where calls stand and how one is written:

    section? ( call? BODY call? )* section?

`section` and `call` are pairs of markers, each of them optional; the body says where in between the
name and the arguments are. A reasoning format says which markers thoughts stand between. The two
combine freely. Formats whose messages carry a header that says where they go (harmony and others)
describe it with `Header`.

Marks are compared char by char; `GAP` in one stands for white space that may be there or not.
What a reader must take in many spellings is written in one: `written` says in which, with `{name}`,
`{key}`, `{id}` and `{number}` in it, `{text}` for whether a value is text, `{type}` for its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

GAP = "\0"

Trim: TypeAlias = Literal["none", "newline", "space"]


@dataclass(frozen=True, kw_only=True)
class MarkerPair:
    """Marks around something. Several spellings are equal; without `close` it ends by itself."""

    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()


NO_MARKERS = MarkerPair()


@dataclass(frozen=True, kw_only=True)
class JsonObjects:
    """A call is a JSON object with a name and arguments in it; a list of them is several calls."""

    name: tuple[str, ...] = ("name", "tool_name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters", "args")
    id: tuple[str, ...] = ("id", "tool_call_id")
    keyed: bool = False  # the name is the only key: {"f": {...}}
    requires_arguments: bool = False  # an object without arguments is no call
    python: bool = False  # written as Python writes a dictionary


@dataclass(frozen=True, kw_only=True)
class NamedObject:
    """A name, a marker, and the arguments as one object."""

    name_ends: tuple[str, ...] = ()  # what ends the name; an opening brace always does
    name_pattern: str = r"(?P<name>[^\s{}]+)"  # what the text before it may be
    spellings: tuple[str, ...] = ("{name}",)
    fence: tuple[str, ...] = ()  # what may close the arguments
    unquoted_values: bool = False  # words without quotes end at a comma or a bracket only
    string_markers: tuple[str, ...] = ()  # markers around strings, besides quotation markers
    types_from_schema: bool = False  # bare words are typed by the tool's schema
    casts_strings: bool = False  # and so are strings


@dataclass(frozen=True, kw_only=True)
class TaggedArguments:
    """A name, then for each argument its key and its value between markers."""

    name_ends: tuple[str, ...] = (">",)  # what ends the name
    name_pattern: str = r"[\"']?(?P<name>[^\"'<>]+?)[\"']?"
    spellings: tuple[str, ...] = ("{name}",)
    key: MarkerPair = (
        NO_MARKERS  # without `close`, the value follows the key's opening marker at once
    )
    value: MarkerPair = NO_MARKERS
    key_pattern: str = r"[\"']?(?P<key>[^\"'<>]+?)[\"']?"
    key_spelling: str = "{key}"
    trim: Trim = "newline"  # what of a value's white space is markup
    cdata: bool = False
    html_entities: bool = False  # entities in names and keys
    implicit_end: bool = False  # a value may end where the next key or the call's end begins
    accepts_json: bool = False  # the arguments may also be written as one JSON object
    block: MarkerPair = NO_MARKERS  # markers around such an object; the first ends as a key does
    untyped: Literal["text", "json"] = "text"  # what a value is that no schema describes


@dataclass(frozen=True, kw_only=True)
class NestedElements:
    """A name, then the arguments as elements: an object's keys are tags, a list's are `item`s."""

    name_ends: tuple[str, ...] = ('">',)
    name_pattern: str = r"[\"']?(?P<name>[^\"'<>]+?)[\"']?"
    spellings: tuple[str, ...] = ("{name}",)
    prefix: str = ""  # stands before every tag
    item: str = "item"


@dataclass(frozen=True, kw_only=True)
class PythonCalls:
    """Calls as Python writes them: `[f(a=1), g()]`."""

    brackets: bool = True  # without them, calls may stand on lines of their own


CallBody: TypeAlias = JsonObjects | NamedObject | TaggedArguments | NestedElements | PythonCalls


@dataclass(frozen=True, kw_only=True)
class MessageHeader:
    """A message's header: what it says decides where the message goes.

    A header is what stands between one of `open` and one of `end`. The first of `routes` whose
    pattern is found in it wins; a `call` takes its name from the pattern.
    """

    open: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    close: tuple[str, ...] = ()  # what ends a message
    routes: tuple[tuple[str, Literal["text", "reasoning", "call"]], ...] = ()
    answer_starts: tuple[
        str, ...
    ] = ()  # what an answer may begin with when it begins inside a header
    spellings: tuple[tuple[Literal["text", "reasoning", "call"], str], ...] = ()  # whole headers
    separator: str = ""  # stands between a message and the header of the next


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How calls are written."""

    name: str
    models: str
    example: str
    bodies: tuple[CallBody, ...]  # several: the first that can begin as the text does
    section: MarkerPair = NO_MARKERS
    call: MarkerPair = NO_MARKERS
    header: MessageHeader | None = None
    section_optional: bool = False  # a call may stand without its section
    unmarked_starts: tuple[str, ...] = ()  # what a call without any marker begins with
    unmarked_at_start: bool = (
        False  # a call needs no marker, but only the beginning of an answer can be one
    )
    dropped: tuple[str, ...] = ()  # markers around text that are no part of it
    skipped: tuple[
        MarkerPair, ...
    ] = ()  # markers inside text, with all that stands between the two
    ignored_after_call: tuple[str, ...] = ()  # what may follow a call and means nothing
    template_hints: tuple[
        str, ...
    ] = ()  # what a template has that speaks so, where markers do not tell
    default_reasoning: str = ""  # how these models think, for templates that do not say
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """How thoughts are written."""

    name: str
    models: str
    example: str
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    opens_at_start: tuple[
        str, ...
    ] = ()  # opens thoughts too, but only as the first thing of an answer
    label: tuple[str, ...] = ()  # left out right after the opening marker
    dropped: tuple[str, ...] = ()  # markers around the answer that are no part of it
    skipped: tuple[
        MarkerPair, ...
    ] = ()  # markers inside text, with all that stands between the two
    header: MessageHeader | None = None
    trim: Trim = "none"  # white space of thoughts and answer that is markup
    keeps_markers: bool = False  # the markers are part of the answer
    special_token_markers: bool = False  # the markers are tokens that are never words
    plain_word_markers: bool = False  # the markers are plain words: only the first of each counts
    answer_wrapper: MarkerPair = (
        NO_MARKERS  # markers around the whole answer that are no part of it
    )
    template_hints: tuple[
        str, ...
    ] = ()  # what a template has that thinks so, where markers do not tell
    answer_separator: str = "\n\n"  # what comes between closed thoughts and the answer
    starts_inside: bool = False  # where an answer begins when nothing is known of the prompt
    ended_by: tuple[str, ...] = ()  # markers of calls that end thoughts which were left open
    aliases: Mapping[str, bool] = field(default_factory=dict)  # other names, and their `inside`


NO_REASONING = ReasoningFormat(name="none", models="models that do not think", example="Hello.")
