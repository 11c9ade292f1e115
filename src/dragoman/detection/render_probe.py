"""Renders made-up conversations to find out how a template writes an assistant turn.

A conversation is rendered with and without the turn, up to the point where an answer starts. The
common part is the prompt; the rest is the turn, as the model saw it in training. Its end, which the
model generates as a token and not as text, is known from a plain turn: everything after the words
of that turn.

Templates accept different inputs, so a turn with calls is tried in several forms until its words
are rendered.

A template is untrusted code, so detection is bounded: by the time of all renderings, by total time,
and by the length of the text that is examined. Checks that do not run within the limits prove
nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, TypeAlias

import msgspec

from dragoman.detection.probe_words import (
    ANSWER,
    LOOKUP_TOOL,
    NEXT_QUESTION,
    OTHER_ANSWER,
    QUESTION,
    REASONING,
    TOOLS,
    VALUE,
    WORD,
)
from dragoman.detection.result import ProbeCall, ProbeTurn
from dragoman.errors import TemplateRejected
from dragoman.prompt.special_tokens import MarkedText
from dragoman.prompt.template.budget import RenderBudget, RenderLimits
from dragoman.prompt.template.capabilities import (
    ARGUMENTS_FORMS,
    CONTENT_FORMS,
    NO_GUARD,
    PROBE_TOKENS,
    ArgumentsForm,
    ContentForm,
    make_tools_variable,
    probe_capabilities,
)
from dragoman.prompt.template.template import compile_template
from dragoman.types import Json

Switches: TypeAlias = Mapping[str, Json]
CallIds: TypeAlias = Literal["long", "short", "named"]
FollowUp: TypeAlias = Literal["nothing", "user"]
FOLLOW_UPS: tuple[FollowUp, ...] = ("nothing", "user")
ReasoningLocation: TypeAlias = Literal["fields", "parts"]
REASONING_LOCATIONS: tuple[ReasoningLocation, ...] = ("fields", "parts")

MAX_TURN = 16_000  # characters of a turn that are examined
MAX_PIECES = 40  # pieces of that tail
MAX_TAIL = 400  # characters after a turn that are examined
# shared by all renderings of a template; `min_text` bounds the length of the first rendering
PROBE_LIMITS = RenderLimits(seconds=1.0, steps=400_000, min_text=1 << 18)
MAX_SECONDS = 4.0  # for all of detection; an ordinary template takes 0.3
# a template that prints a list of content parts instead of rendering it
PRINTED_PARTS = re.compile(r"""["']type["']\s*:\s*["']thinking""")
PIECE = re.compile(r"<[^<>\s][^<>\n]*>|\[[^\[\]\s]*\]|\s+|[^<\[\s]+|.")
TAG = re.compile(r"<[^<>\s][^<>\n]*>|\[/?[A-Z_]+\]")


@dataclass(frozen=True)
class RenderedTurn:
    """A turn as the template renders it."""

    prompt: str  # the text that opens the turn
    texts: tuple[str, ...]  # the turn without its end marker; possible readings, likeliest first
    skipped_opening: str = ""  # opens an answer in a prompt, but is not rendered for this turn

    @property
    def text(self) -> str:
        return self.texts[0]


@dataclass(frozen=True)
class TurnForm:
    """The form in which a turn is passed so that the template renders all of it."""

    arguments: ArgumentsForm = "dict"
    content: ContentForm = "empty"  # of a turn with calls only
    call_ids: CallIds = "long"
    has_tools: bool = False
    follow_up: FollowUp = "nothing"
    reasoning_in: ReasoningLocation = "fields"
    system: str = ""


class RenderProbe:
    """Renders turns with one template."""

    def __init__(self, source: str) -> None:
        self.template = compile_template(source)
        self.facts = self.template.facts
        self.capabilities = probe_capabilities(source)
        self._limits = PROBE_LIMITS
        self._deadline = time.thread_time() + MAX_SECONDS
        self._cache: dict[Json, str | None] = {}
        self.call_form = self._find_call_form()  # None: calls are never rendered
        self.reasoning_form: tuple[TurnForm, Switches] | None = None  # None: reasoning never is

    # rendering

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        return time.thread_time() > self._deadline

    @property
    def is_incomplete(self) -> bool:
        """Whether a check was skipped because of the time limit."""
        return self.is_out_of_time or self._limits.seconds <= 0

    def render(
        self,
        turn: ProbeTurn | None,
        form: TurnForm,
        switches: Switches,
        add_generation_prompt: bool = False,
    ) -> str | None:
        """Render a conversation that ends with the turn, or where the turn would start."""
        key = (repr(turn), form, repr(sorted(switches.items())), add_generation_prompt)
        if key not in self._cache:
            messages = [self._make_message("user", QUESTION)]
            if form.system or (self.capabilities.tools_need_system and form.has_tools):
                messages.insert(0, self._make_message("system", form.system))
            if turn is not None:
                messages.append(self._make_assistant_message(turn, form))
                messages += (
                    [self._make_message("user", NEXT_QUESTION)] if form.follow_up == "user" else []
                )
            self._cache[key] = self._render_messages(
                messages, form, switches, add_generation_prompt
            )
        return self._cache[key]

    def _render_messages(
        self,
        messages: list[dict[str, Json]],
        form: TurnForm,
        switches: Switches,
        add_generation_prompt: bool,
    ) -> str | None:
        if self.is_incomplete:  # a short rendering never checks the time itself
            return None
        tools = TOOLS if form.has_tools else None
        marked = MarkedText(NO_GUARD)
        variables = marked.mark_tree(
            PROBE_TOKENS
            | {
                "messages": messages,
                "datetime": "zqdate",
                "add_generation_prompt": add_generation_prompt,
            }
            | make_tools_variable(tools, self.capabilities.no_tools, self.facts)
            | dict(switches)
        )
        started = time.thread_time()
        try:
            return self.template.render(
                variables, RenderBudget(self._limits, known_sizes=marked.known_sizes)
            )
        except TemplateRejected:
            return None
        finally:
            left = self._limits.seconds - (time.thread_time() - started)
            self._limits = msgspec.structs.replace(self._limits, seconds=left)

    def render_opening(self, switches: Switches, form: TurnForm | None = None) -> str | None:
        """Return the text with which the template opens an answer."""
        form = form or TurnForm()
        full = self.render(None, form, switches, add_generation_prompt=True)
        without_opening = self.render(None, form, switches)
        if full is None:
            return None
        if (
            without_opening is not None
            and full.startswith(without_opening)
            and len(full) > len(without_opening)
        ):
            return full[len(without_opening) :][-MAX_TURN:]
        return full[max(full.rfind(QUESTION), 0) :].removeprefix(QUESTION)[-MAX_TURN:]

    def render_turn(
        self, turn: ProbeTurn, form: TurnForm, switches: Switches
    ) -> RenderedTurn | None:
        """Render a turn and separate it from its prompt; None if the template rejects it."""
        if self.is_out_of_time:
            return None
        full = self.render(turn, form, switches)
        before = self.render(None, form, switches, add_generation_prompt=True)
        if full is None or before is None:
            return None
        count = before.count(QUESTION)
        before = before.rpartition(QUESTION)[2]
        full = full.split(QUESTION, count)[-1]
        if max(len(before), len(full)) > MAX_TURN:
            return None
        shared, start = _find_divergence(before, full)
        skipped = before[shared:].strip()
        if skipped:
            # no turn continues this prompt, so the common start of all turns is not part of one
            start = max(start, self._measure_common_start(full, form, switches))
        return RenderedTurn(
            prompt=full[:start],
            texts=_strip_endings(full[start:], self._render_plain_tail(form, switches)),
            skipped_opening=skipped,
        )

    def _measure_common_start(self, full: str, form: TurnForm, switches: Switches) -> int:
        """Return the length that a turn shares with the start of a plain turn."""
        plain = self.render(ProbeTurn(text=OTHER_ANSWER), form, switches)
        before, word, _ = (plain or "").rpartition(OTHER_ANSWER)
        return _find_divergence(before.rpartition(QUESTION)[2][:MAX_TURN], full)[1] if word else 0

    def _render_plain_tail(self, form: TurnForm, switches: Switches) -> str:
        """Return the text after the words of a plain turn."""
        plain = self.render(ProbeTurn(text=OTHER_ANSWER), form, switches)
        return plain.rpartition(OTHER_ANSWER)[2] if plain and OTHER_ANSWER in plain else ""

    # messages

    def _make_message(self, role: str, word: str) -> dict[str, Json]:
        as_parts = role in self.capabilities.part_roles
        return {"role": role, "content": [{"type": "text", "text": word}] if as_parts else word}

    def _make_assistant_message(self, turn: ProbeTurn, form: TurnForm) -> dict[str, Json]:
        message = self._make_message("assistant", turn.text)
        if turn.reasoning and form.reasoning_in == "fields":
            message |= dict.fromkeys(self.capabilities.reasoning_fields, turn.reasoning)
        elif turn.reasoning:
            reasoning_part = {"type": "thinking", "thinking": turn.reasoning}
            message["content"] = [reasoning_part, {"type": "text", "text": turn.text}]
        if turn.calls:
            message["tool_calls"] = [
                _make_call(call, number, form) for number, call in enumerate(turn.calls)
            ]
            if not turn.text and not (turn.reasoning and form.reasoning_in == "parts"):
                if form.content == "absent":
                    del message["content"]
                elif form.content == "null":
                    message["content"] = None
        return message

    # forms

    def _find_call_form(self) -> TurnForm | None:
        """Return the first form in which a call's name and value are rendered."""
        words = (VALUE, LOOKUP_TOOL)
        turn = ProbeTurn(calls=(ProbeCall(LOOKUP_TOOL, {"zqplace": VALUE}),))
        for form in self._list_call_forms():
            rendered = self.render_turn(turn, form, {})
            if rendered is not None and all(word in rendered.texts[-1] for word in words):
                return form
        return None

    def _list_call_forms(self) -> list[TurnForm]:
        capabilities = self.capabilities
        forms: list[tuple[ArgumentsForm, ContentForm]] = list(
            product(ARGUMENTS_FORMS, CONTENT_FORMS)
        )
        ids: list[CallIds] = ["long", "named", "short"]
        if capabilities.tool_calls_rendered:
            forms = [(capabilities.arguments, capabilities.call_content)]
            ids = ["short"] if capabilities.short_ids else ids
        tools = (
            (True, False)
            if capabilities.tools_rendered or capabilities.calls_need_tools
            else (False, True)
        )
        return [
            TurnForm(arguments, content, ids_form, declared, follow_up)
            for (arguments, content), ids_form, declared, follow_up in product(
                forms, ids, tools, FOLLOW_UPS
            )
        ]

    def find_reasoning_form(self, settings: Sequence[Switches]) -> None:
        """Find the first form and switch setting in which reasoning is rendered."""
        plain = ProbeTurn(text=ANSWER, reasoning=REASONING)
        turns = [(plain, TurnForm(reasoning_in=location)) for location in REASONING_LOCATIONS]
        if self.call_form is not None:
            calls = ProbeTurn(
                reasoning=REASONING, calls=(ProbeCall(LOOKUP_TOOL, {"zqplace": VALUE}),)
            )
            turns += [
                (calls, replace(self.call_form, reasoning_in=location))
                for location in REASONING_LOCATIONS
            ]
        turns += [
            (plain, TurnForm(reasoning_in=location, follow_up="user"))
            for location in REASONING_LOCATIONS
        ]
        for (turn, form), switches in product(turns, settings):
            text = None if self.is_out_of_time else self.render(turn, form, switches)
            if text is not None and REASONING in text and PRINTED_PARTS.search(text) is None:
                self.reasoning_form = (form, switches)
                return


