"""What detection found: nouns only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dragoman.output.spec import ReasoningFormat, ToolFormat

AnswerPosition: TypeAlias = Literal["inside", "closed", "open"]
Confidence: TypeAlias = Literal["proved", "partly", "unverified", "generic"]
CheckStatus: TypeAlias = Literal["proved", "failed", "otherwise", "unwritten"]


@dataclass(frozen=True)
class ProbeCall:
    """A call that the assistant is turn to have made."""

    name: str
    arguments: Any


@dataclass(frozen=True, kw_only=True)
class ProbeTurn:
    """What goes into a turn, or came out of one."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ProbeCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoundTripCheck:
    """One thing that was rendered, read back and compared.

    `unwritten`: not all of it arrives in the prompt. `otherwise`: the template writes it as
    something else, text as reasoning or one turn as two, and that is what came back.
    """

    name: str
    status: CheckStatus
    expected: ProbeTurn
    parsed: ProbeTurn | None = None  # what was read back
    prompt: str = ""  # how the template opened the turn
    text: str = ""  # the turn as the template wrote it
    end: str = ""  # what it wrote behind a turn that is no part of the format


@dataclass(frozen=True)
class ReasoningSwitch:
    """A variable of the template that turns thinking on and off."""

    name: str
    on: Any
    off: Any


@dataclass(frozen=True, kw_only=True)
class ReasoningControls:
    """How thinking is switched, and where an answer begins.

    `inside`: in reasoning that the template opened. `closed`: behind reasoning that it opened and
    closed, or only closed. `open`: in neither, so the model decides.
    """

    switches: tuple[ReasoningSwitch, ...] = ()  # the first one is the one to use
    effort: str | None = None  # the variable for how much to think
    efforts: tuple[str, ...] = ()  # what it may be, where that makes a difference
    budget: str | None = None  # the variable for the most tokens of reasoning
    answer_positions: dict[str, AnswerPosition] = field(
        default_factory=dict
    )  # for "default", "on" and "off"
    openings: dict[str, str] = field(default_factory=dict)  # what the template writes, likewise
    system_words: dict[str, AnswerPosition] = field(
        default_factory=dict
    )  # the same for words in a system message

    @property
    def switch(self) -> ReasoningSwitch | None:
        return self.switches[0] if self.switches else None


@dataclass(frozen=True, kw_only=True)
class DetectedFormats:
    """The formats of a template, and how far they were proved."""

    tools: str | None  # the format of calls
    reasoning: str | None  # the format of reasoning; None where nothing points to any
    generic: bool  # no format of its own: definitions in the system message, calls in `tools`
    renders_tools: bool  # the template writes the tools that a request declares
    renders_messages: bool  # the template writes a plain message of a user's
    reasoning_controls: ReasoningControls
    checks: tuple[RoundTripCheck, ...]
    confidence: Confidence
    reasons: tuple[str, ...]  # what led to the two formats
    equivalent: tuple[str, ...] = ()  # formats that read everything just as well
    digest: str = ""  # of the template
    tool_format: ToolFormat | None = None  # the two formats themselves
    reasoning_format: ReasoningFormat | None = None

    @property
    def failed_checks(self) -> tuple[RoundTripCheck, ...]:
        return tuple(item for item in self.checks if item.status == "failed")
