"""The proof: turns of the assistant's are rendered, read back with a format, and compared.

A turn counts as proved when exactly what went in came out. Behind it there may be markers that the
template writes to end a turn in a way of its own: the engine stops at those. A turn whose words
do not all arrive in the prompt is unwritten: then the template has no place for it, and nothing
was proved or disproved. What failed carries both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dragoman.detection.render_probe import (
    ANSWER,
    LOOK,
    PING,
    TAG,
    THOUGHT,
    TOOLS,
    VALUE,
    WORD,
    RenderedTurn,
    RenderProbe,
    Switches,
    TurnForm,
)
from dragoman.detection.result import CheckStatus, ProbeCall, ProbeTurn, RoundTripCheck
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.output.library import OutputParser
from dragoman.output.spec import ReasoningFormat, ToolFormat

OPENER = re.compile(rf"(?:{TAG.pattern})[^<\[\n]*")
MARKS_BEHIND = 4  # that a template may write behind a turn
CALL, TALK = "one call", "an answer"
_ONE = ProbeCall(LOOK, {"zqplace": VALUE})
_TWO = ProbeCall(LOOK, {"zqplace": "zqsecond", "zqnumber": 7})
_AWKWARD = 'zq"quoted" it\'s\nnext {line} [1], <b>&amp;</b> \\ zq'
_TREE = {"zqa": {"zqb": [1, 2.5, None, "zqc"]}, "zqd": True}


def _make_lookup(**arguments: Any) -> ProbeTurn:
    return ProbeTurn(calls=(ProbeCall(LOOK, arguments),))


ITEMS: dict[str, ProbeTurn] = {
    TALK: ProbeTurn(text=ANSWER),
    CALL: ProbeTurn(calls=(_ONE,)),
    "parallel calls": ProbeTurn(calls=(_ONE, _TWO)),
    "a call without arguments": ProbeTurn(calls=(ProbeCall(PING, {}),)),
    "numbers and booleans": _make_lookup(zqplace=VALUE, zqnumber=3, zqflag=True),
    "nested arguments": _make_lookup(
        zqplace=VALUE, zqtree=_TREE, zqlist=["zqf", 5, {"zqg": False}]
    ),
    "unicode": _make_lookup(zqplace="zqZürich 東京 🌧"),
    "digits that are text": _make_lookup(zqplace="02134"),
    "awkward text": _make_lookup(zqplace=_AWKWARD),
    "text and a call": ProbeTurn(text=ANSWER, calls=(_ONE,)),
    "reasoning": ProbeTurn(text=ANSWER, reasoning=THOUGHT),
    "reasoning and a call": ProbeTurn(reasoning=THOUGHT, calls=(_ONE,)),
    "reasoning, text and a call": ProbeTurn(text=ANSWER, reasoning=THOUGHT, calls=(_ONE,)),
}
ORDER: tuple[CheckStatus, ...] = ("proved", "otherwise", "failed", "unwritten")
BRIEF = (TALK, CALL, "reasoning", "reasoning and a call")  # enough to tell most formats apart


def parse_turn(
    text: str, prompt: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None
) -> ProbeTurn:
    """What a format makes of a turn."""
    known = tools.name if tools and tool_formats().get(tools.name) is tools else tools
    about = reasoning.name if reasoning and _is_registered(reasoning) else reasoning
    return fold_spans(OutputParser(known, about, tools=TOOLS, prompt=prompt), text)


def _is_registered(reasoning: ReasoningFormat) -> bool:
    return reasoning_formats().get(reasoning.name) is reasoning


def fold_spans(parser: OutputParser, text: str) -> ProbeTurn:
    """A whole answer, read."""
    turn: dict[str, list[str]] = {"text": [], "reasoning": []}
    calls: list[list[str]] = []
    for span in [*parser.feed(text), *parser.close()]:
        if span.channel == "tool_name":
            calls.append([span.text, ""])
        elif span.channel == "tool_args":
            calls[-1][1] += span.text
        else:
            turn[span.channel].append(span.text)
    return ProbeTurn(
        text="".join(turn["text"]),
        reasoning="".join(turn["reasoning"]),
        calls=tuple(ProbeCall(name, _load_arguments(arguments)) for name, arguments in calls),
    )


def _load_arguments(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _compare(name: str, text: str, prompt: str, came: ProbeTurn) -> RoundTripCheck:
    """Whether the same came out; markers behind it are told apart."""
    turn = ITEMS[name]
    called = _canonical_calls(turn.calls) == _canonical_calls(came.calls)
    same = called and turn.reasoning.strip() == came.reasoning.strip()
    found, wanted = came.text.strip(), turn.text.strip()
    end = found.removeprefix(wanted).strip()
    ended = not TAG.sub("", end).strip() and len(TAG.findall(end)) <= MARKS_BEHIND
    status: CheckStatus = "failed"
    if same and found.startswith(wanted) and ended:
        status = "proved"
    elif called and (_is_equivalent(turn, came) or _is_two_turns(text, prompt)):
        status = "otherwise"
    end = end if status == "proved" else ""
    return RoundTripCheck(
        name=name, status=status, expected=turn, parsed=came, prompt=prompt, text=text, end=end
    )


def _is_equivalent(turn: ProbeTurn, came: ProbeTurn) -> bool:
    """Whether text came back as reasoning, since the template writes it there."""
    words, found = (turn.reasoning + turn.text).split(), came.reasoning.split()
    return bool(turn.text) and not came.text.strip() and "".join(words) == "".join(found)


def _is_two_turns(text: str, prompt: str) -> bool:
    """Whether a second turn is opened inside of a turn, by the longest marker that opened it."""
    return max(OPENER.findall(prompt), key=len, default=text + prompt).strip() in text


def _canonical_calls(calls: tuple[ProbeCall, ...]) -> list[str]:
    """As text, since Python takes 1 for True."""
    return [json.dumps([call.name, call.arguments], sort_keys=True) for call in calls]


class RoundTrip:
    """Every turn as one template writes it, in every position of its switches."""

    def __init__(self, probe: RenderProbe, positions: Sequence[Switches]) -> None:
        self.probe = probe
        self._positions = positions
        self._takes: dict[str, list[RenderedTurn]] = {}

    def renders_of(self, name: str) -> list[RenderedTurn]:
        """The ways in which a turn is written, those first that continue a real prompt."""
        if name not in self._takes:
            self._takes[name] = self._render(ITEMS[name])
        return self._takes[name]

    def _render(self, turn: ProbeTurn) -> list[RenderedTurn]:
        form, first = self._find_form(turn)
        if form is None:
            return []
        found: dict[tuple[str, str], RenderedTurn] = {}
        for switches in [first, *self._positions]:
            written = self.probe.render_turn(turn, form, switches)
            if written is not None and contains_turn(written, turn):
                found.setdefault((written.prompt, written.text), written)
        return sorted(found.values(), key=lambda written: bool(written.unwritten_opening))

    def _find_form(self, turn: ProbeTurn) -> tuple[TurnForm | None, Switches]:
        probe = self.probe
        if turn.reasoning and probe.reasoning_form is None:
            return None, {}
        thinking, switches = probe.reasoning_form or (TurnForm(), {})
        if not turn.calls:
            return (thinking, switches) if turn.reasoning else (TurnForm(), {})
        if probe.call_form is None:
            return None, {}
        if not turn.reasoning:
            return probe.call_form, {}
        return replace(probe.call_form, carrier=thinking.carrier), switches

    def check(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        names: Sequence[str] = tuple(ITEMS),
    ) -> tuple[RoundTripCheck, ...]:
        """The items, read with two formats."""
        return tuple(self._check_one(name, tools, reasoning) for name in names)

    def _check_one(
        self, name: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None
    ) -> RoundTripCheck:
        turn, best = ITEMS[name], None
        takes = self.renders_of(name) if not turn.calls or tools is not None else []
        for take in takes:
            for text, prompt in () if self.probe.is_out_of_time else _candidate_texts(take, turn):
                item = _compare(name, text, prompt, parse_turn(text, prompt, tools, reasoning))
                if item.status == "proved" and not item.end:
                    return item
                if best is None or ORDER.index(item.status) < ORDER.index(best.status):
                    best = item
        return best or RoundTripCheck(name=name, status="unwritten", expected=turn)


def _candidate_texts(take: RenderedTurn, turn: ProbeTurn) -> list[tuple[str, str]]:
    prompts = [take.prompt]
    if (
        take.unwritten_opening and turn.reasoning
    ):  # older reasoning are written without what opens them
        prompts.append(take.prompt + take.unwritten_opening)
    return [(text, prompt) for prompt in prompts for text in take.texts]


def contains_turn(written: RenderedTurn, turn: ProbeTurn) -> bool:
    """Whether all words of a turn arrived."""
    text = written.text
    if any(word not in text for word in (turn.text, turn.reasoning)):
        return False
    if any(text.count(call.name) < turn.calls.count(call) for call in turn.calls):
        return False
    plain = [value for call in turn.calls for value in _probe_words(call.arguments)]
    return all(word in text for word in plain)


def _probe_words(value: Any) -> list[str]:
    """The made-up words in a value that no template has a reason to change."""
    if isinstance(value, dict):
        return [word for one in value.values() for word in _probe_words(one)]
    if isinstance(value, list):
        return [word for one in value for word in _probe_words(one)]
    made_up = isinstance(value, str) and value.startswith(WORD) and value.isalnum()
    return [value] if made_up and value.isascii() else []