def _make_call(call: ProbeCall, number: int, form: TurnForm) -> dict[str, Json]:
    ids = {
        "long": f"call_zq{number:09}",
        "short": f"zqcall{number:03}",
        "named": f"functions.{call.name}:{number}",
    }
    arguments: Json = call.arguments
    if form.arguments == "text":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "type": "function",
        "id": ids[form.call_ids],
        "function": {"name": call.name, "arguments": arguments},
    }


def _find_divergence(first: str, second: str) -> tuple[int, int]:
    """Return where two texts diverge: not inside a tag, and ignoring white space."""
    steps = [(0, 0)]
    i, j = 0, 0
    while i < len(first) and j < len(second):
        if first[i] == second[j]:
            i, j = i + 1, j + 1
            steps.append((i, j))
        elif first[i].isspace():
            i += 1
        elif second[j].isspace():
            j += 1
        else:
            break
    i, j = steps[-1]
    if i < len(first):
        before_tag = _find_tag_start(first, i), _find_tag_start(second, j)
        i, j = max(step for step in steps if step[0] <= before_tag[0] and step[1] <= before_tag[1])
    return i, j


def _find_tag_start(text: str, pos: int) -> int:
    """Return the start of the tag around a position, or the position itself."""
    return next((tag.start() for tag in TAG.finditer(text) if tag.start() < pos < tag.end()), pos)


