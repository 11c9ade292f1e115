"""The output format of a loaded model: how it writes reasoning and tool calls.

Both are detected from the model's own template at load (see `detection`), and an operator can
override them. If the template cannot render tools, they are declared in the generic form, and
answers are parsed accordingly. The result is logged, with both sides of every failed round trip.

Whether an answer starts inside reasoning is decided for each prompt. Only text that the template
itself wrote counts, so a user who mentions a marker changes nothing. If the client continues a
message, the text of that message counts.
"""

from __future__ import annotations

import logging
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.detection import DetectedFormats, detect
from dragoman.errors import DragomanError, TemplateRejected
from dragoman.formats import DETECTED, UNPARSED, find_reasoning, find_tools
from dragoman.output.library import OutputParser, combine_formats, is_marker_token, opens_inside
from dragoman.output.rules import DEFAULT_POLICY, ParserPolicy
from dragoman.output.spec import GAP, NO_REASONING, ReasoningFormat
from dragoman.output.text_buffer import find_last_marker
from dragoman.prompt import generic_tools
from dragoman.prompt.conversation import flatten_content
from dragoman.prompt.reasoning_options import ReasoningOptions
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.template.capabilities import probe_capabilities
from dragoman.types import Chat

log = logging.getLogger("dragoman.models")

ONLY_CALLS = ParserPolicy(only_calls=True)
FormatOverrides: TypeAlias = tuple[str | None, str | None]  # an operator's tool, reasoning format


class SpecialTokens(Protocol):
    """The part of a tokenizer that is needed here."""

    specials: dict[str, int]
    control: frozenset[int]


class AnswerStart(Struct, frozen=True):
    """How an answer starts."""

    in_reasoning: bool | None = None  # inside reasoning; None without a template
    opening: str | None = None  # the text the template wrote, if it is an open header


class OutputFormat(Struct, frozen=True):
    """The names of a model's tool and reasoning formats; None is plain text."""

    tools: str | None = None
    reasoning: str | None = None

    def for_chat(self, chat: Chat) -> OutputFormat:
        """Return the formats to parse an answer with: calls only if the request allows them."""
        if self.tools is None or chat.callable_tools:
            return self
        return OutputFormat(None, self.reasoning)

    def __bool__(self) -> bool:
        return self.tools is not None or self.reasoning is not None

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        return None if self.reasoning is None else find_reasoning(self.reasoning)

    def make_parser(self, chat: Chat, start: AnswerStart) -> OutputParser:
        """Return a parser for one answer."""
        return OutputParser(
            self.tools,
            self.reasoning,
            tools=chat.callable_tools,
            prompt=start.opening,
            inside=start.in_reasoning,
            policy=ONLY_CALLS if chat.tool_choice == "required" else DEFAULT_POLICY,
        )

    def find_marker_tokens(self, vocabulary: SpecialTokens | None) -> frozenset[int]:
        """Return the special tokens that are markers of these formats, or parts of one."""
        if vocabulary is None or not self:
            return frozenset()
        tools = None if self.tools is None else find_tools(self.tools)
        return frozenset(
            token
            for text, token in vocabulary.specials.items()
            if token in vocabulary.control and is_marker_token(tools, self.reasoning_format, text)
        )

    def find_visible_marker_tokens(self, vocabulary: SpecialTokens | None) -> frozenset[int]:
        """Return the marker tokens that are part of the answer."""
        reasoning = self.reasoning_format
        if vocabulary is None or reasoning is None or not reasoning.keeps_markers:
            return frozenset()
        known = vocabulary.specials
        return frozenset(
            known[marker] for marker in (*reasoning.open, *reasoning.close) if marker in known
        )

    @property
    def reasoning_close(self) -> str | None:
        """The marker that ends reasoning, if we can write it in place of the model."""
        reasoning = self.reasoning_format
        if reasoning is None or not reasoning.close or reasoning.keeps_markers:
            return None
        if reasoning.header is not None and reasoning.header.routes:
            return None
        return reasoning.close[0].replace(GAP, "")

    @property
    def reasoning_close_in_prompt(self) -> str:
        """The marker that ends reasoning as a prompt contains it, with the separator."""
        reasoning, marker = self.reasoning_format, self.reasoning_close
        return (
            ""
            if reasoning is None or marker is None
            else f"\n{marker.lstrip()}{reasoning.answer_separator}"
        )

    async def find_answer_start(
        self, chat: Chat, rendered: RenderedPrompt, renderer: PromptRenderer
    ) -> AnswerStart:
        """Return how the answer to this prompt starts."""
        if renderer.template_source is None:
            return AnswerStart()
        header = combine_formats(self.tools, self.reasoning).header
        opening = None
        if header is not None and rendered.text.endswith(header.open):
            opening = await self._render_opening(chat, renderer)
        return AnswerStart(await self._starts_in_reasoning(chat, rendered, renderer), opening)

    async def _render_opening(self, chat: Chat, renderer: PromptRenderer) -> str | None:
        """Return the text that opens the answer; None if the template rejects a shorter chat."""
        try:
            return await renderer.render_opening(chat)
        except TemplateRejected:
            return None

    async def _starts_in_reasoning(
        self, chat: Chat, rendered: RenderedPrompt, renderer: PromptRenderer
    ) -> bool | None:
        reasoning = self.reasoning_format
        if reasoning is None:
            return None
        if chat.continue_final_message:
            text = flatten_content(chat.messages[-1].content).strip()
            closed = find_last_marker(text, reasoning.close)
            if text.startswith(tuple(marker.replace(GAP, "") for marker in reasoning.open)):
                return find_last_marker(text, reasoning.open) > closed
            if closed[0] >= 0:
                return False
        elif not opens_inside(reasoning, rendered.text):
            return False
        if rendered.last_special_token in reasoning.open:  # only a template writes special tokens
            return True
        opening = await self._render_opening(chat, renderer)
        if opening is None:
            return rendered.text.rstrip().endswith(reasoning.open)
        return opens_inside(reasoning, opening)


