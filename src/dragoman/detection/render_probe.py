"""What a template writes for a turn of the assistant's, found by rendering made-up conversations.

A conversation is rendered with the turn and without it, up to the point where an answer begins.
What the two share is the prompt; what only the first one has is the turn, as the model saw it in
training. The end of it, which the model says with a token and not with text, is known from a plain
turn: everything behind the words that it was made of.

Templates are picky, so a turn of calls is put in several forms until its words arrive.

A template is a stranger's program, so all of detection is bounded: the time of the renderings, the
time of everything, and the length of what is looked at. What is not known by then stays unknown.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

import msgspec

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

Switches: TypeAlias = Mapping[str, Any]
CallIds: TypeAlias = Literal["long", "short", "named"]
FollowUp: TypeAlias = Literal["nothing", "user"]
FOLLOW_UPS: tuple[FollowUp, ...] = ("nothing", "user")
ReasoningCarrier: TypeAlias = Literal["fields", "parts"]
CARRIERS: tuple[ReasoningCarrier, ...] = ("fields", "parts")

WORD = "zq"  # begins every word that is made up
ASKED, AGAIN, OTHER = "zqasked", "zqagain", "zqother"
ANSWER, THOUGHT, VALUE = "zqanswer", "zqthought", "zqvalue"
MAX_TURN = 16_000  # characters of a turn that is looked at
PIECES = 40
TAIL = 400  # characters behind a turn
# for all renderings of a template together; `least` is the most that one may write
PROBE_LIMITS = RenderLimits(seconds=1.0, steps=400_000, min_text=1 << 18)
MAX_SECONDS = 4.0  # seconds for all that is found out about a template; an honest one takes 0.3
TYPED_REASONING = re.compile(
    r"""["']type["']\s*:\s*["']thinking"""
)  # a list that is written as it is
PIECE = re.compile(r"<[^<>\s][^<>\n]*>|\[[^\[\]\s]*\]|\s+|[^<\[\s]+|.")
TAG = re.compile(r"<[^<>\s][^<>\n]*>|\[/?[A-Z_]+\]")

_FIELDS = {
    "zqplace": "string",
    "zqnumber": "integer",
    "zqflag": "boolean",
    "zqtree": "object",
    "zqlist": "array",
}
PROPERTIES: dict[str, Any] = {name: {"type": kind} for name, kind in _FIELDS.items()}
LOOK, PING = "zqlook", "zqping"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": LOOK,
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["zqplace"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": PING,
            "description": "Does something.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]


@dataclass(frozen=True)
class RenderedTurn:
    """What the template made of it."""

    prompt: str  # how the template opens the turn
    texts: tuple[str, ...]  # the turn up to where the model ends it, the likeliest reading first
    unwritten_opening: str = ""  # what it writes to open an answer and did not write here

    @property
    def text(self) -> str:
        return self.texts[0]


@dataclass(frozen=True)
class TurnForm:
    """How a turn is put so that the template writes all of it."""

    arguments: ArgumentsForm = "dict"
    content: ContentForm = "empty"  # of a turn of calls only
    ids: CallIds = "long"
    tools: bool = False
    follow_up: FollowUp = "nothing"
    carrier: ReasoningCarrier = "fields"
    system: str = ""


class RenderProbe:
    """Renders turns with one template."""

    def __init__(self, source: str) -> None:
        self.template = compile_template(source)
        self.facts = self.template.facts
        self.capabilities = probe_capabilities(source)
        self._limits = PROBE_LIMITS
        self._deadline = time.thread_time() + MAX_SECONDS
        self._cache: dict[Any, str | None] = {}
        self.call_form = self._find_call_form()  # None: calls are never written
        self.reasoning_form: tuple[TurnForm, Switches] | None = None  # None: reasoning never are

    # Rendering

    @property
    def is_out_of_time(self) -> bool:
        """Whether there is no time left for anything."""
        return time.thread_time() > self._deadline

    @property
    def is_incomplete(self) -> bool:
        """Whether something was not looked at for want of time."""
        return self.is_out_of_time or self._limits.seconds <= 0

    def render(
        self, turn: ProbeTurn | None, form: TurnForm, switches: Switches, opened: bool = False
    ) -> str | None:
        """The conversation up to a turn (or to the place of one), as text."""
        key = (repr(turn), form, repr(sorted(switches.items())), opened)
        if key not in self._cache:
            turns = [self._make_message("user", ASKED)]
            if form.system or (self.capabilities.tools_need_system and form.tools):
                turns.insert(0, self._make_message("system", form.system))
            if turn is not None:
                turns.append(self._make_turn(turn, form))
                turns += [self._make_message("user", AGAIN)] if form.follow_up == "user" else []
            self._cache[key] = self._render_messages(turns, form, switches, opened)
        return self._cache[key]

    def _render_messages(
        self, turns: list[dict[str, Any]], form: TurnForm, switches: Switches, opened: bool
    ) -> str | None:
        if self.is_incomplete:  # a rendering of few steps never looks
            return None
        tools = TOOLS if form.tools else None
        given = MarkedText(NO_GUARD)
        variables = given.mark_tree(
            PROBE_TOKENS
            | {"messages": turns, "datetime": "zqdate", "add_generation_prompt": opened}
            | make_tools_variable(tools, self.capabilities.no_tools, self.facts)
            | dict(switches)
        )
        started = time.thread_time()
        try:
            return self.template.render(
                variables, RenderBudget(self._limits, known_sizes=given.known_sizes)
            )
        except TemplateRejected:
            return None
        finally:
            left = self._limits.seconds - (time.thread_time() - started)
            self._limits = msgspec.structs.replace(self._limits, seconds=left)

    def render_opening(self, switches: Switches, form: TurnForm | None = None) -> str | None:
        """What the template writes to open an answer."""
        form = form or TurnForm()
        whole = self.render(None, form, switches, opened=True)
        bare = self.render(None, form, switches)
        if whole is None:
            return None
        if bare is not None and whole.startswith(bare) and len(whole) > len(bare):
            return whole[len(bare) :][-MAX_TURN:]
        return whole[max(whole.rfind(ASKED), 0) :].removeprefix(ASKED)[-MAX_TURN:]

    def render_turn(
        self, turn: ProbeTurn, form: TurnForm, switches: Switches
    ) -> RenderedTurn | None:
        """The turn that the template makes of this; None where it refuses."""
        if self.is_out_of_time:
            return None
        whole = self.render(turn, form, switches)
        before = self.render(None, form, switches, opened=True)
        if whole is None or before is None:
            return None
        asked = before.count(ASKED)
        before = before.rpartition(ASKED)[2]
        whole = whole.split(ASKED, asked)[-1]
        if max(len(before), len(whole)) > MAX_TURN:
            return None
        shared, start = _common_prefix(before, whole)
        ahead = before[shared:].strip()
        if ahead:  # nothing continues this prompt; then what every turn begins with is no turn
            start = max(start, self._common_start(whole, form, switches))
        return RenderedTurn(
            prompt=whole[:start],
            texts=_strip_endings(whole[start:], self._plain_tail(form, switches)),
            unwritten_opening=ahead,
        )

    def _common_start(self, whole: str, form: TurnForm, switches: Switches) -> int:
        """How much of a turn is as in a plain one."""
        plain = self.render(ProbeTurn(text=OTHER), form, switches)
        before, found, _ = (plain or "").rpartition(OTHER)
        return _common_prefix(before.rpartition(ASKED)[2][:MAX_TURN], whole)[1] if found else 0

    def _plain_tail(self, form: TurnForm, switches: Switches) -> str:
        """What stands behind the words of a plain turn."""
        plain = self.render(ProbeTurn(text=OTHER), form, switches)
        return plain.rpartition(OTHER)[2] if plain and OTHER in plain else ""

    # Turns

    def _make_message(self, role: str, word: str, **more: Any) -> dict[str, Any]:
        content: Any = (
            [{"type": "text", "text": word}] if role in self.capabilities.part_roles else word
        )
        return {"role": role, "content": content, **more}

    def _make_turn(self, turn: ProbeTurn, form: TurnForm) -> dict[str, Any]:
        message = self._make_message("assistant", turn.text)
        if turn.reasoning and form.carrier == "fields":
            message |= dict.fromkeys(self.capabilities.reasoning_fields, turn.reasoning)
        elif turn.reasoning:
            thought = {"type": "thinking", "thinking": turn.reasoning}
            message["content"] = [thought, {"type": "text", "text": turn.text}]
        if turn.calls:
            message["tool_calls"] = [
                _make_call(call, number, form) for number, call in enumerate(turn.calls)
            ]
            if not turn.text and not (turn.reasoning and form.carrier == "parts"):
                if form.content == "absent":
                    del message["content"]
                elif form.content == "null":
                    message["content"] = None
        return message

    # Manners

    def _find_call_form(self) -> TurnForm | None:
        """The first form in which a call arrives, name and value."""
        words = (VALUE, LOOK)
        turn = ProbeTurn(calls=(ProbeCall(LOOK, {"zqplace": VALUE}),))
        for form in self._call_forms():
            written = self.render_turn(turn, form, {})
            if written is not None and all(word in written.texts[-1] for word in words):
                return form
        return None

    def _call_forms(self) -> list[TurnForm]:
        able = self.capabilities
        shapes: list[tuple[ArgumentsForm, ContentForm]] = list(
            product(ARGUMENTS_FORMS, CONTENT_FORMS)
        )
        ids: list[CallIds] = ["long", "named", "short"]
        if able.tool_calls_rendered:
            shapes = [(able.arguments, able.call_content)]
            ids = ["short"] if able.short_ids else ids
        tools = (True, False) if able.tools_rendered or able.calls_need_tools else (False, True)
        return [
            TurnForm(arguments, content, names, declared, later)
            for (arguments, content), names, declared, later in product(
                shapes, ids, tools, FOLLOW_UPS
            )
        ]

    def find_reasoning_form(self, positions: Sequence[Switches]) -> None:
        """Find the first form and position in which reasoning arrive."""
        plain = ProbeTurn(text=ANSWER, reasoning=THOUGHT)
        turns = [(plain, TurnForm(carrier=carrier)) for carrier in CARRIERS]
        if self.call_form is not None:
            calls = ProbeTurn(reasoning=THOUGHT, calls=(ProbeCall(LOOK, {"zqplace": VALUE}),))
            turns += [(calls, replace(self.call_form, carrier=carrier)) for carrier in CARRIERS]
        turns += [(plain, TurnForm(carrier=carrier, follow_up="user")) for carrier in CARRIERS]
        for (turn, form), switches in product(turns, positions):
            text = None if self.is_out_of_time else self.render(turn, form, switches)
            if text is not None and THOUGHT in text and TYPED_REASONING.search(text) is None:
                self.reasoning_form = (form, switches)
                return


def _make_call(call: ProbeCall, number: int, form: TurnForm) -> dict[str, Any]:
    ids = {
        "long": f"call_zq{number:09}",
        "short": f"zqcall{number:03}",
        "named": f"functions.{call.name}:{number}",
    }
    arguments: Any = call.arguments
    if form.arguments == "text":
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "type": "function",
        "id": ids[form.ids],
        "function": {"name": call.name, "arguments": arguments},
    }


def _common_prefix(one: str, two: str) -> tuple[int, int]:
    """Where two texts part: not in the middle of a tag, and not over white space."""
    steps = [(0, 0)]
    at, to = 0, 0
    while at < len(one) and to < len(two):
        if one[at] == two[to]:
            at, to = at + 1, to + 1
            steps.append((at, to))
        elif one[at].isspace():
            at += 1
        elif two[to].isspace():
            to += 1
        else:
            break
    at, to = steps[-1]
    if at < len(one):
        first = next((tag.start() for tag in TAG.finditer(one) if tag.start() < at < tag.end()), at)
        other = next((tag.start() for tag in TAG.finditer(two) if tag.start() < to < tag.end()), to)
        at, to = max(step for step in steps if step[0] <= first and step[1] <= other)
    return at, to


def _common_suffix(text: str, tail: str) -> str:
    """The end that two texts share, but no piece of a tag."""
    start = len(tail)
    for one, two in zip(reversed(text), reversed(tail), strict=False):
        if one != two:
            break
        start -= 1
    inside = (tag.end() for tag in TAG.finditer(tail) if tag.start() < start < tag.end())
    return tail[next(inside, start) :]


def _strip_endings(text: str, tail: str) -> tuple[str, ...]:
    """The turn without what ends it: there may be several ways to see that, likely ones first."""
    shared = _common_suffix(text, tail)
    whole = [text.removesuffix(shared)] if shared.strip() else []
    pieces = PIECE.findall(tail[:TAIL])[:PIECES]
    runs = {
        "".join(pieces[at : at + length])
        for length in range(1, len(pieces) + 1)
        for at in range(len(pieces) - length + 1)
    }
    ends = sorted((run for run in runs if run.strip() and text.endswith(run)), key=len)
    found = [text.removesuffix(end) for end in reversed(ends)]
    last = text.rfind(WORD)
    tags = [text.find(piece, last) for piece in pieces if TAG.fullmatch(piece)]
    found += [text[:at] for at in tags if at > 0][:1]
    return tuple(dict.fromkeys([*whole, *found[:3], text]))