def _find_common_end(text: str, tail: str) -> str:
    """Return the common end of two texts, without part of a tag."""
    start = len(tail)
    for first, second in zip(reversed(text), reversed(tail), strict=False):
        if first != second:
            break
        start -= 1
    inside = (tag.end() for tag in TAG.finditer(tail) if tag.start() < start < tag.end())
    return tail[next(inside, start) :]


def _strip_endings(text: str, tail: str) -> tuple[str, ...]:
    """Return the turn without its end marker; several readings, the likeliest first."""
    shared = _find_common_end(text, tail)
    without_shared = [text.removesuffix(shared)] if shared.strip() else []
    pieces = PIECE.findall(tail[:MAX_TAIL])[:MAX_PIECES]
    runs = {
        "".join(pieces[start : start + length])
        for length in range(1, len(pieces) + 1)
        for start in range(len(pieces) - length + 1)
    }
    ends = sorted((run for run in runs if run.strip() and text.endswith(run)), key=len)
    readings = [text.removesuffix(end) for end in reversed(ends)]
    last = text.rfind(WORD)
    tag_starts = [text.find(piece, last) for piece in pieces if TAG.fullmatch(piece)]
    readings += [text[:start] for start in tag_starts if start > 0][:1]
    return tuple(dict.fromkeys([*without_shared, *readings[:3], text]))
