"""What detection found: nouns only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dragoman.output.spec import ReasoningFormat, ToolFormat

Begin: TypeAlias = Literal["inside", "closed", "open"]
Sure: TypeAlias = Literal["proved", "partly", "said", "generic"]
Status: TypeAlias = Literal["proved", "failed", "otherwise", "unwritten"]


@dataclass(frozen=True)
class Call:
    """A call that the assistant is said to have made."""

    name: str
    arguments: Any


@dataclass(frozen=True, kw_only=True)
class Said:
    """What goes into a turn, or came out of one."""

    text: str = ""
    thoughts: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that was rendered, read back and compared.

    `unwritten`: not all of it arrives in the prompt. `otherwise`: the template writes it as
    something else, text as thoughts or one turn as two, and that is what came back.
    """

    name: str
    status: Status
    said: Said
    came: Said | None = None  # what was read back
    prompt: str = ""  # how the template opened the turn
    text: str = ""  # the turn as the template wrote it
    end: str = ""  # what it wrote behind a turn that is no part of the format


@dataclass(frozen=True)
class Switch:
    """A variable of the template that turns thinking on and off."""

    name: str
    on: Any
    off: Any


@dataclass(frozen=True, kw_only=True)
class Thinking:
    """How thinking is switched, and where an answer begins.

    `inside`: in thoughts that the template opened. `closed`: behind thoughts that it opened and
    closed, or only closed. `open`: in neither, so the model decides.
    """

    switches: tuple[Switch, ...] = ()  # the first one is the one to use
    effort: str | None = None  # the variable for how much to think
    efforts: tuple[str, ...] = ()  # what it may be, where that makes a difference
    budget: str | None = None  # the variable for the most tokens of thoughts
    begins: dict[str, Begin] = field(default_factory=dict)  # for "default", "on" and "off"
    openings: dict[str, str] = field(default_factory=dict)  # what the template writes, likewise
    words: dict[str, Begin] = field(default_factory=dict)  # the same for words in a system message

    @property
    def switch(self) -> Switch | None:
        return self.switches[0] if self.switches else None


@dataclass(frozen=True, kw_only=True)
class Detected:
    """The formats of a template, and how far they were proved."""

    tools: str | None  # the format of calls
    reasoning: str | None  # the format of thoughts; None where nothing points to any
    generic: bool  # no format of its own: definitions in the system message, calls in `tools`
    declares: bool  # the template writes the tools that a request declares
    renders: bool  # the template writes a plain message of a user's
    thinking: Thinking
    proof: tuple[Item, ...]
    sure: Sure
    why: tuple[str, ...]  # what led to the two formats
    also: tuple[str, ...] = ()  # formats that read everything just as well
    digest: str = ""  # of the template
    calls: ToolFormat | None = None  # the two formats themselves
    thoughts: ReasoningFormat | None = None

    @property
    def failed(self) -> tuple[Item, ...]:
        return tuple(item for item in self.proof if item.status == "failed")
