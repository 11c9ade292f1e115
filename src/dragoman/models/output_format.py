"""What a model's answers look like: how it writes its thoughts and its tool calls.

Both are found from the model's own template when it is loaded (see `detection`), and an operator
can say otherwise. Where the template has no place for tools they are put in the generic form, so
there the answers are read as that. What was found is logged, with both sides of anything that did
not come back from the round trip as it went in.

Where an answer begins, in thoughts or not, is asked of each prompt. Only what the template itself
wrote counts, so a user who mentions a marker changes nothing; of a message that the client wants to
be continued, its own words count.
"""

from __future__ import annotations

import logging
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.detection import DetectedFormats, detect
from dragoman.errors import DragomanError, TemplateRejected
from dragoman.formats import find_reasoning, find_tools
from dragoman.output.library import OutputParser, combine_formats, is_marker_token, opens_inside
from dragoman.output.spec import GAP, ReasoningFormat
from dragoman.output.text_buffer import find_last_marker
from dragoman.prompt import generic_tools
from dragoman.prompt.conversation import flatten_content
from dragoman.prompt.reasoning_options import ReasoningOptions
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.template.capabilities import probe_capabilities
from dragoman.types import Chat

log = logging.getLogger("dragoman.models")

NONE = "none"  # an operator's word for "leave it as it is"
FormatOverrides: TypeAlias = tuple[
    str | None, str | None
]  # what an operator says of tools and thoughts


class SpecialTokens(Protocol):
    """What is needed of a tokenizer."""

    specials: dict[str, int]
    control: frozenset[int]


class AnswerStart(Struct, frozen=True):
    """Where an answer begins."""

    in_reasoning: bool | None = None  # in the middle of a thought; None where no template says
    opening: str | None = None  # what the template wrote, where that is an open header


class OutputFormat(Struct, frozen=True):
    """The formats a model speaks, by name; None is "plain text"."""

    tools: str | None = None
    reasoning: str | None = None

    def for_chat(self, chat: Chat) -> OutputFormat:
        """What is looked for in the answer: calls only where the request lets the model call."""
        return self if chat.callable_tools else OutputFormat(None, self.reasoning)

    def __bool__(self) -> bool:
        return self.tools is not None or self.reasoning is not None

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        return None if self.reasoning is None else find_reasoning(self.reasoning)

    def make_parser(self, chat: Chat, begins: AnswerStart) -> OutputParser:
        """Reads one answer."""
        return OutputParser(
            self.tools,
            self.reasoning,
            tools=chat.callable_tools,
            prompt=begins.opening,
            inside=begins.in_reasoning,
        )

    def find_marker_tokens(self, vocabulary: SpecialTokens | None) -> frozenset[int]:
        """Control tokens that are markers of these formats, or parts of one."""
        if vocabulary is None or not self:
            return frozenset()
        tools = None if self.tools is None else find_tools(self.tools)
        return frozenset(
            token
            for text, token in vocabulary.specials.items()
            if token in vocabulary.control and is_marker_token(tools, self.reasoning_format, text)
        )

    def find_visible_marker_tokens(self, vocabulary: SpecialTokens | None) -> frozenset[int]:
        """Those of them that are part of the answer."""
        thoughts = self.reasoning_format
        if vocabulary is None or thoughts is None or not thoughts.keeps_markers:
            return frozenset()
        known = vocabulary.specials
        return frozenset(
            known[marker] for marker in (*thoughts.open, *thoughts.close) if marker in known
        )

    @property
    def reasoning_close(self) -> str | None:
        """The marker that ends a thought, where we can write it in the model's stead."""
        thoughts = self.reasoning_format
        if thoughts is None or not thoughts.close or thoughts.keeps_markers:
            return None
        if thoughts.header is not None and thoughts.header.routes:
            return None
        return thoughts.close[0].replace(GAP, "")

    @property
    def reasoning_close_in_prompt(self) -> str:
        """The same as it stands in a prompt, with what the answer follows on."""
        thoughts, marker = self.reasoning_format, self.reasoning_close
        return (
            ""
            if thoughts is None or marker is None
            else f"\n{marker.lstrip()}{thoughts.answer_separator}"
        )

    async def find_answer_start(
        self, chat: Chat, rendered: RenderedPrompt, by: PromptRenderer
    ) -> AnswerStart:
        """Where the answer begins, by this prompt."""
        if by.template_source is None:
            return AnswerStart()
        header = combine_formats(self.tools, self.reasoning).header
        opening = None
        if header is not None and rendered.text.endswith(header.open):
            opening = await self._render_opening(chat, by)
        return AnswerStart(await self._starts_in_reasoning(chat, rendered, by), opening)

    async def _render_opening(self, chat: Chat, by: PromptRenderer) -> str | None:
        """What the template writes to open the answer; None if it takes the chat as it is only."""
        try:
            return await by.render_opening(chat)
        except TemplateRejected:
            return None

    async def _starts_in_reasoning(
        self, chat: Chat, rendered: RenderedPrompt, by: PromptRenderer
    ) -> bool | None:
        thoughts = self.reasoning_format
        if thoughts is None:
            return None
        if chat.continue_final_message:
            own = flatten_content(chat.messages[-1].content).strip()
            closed = find_last_marker(own, thoughts.close)
            if own.startswith(tuple(marker.replace(GAP, "") for marker in thoughts.open)):
                return find_last_marker(own, thoughts.open) > closed
            if closed[0] >= 0:
                return False
        elif not opens_inside(thoughts, rendered.text):
            return False
        if (
            rendered.last_special_token in thoughts.open
        ):  # a special token, so nobody but the template wrote it
            return True
        opening = await self._render_opening(chat, by)
        if opening is None:
            return rendered.text.rstrip().endswith(thoughts.open)
        return opens_inside(thoughts, opening)


