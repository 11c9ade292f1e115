"""The data types of detection."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dragoman.output.spec import ReasoningFormat, ToolFormat
from dragoman.types import Json

AnswerPosition: TypeAlias = Literal["inside", "closed", "open"]
Confidence: TypeAlias = Literal["verified", "partly_verified", "unverified", "generic"]
CheckStatus: TypeAlias = Literal["ok", "failed", "rendered_differently", "not_rendered"]

VERIFIED = {
    True: "verified by round trip",
    False: "read from the template or the special tokens, not verified",
    None: "some checks failed, see below",
}
GENERIC = "generic prompt: the template renders no tools"


@dataclass(frozen=True)
class ProbeCall:
    """A made-up tool call of the assistant."""

    name: str
    arguments: Json


@dataclass(frozen=True, kw_only=True)
class ProbeTurn:
    """The content of a made-up or parsed assistant turn."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ProbeCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoundTripCheck:
    """One turn that was rendered, parsed and compared.

    `not_rendered`: the template does not render all of it. `rendered_differently`: the template
    renders it as something else (text as reasoning, or one turn as two), and parsing returned that.
    """

    name: str
    status: CheckStatus
    expected: ProbeTurn
    parsed: ProbeTurn | None = None
    prompt: str = ""  # the text with which the template opens the turn
    text: str = ""  # the rendered turn
    end: str = ""  # text after the turn that is not part of the format


@dataclass(frozen=True)
class ReasoningSwitch:
    """A template variable that turns reasoning on and off."""

    name: str
    on: Json
    off: Json


@dataclass(frozen=True, kw_only=True)
class ReasoningControls:
    """How a template controls reasoning, and where an answer starts.

    `inside`: in reasoning that the template opens. `closed`: after reasoning that it opens and
    closes, or only closes. `open`: neither, so the model decides.
    """

    switches: tuple[ReasoningSwitch, ...] = ()  # the first one is used
    effort: str | None = None  # the variable for the reasoning effort
    efforts: tuple[str, ...] = ()  # its values that have an effect
    budget: str | None = None  # the variable for the maximum number of reasoning tokens
    # where an answer starts, for "default", "on" and "off"
    answer_positions: dict[str, AnswerPosition] = field(default_factory=dict)
    # the text that opens the answer, for the same keys
    openings: dict[str, str] = field(default_factory=dict)
    # where an answer starts, for words in a system message
    system_words: dict[str, AnswerPosition] = field(default_factory=dict)

    @property
    def switch(self) -> ReasoningSwitch | None:
        return self.switches[0] if self.switches else None


@dataclass(frozen=True, kw_only=True)
class DetectedFormats:
    """The formats of a template, and how far they were verified."""

    tools: str | None  # name of the tool format
    reasoning: str | None  # name of the reasoning format; None without evidence of one
    is_generic: bool  # the template has no tool format: tools are declared in the system message
    renders_tools: bool  # the template renders declared tools
    renders_messages: bool  # the template renders a plain user message
    reasoning_controls: ReasoningControls
    checks: tuple[RoundTripCheck, ...]
    confidence: Confidence
    reasons: tuple[str, ...]  # the evidence for the two formats
    equivalent: tuple[str, ...] = ()  # formats that parse everything equally well
    digest: str = ""  # of the template
    tool_format: ToolFormat | None = None  # the two formats themselves
    reasoning_format: ReasoningFormat | None = None

    @property
    def failed_checks(self) -> tuple[RoundTripCheck, ...]:
        return tuple(check for check in self.checks if check.status == "failed")

    def describe(self) -> dict[str, str]:
        """Name both formats, and say of each whether it was verified."""
        calls = _is_verified(check for check in self.checks if check.expected.calls)
        tools = f"{self.tools} ({GENERIC if self.is_generic else VERIFIED[calls]})"
        verified = _is_verified(check for check in self.checks if check.expected.reasoning)
        reasoning = f"{self.reasoning} ({VERIFIED[verified]})" if self.reasoning else "none"
        return {"tool calls": tools, "reasoning": reasoning}


def _is_verified(checks: Iterable[RoundTripCheck]) -> bool | None:
    """Whether what the template renders is parsed back; None if some of it is not."""
    statuses = {check.status for check in checks}
    return None if "failed" in statuses else "ok" in statuses