class TemplateFindings(Struct, frozen=True):
    """The output format and reasoning options of a model's template."""

    output_format: OutputFormat = OutputFormat()
    reasoning_options: ReasoningOptions = ReasoningOptions()


def check_names(tools: str | None, reasoning: str | None) -> None:
    """Raise a `ValueError` that lists the choices if a format does not exist."""
    if tools and tools not in UNPARSED | DETECTED:
        find_tools(tools)
    if reasoning and reasoning not in DETECTED:
        find_reasoning(reasoning)


def detect_output_format(
    template: str | None, vocabulary: SpecialTokens | None, overrides: FormatOverrides, name: str
) -> TemplateFindings:
    """Detect a model's formats from its template, and apply the operator's overrides."""
    tools, reasoning = resolve_overrides(overrides)
    has_tools = template is not None and probe_capabilities(template).tools_rendered
    if (
        tools
        and not has_tools
        and (tools in UNPARSED or find_tools(tools).name != generic_tools.FORMAT)
    ):
        log.warning(
            "%s: tools are declared as %s, but calls are parsed as %s",
            name,
            generic_tools.FORMAT,
            tools,
        )
    if template is None:
        output_format = OutputFormat(
            apply_override(tools, generic_tools.FORMAT), apply_override(reasoning, None)
        )
        return TemplateFindings(
            output_format, ReasoningOptions(can_reason=output_format.reasoning is not None)
        )
    try:
        detected = detect(template, () if vocabulary is None else vocabulary.specials)
    except DragomanError:
        raise
    except Exception:
        log.exception("%s: detecting the output format failed", name)
        default = None if has_tools else generic_tools.FORMAT
        return TemplateFindings(
            OutputFormat(apply_override(tools, default), apply_override(reasoning, None)),
            ReasoningOptions(can_reason=True),
        )
    _log_findings(detected, name)
    default = detected.tools if has_tools else generic_tools.FORMAT
    output_format = OutputFormat(
        apply_override(tools, default), apply_override(reasoning, detected.reasoning)
    )
    switch = detected.reasoning_controls.switch
    switch_values = None if switch is None else (switch.name, switch.on, switch.off)
    can_reason = (detected.reasoning or output_format.reasoning) is not None
    options = ReasoningOptions(
        switch_values, detected.reasoning_controls.budget, can_reason=can_reason
    )
    if detected.reasoning_controls.effort:
        options = replace(options, effort=detected.reasoning_controls.effort)
    return TemplateFindings(output_format, options)


def resolve_overrides(overrides: FormatOverrides) -> FormatOverrides:
    """Return the operator's choices: None to detect a format, `none` for models without one."""
    check_names(*overrides)
    tools, reasoning = (None if choice in DETECTED else choice for choice in overrides)
    if reasoning and find_reasoning(reasoning).name == NO_REASONING.name:
        reasoning = NO_REASONING.name
    return tools, reasoning


def apply_override(override: str | None, detected: str | None) -> str | None:
    """Return the operator's choice if there is one, else the detected format."""
    if not override:
        return detected
    return None if override in UNPARSED else override


def _log_findings(detected: DetectedFormats, name: str) -> None:
    findings = "; ".join(f"{topic}: {text}" for topic, text in detected.describe().items())
    log.info("%s: %s", name, findings)
    for check in detected.failed_checks:
        log.warning(
            "%s: round trip failed for %s: %r was rendered as %r and parsed as %r",
            name,
            check.name,
            check.expected,
            check.text,
            check.parsed,
        )