class TemplateFindings(Struct, frozen=True):
    """What was found out about a model's template."""

    output_format: OutputFormat = OutputFormat()
    reasoning_options: ReasoningOptions = ReasoningOptions()


def check_names(tools: str | None, reasoning: str | None) -> None:
    """A `ValueError` with the choices, for a format that does not exist."""
    if tools and tools != NONE:
        find_tools(tools)
    if reasoning and reasoning != NONE:
        find_reasoning(reasoning)


def detect_output_format(
    template: str | None, vocabulary: SpecialTokens | None, said: FormatOverrides, name: str
) -> TemplateFindings:
    """What a model's template says of its answers, with what an operator said over it."""
    tools, reasoning = said
    check_names(tools, reasoning)
    placed = template is not None and probe_capabilities(template).tools_rendered
    if tools and not placed and (tools == NONE or find_tools(tools).name != generic_tools.FORMAT):
        pair = generic_tools.FORMAT, tools
        log.warning("%s: the prompt teaches %s, answers are read as %s", name, *pair)
    if template is None:
        speech = OutputFormat(_override(tools, generic_tools.FORMAT), _override(reasoning, None))
        return TemplateFindings(speech, ReasoningOptions(can_reason=speech.reasoning is not None))
    try:
        found = detect(template, () if vocabulary is None else vocabulary.specials)
    except DragomanError:
        raise
    except Exception:
        log.exception("%s: what its template says of its answers could not be found", name)
        own = None if placed else generic_tools.FORMAT
        return TemplateFindings(
            OutputFormat(_override(tools, own), _override(reasoning, None)),
            ReasoningOptions(can_reason=True),
        )
    _log_findings(found, name)
    own = found.tools if placed else generic_tools.FORMAT
    speech = OutputFormat(_override(tools, own), _override(reasoning, found.reasoning))
    switch = found.reasoning_controls.switch
    switched = None if switch is None else (switch.name, switch.on, switch.off)
    thinks = (found.reasoning or speech.reasoning) is not None
    knobs = ReasoningOptions(switched, found.reasoning_controls.budget, can_reason=thinks)
    if found.reasoning_controls.effort:
        knobs = replace(knobs, effort=found.reasoning_controls.effort)
    return TemplateFindings(speech, knobs)


def _override(said: str | None, found: str | None) -> str | None:
    """The operator's word over what was found."""
    if not said:
        return found
    return None if said == NONE else said


def _log_findings(found: DetectedFormats, name: str) -> None:
    log.info(
        "%s: tool calls as %s, thoughts as %s (%s)",
        name,
        found.tools,
        found.reasoning or NONE,
        found.confidence,
    )
    for item in found.failed_checks:
        log.warning(
            "%s: its template's %s did not come back as it went in: %r was written as %r and "
            "read as %r",
            name,
            item.name,
            item.expected,
            item.text,
            item.parsed,
        )
