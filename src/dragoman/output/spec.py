"""The description of an output format: plain data that the parser, the grammar and detection read.

A tool format describes where calls are and how a call is written:

    section? ( call? BODY call? )* section?

`section` and `call` are pairs of markers, each optional; the body describes the name and the
arguments between them. A reasoning format gives the markers around reasoning. Any tool format
combines with any reasoning format. Formats whose messages start with a header that routes them
(harmony and others) describe it with `MessageHeader`.

Markers are compared character by character; `GAP` in a marker matches optional white space.
`SUFFIX` in a marker stands for text that each checkpoint chooses, such as `:opensource` in
`<think:opensource>`: a format lists the suffixes of known checkpoints, and detection finds others
in the template. `name:suffix` is the name of the format with that suffix alone.
The parser accepts many spellings, a grammar writes exactly one: `spellings` gives it, with the
placeholders `{name}`, `{key}`, `{id}` and `{number}`, `{text}` (`true` if the value is a string),
and `{type}` for its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

GAP = "\0"
SUFFIX = "\1"

Trim: TypeAlias = Literal["none", "newline", "space"]
# how a format is known: its cases or template were tested, parsers of other servers read it, its
# vendor documents it, or it is assumed because related models write it
Evidence: TypeAlias = Literal["tested", "parsers", "documented", "assumed"]


@dataclass(frozen=True, kw_only=True)
class MarkerPair:
    """Alternative opening and closing markers; without `close`, the content has its own end."""

    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()


NO_MARKERS = MarkerPair()


@dataclass(frozen=True, kw_only=True)
class JsonObjects:
    """A call is a JSON object with a name and arguments; a list of objects is several calls."""

    name: tuple[str, ...] = ("name", "tool_name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters", "args", "input")
    id: tuple[str, ...] = ("id", "tool_call_id")
    keyed: bool = False  # the name is the only key: {"f": {...}}
    requires_arguments: bool = False  # an object without arguments is not a call
    python: bool = False  # written like a Python dict


@dataclass(frozen=True, kw_only=True)
class NamedObject:
    """A name, a marker, and the arguments as one object."""

    name_ends: tuple[str, ...] = ()  # markers that end the name; an opening brace always does
    name_pattern: str = r"(?P<name>[^\s{}]+)"
    spellings: tuple[str, ...] = ("{name}",)
    fence: tuple[str, ...] = ()  # may close the arguments
    unquoted_values: bool = False  # words without quotes end only at a comma or a bracket
    string_markers: tuple[str, ...] = ()  # markers around strings, besides quotation marks
    types_from_schema: bool = False  # the tool's schema gives unquoted words their type
    casts_strings: bool = False  # the schema gives strings their type, too
    free_text: bool = False  # instead of an object, the text of the tool's only parameter
    name_may_precede: bool = False  # models also write the name before the marker of the call


@dataclass(frozen=True, kw_only=True)
class TaggedArguments:
    """A name, then for each argument its key and its value between markers."""

    name_ends: tuple[str, ...] = (">",)
    name_pattern: str = r"[\"']?(?P<name>[^\"'<>]+?)[\"']?"
    spellings: tuple[str, ...] = ("{name}",)
    key: MarkerPair = NO_MARKERS  # without `close`, the value follows the opening marker directly
    value: MarkerPair = NO_MARKERS
    type: MarkerPair = NO_MARKERS  # around the type of a value, which may follow the key
    key_pattern: str = r"[\"']?(?P<key>[^\"'<>]+?)[\"']?"
    key_spelling: str = "{key}"
    trim: Trim = "newline"  # which white space around a value is markup
    cdata: bool = False
    html_entities: bool = False  # names and keys are HTML-escaped
    block: MarkerPair = NO_MARKERS  # markers around such an object; the opening one ends like a key
    untyped: Literal["text", "json"] = "text"  # how to read a value that no schema describes


@dataclass(frozen=True, kw_only=True)
class NestedElements:
    """A name, then arguments as elements: object keys are tags, list entries are `item` tags."""

    name_ends: tuple[str, ...] = ('">',)
    name_pattern: str = r"[\"']?(?P<name>[^\"'<>]+?)[\"']?"
    spellings: tuple[str, ...] = ("{name}",)
    prefix: str = ""  # precedes every tag
    item: str = "item"


@dataclass(frozen=True, kw_only=True)
class PythonCalls:
    """Calls in Python syntax: `[f(a=1), g()]`."""

    brackets: bool = True  # without brackets, each call may be on a line of its own


CallBody: TypeAlias = JsonObjects | NamedObject | TaggedArguments | NestedElements | PythonCalls


@dataclass(frozen=True, kw_only=True)
class MessageHeader:
    """The header of a message, which decides the channel the message goes to.

    A header is the text between one of `open` and one of `end`. The first of `routes` whose
    pattern matches wins; a `call` route takes the tool name from the pattern.
    """

    open: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    close: tuple[str, ...] = ()  # ends a message
    routes: tuple[tuple[str, Literal["text", "reasoning", "call"]], ...] = ()
    answer_starts: tuple[str, ...] = ()  # how an answer that starts inside a header may start
    spellings: tuple[tuple[Literal["text", "reasoning", "call"], str], ...] = ()  # whole headers
    separator: str = ""  # between a message and the header of the next


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How a model writes tool calls."""

    name: str
    models: str
    example: str
    bodies: tuple[CallBody, ...]  # the first body that can start with the next character is read
    section: MarkerPair = NO_MARKERS
    call: MarkerPair = NO_MARKERS
    header: MessageHeader | None = None
    section_optional: bool = False  # a call may appear without its section
    unmarked_starts: tuple[str, ...] = ()  # characters that start a call without any marker
    unmarked_at_start: bool = False  # a call needs no marker at the very start of an answer
    dropped: tuple[str, ...] = ()  # markers around text that are not part of it
    skipped: tuple[MarkerPair, ...] = ()  # markers inside text, removed with what they enclose
    ignored_after_call: tuple[str, ...] = ()  # markers without a meaning that may follow a call
    template_hints: tuple[str, ...] = ()  # template text that identifies it where markers do not
    default_reasoning: str = ""  # for models whose template has no reasoning format
    suffixes: tuple[str, ...] = ()  # of known checkpoints, where markers contain `SUFFIX`
    aliases: tuple[str, ...] = ()
    evidence: Evidence = "tested"
    sources: str = ""  # where the format was found, unless the tests of other projects cover it

    def list_call_keys(self) -> list[str]:
        """Return the keys of an object that is a whole call."""
        bodies = [body for body in self.bodies if isinstance(body, JsonObjects)]
        return [key for body in bodies for key in (*body.name, *body.arguments, *body.id)]


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """How a model writes reasoning."""

    name: str
    models: str
    example: str
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    opens_at_start: tuple[str, ...] = ()  # open reasoning, but only at the start of the answer
    # names of channels after the opening marker, and where their text goes
    channels: Mapping[str, Literal["text", "reasoning"]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()  # markers around the answer that are not part of it
    skipped: tuple[MarkerPair, ...] = ()  # markers inside text, removed with what they enclose
    header: MessageHeader | None = None
    trim: Trim = "none"  # which white space around reasoning and answer is markup
    keeps_markers: bool = False  # the markers are part of the answer
    special_token_markers: bool = False  # the markers are special tokens, never plain words
    plain_word_markers: bool = False  # the markers are plain words: only the first of each counts
    answer_wrapper: MarkerPair = NO_MARKERS  # markers around the whole answer, not part of it
    template_hints: tuple[str, ...] = ()  # template text that identifies it where markers do not
    answer_separator: str = "\n\n"  # between closed reasoning and the answer
    starts_inside: bool = False  # an answer whose prompt is unknown starts in reasoning
    ended_by: tuple[str, ...] = ()  # call markers that end unclosed reasoning
    suffixes: tuple[str, ...] = ()  # of known checkpoints, where markers contain `SUFFIX`
    evidence: Evidence = "tested"
    sources: str = ""  # where the format was found, unless the tests of other projects cover it
    aliases: Mapping[str, bool] = field(default_factory=dict)  # other names: their `starts_inside`

    @property
    def open_with_name(self) -> tuple[str, ...]:
        """The opening markers as a grammar writes them, with the name of the channel."""
        names = [name for name, channel in self.channels.items() if channel == "reasoning"]
        return tuple(f"{marker}{names[0]}\n" for marker in self.open) if names else self.open


NO_REASONING = ReasoningFormat(
    name="none",
    models="models that do not reason",
    example="Hello.",
    aliases=dict.fromkeys(("qwen2.5", "xlam", "function_gemma", "json"), False),
)
