"""The proof: turns of the assistant's are rendered, read back with a format, and compared.

A turn counts as proved when exactly what went in came out. Behind it there may be marks that the
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
    "thoughts": ProbeTurn(text=ANSWER, reasoning=THOUGHT),
    "thoughts and a call": ProbeTurn(reasoning=THOUGHT, calls=(_ONE,)),
    "thoughts, text and a call": ProbeTurn(text=ANSWER, reasoning=THOUGHT, calls=(_ONE,)),
}
ORDER: tuple[CheckStatus, ...] = ("proved", "otherwise", "failed", "unwritten")
BRIEF = (TALK, CALL, "thoughts", "thoughts and a call")  # enough to tell most formats apart


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
    said: dict[str, list[str]] = {"text": [], "reasoning": []}
    calls: list[list[str]] = []
    for span in [*parser.feed(text), *parser.close()]:
        if span.channel == "tool_name":
            calls.append([span.text, ""])
        elif span.channel == "tool_args":
            calls[-1][1] += span.text
        else:
            said[span.channel].append(span.text)
    return ProbeTurn(
        text="".join(said["text"]),
        reasoning="".join(said["reasoning"]),
        calls=tuple(ProbeCall(name, _load_arguments(arguments)) for name, arguments in calls),
    )


def _load_arguments(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _compare(name: str, text: str, prompt: str, came: ProbeTurn) -> RoundTripCheck:
    """Whether the same came out; marks behind it are told apart."""
    said = ITEMS[name]
    called = _canonical_calls(said.calls) == _canonical_calls(came.calls)
    same = called and said.reasoning.strip() == came.reasoning.strip()
    found, wanted = came.text.strip(), said.text.strip()
    end = found.removeprefix(wanted).strip()
    ended = not TAG.sub("", end).strip() and len(TAG.findall(end)) <= MARKS_BEHIND
    status: CheckStatus = "failed"
    if same and found.startswith(wanted) and ended:
        status = "proved"
    elif called and (_is_equivalent(said, came) or _is_two_turns(text, prompt)):
        status = "otherwise"
    end = end if status == "proved" else ""
    return RoundTripCheck(
        name=name, status=status, expected=said, parsed=came, prompt=prompt, text=text, end=end
    )


def _is_equivalent(said: ProbeTurn, came: ProbeTurn) -> bool:
    """Whether text came back as thoughts, since the template writes it there."""
    words, found = (said.reasoning + said.text).split(), came.reasoning.split()
    return bool(said.text) and not came.text.strip() and "".join(words) == "".join(found)


def _is_two_turns(text: str, prompt: str) -> bool:
    """Whether a second turn is opened inside of a turn, by the longest mark that opened it."""
    return max(OPENER.findall(prompt), key=len, default=text + prompt).strip() in text


def _canonical_calls(calls: tuple[ProbeCall, ...]) -> list[str]:
    """As text, since Python takes 1 for True."""
    return [json.dumps([call.name, call.arguments], sort_keys=True) for call in calls]


class RoundTrip:
    """Every turn as one template writes it, in every position of its switches."""

    def __init__(self, stage: RenderProbe, positions: Sequence[Switches]) -> None:
        self.stage = stage
        self._positions = positions
        self._takes: dict[str, list[RenderedTurn]] = {}

    def renders_of(self, name: str) -> list[RenderedTurn]:
        """The ways in which a turn is written, those first that continue a real prompt."""
        if name not in self._takes:
            self._takes[name] = self._render(ITEMS[name])
        return self._takes[name]

    def _render(self, said: ProbeTurn) -> list[RenderedTurn]:
        manner, first = self._find_form(said)
        if manner is None:
            return []
        found: dict[tuple[str, str], RenderedTurn] = {}
        for switches in [first, *self._positions]:
            written = self.stage.render_turn(said, manner, switches)
            if written is not None and contains_turn(written, said):
                found.setdefault((written.prompt, written.text), written)
        return sorted(found.values(), key=lambda written: bool(written.unwritten_opening))

    def _find_form(self, said: ProbeTurn) -> tuple[TurnForm | None, Switches]:
        stage = self.stage
        if said.reasoning and stage.reasoning_form is None:
            return None, {}
        thinking, switches = stage.reasoning_form or (TurnForm(), {})
        if not said.calls:
            return (thinking, switches) if said.reasoning else (TurnForm(), {})
        if stage.call_form is None:
            return None, {}
        if not said.reasoning:
            return stage.call_form, {}
        return replace(stage.call_form, carrier=thinking.carrier), switches

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
        said, best = ITEMS[name], None
        takes = self.renders_of(name) if not said.calls or tools is not None else []
        for take in takes:
            for text, prompt in () if self.stage.is_out_of_time else _candidate_texts(take, said):
                item = _compare(name, text, prompt, parse_turn(text, prompt, tools, reasoning))
                if item.status == "proved" and not item.end:
                    return item
                if best is None or ORDER.index(item.status) < ORDER.index(best.status):
                    best = item
        return best or RoundTripCheck(name=name, status="unwritten", expected=said)


def _candidate_texts(take: RenderedTurn, said: ProbeTurn) -> list[tuple[str, str]]:
    prompts = [take.prompt]
    if (
        take.unwritten_opening and said.reasoning
    ):  # older thoughts are written without what opens them
        prompts.append(take.prompt + take.unwritten_opening)
    return [(text, prompt) for prompt in prompts for text in take.texts]


def contains_turn(written: RenderedTurn, said: ProbeTurn) -> bool:
    """Whether all words of a turn arrived."""
    text = written.text
    if any(word not in text for word in (said.text, said.reasoning)):
        return False
    if any(text.count(call.name) < said.calls.count(call) for call in said.calls):
        return False
    plain = [value for call in said.calls for value in _probe_words(call.arguments)]
    return all(word in text for word in plain)


def _probe_words(value: Any) -> list[str]:
    """The made-up words in a value that no template has a reason to change."""
    if isinstance(value, dict):
        return [word for one in value.values() for word in _probe_words(one)]
    if isinstance(value, list):
        return [word for one in value for word in _probe_words(one)]
    made_up = isinstance(value, str) and value.startswith(WORD) and value.isalnum()
    return [value] if made_up and value.isascii() else []
