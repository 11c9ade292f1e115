"""The round trip: assistant turns are rendered by the template, parsed with a format, and compared.

A check is `ok` when parsing returns exactly what went in. Markers with which a template ends a
turn may follow; the engine stops at those. A turn whose words do not all appear in the prompt is
`not_rendered`: the template cannot render it, so it says nothing about the format. A failed check
contains both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from dragoman.detection.probe_words import (
    ANSWER,
    LOOKUP_TOOL,
    PING_TOOL,
    REASONING,
    TOOLS,
    VALUE,
    WORD,
)
from dragoman.detection.render_probe import TAG, RenderedTurn, RenderProbe, Switches, TurnForm
from dragoman.detection.result import CheckStatus, ProbeCall, ProbeTurn, RoundTripCheck
from dragoman.formats import is_registered
from dragoman.output.library import OutputParser
from dragoman.output.spec import ReasoningFormat, ToolFormat
from dragoman.types import Json

OPENER = re.compile(rf"(?:{TAG.pattern})[^<\[\n]*")
MAX_END_MARKERS = 4  # markers that a template may write after a turn
ONE_CALL, PLAIN_ANSWER = "one call", "an answer"
_FIRST_CALL = ProbeCall(LOOKUP_TOOL, {"zqplace": VALUE})
_SECOND_CALL = ProbeCall(LOOKUP_TOOL, {"zqplace": "zqsecond", "zqnumber": 7})
_AWKWARD_TEXT = 'zq"quoted" it\'s\nnext {line} [1], <b>&amp;</b> \\ zq'
_TREE = {"zqa": {"zqb": [1, 2.5, None, "zqc"]}, "zqd": True}


def _make_lookup(**arguments: Json) -> ProbeTurn:
    return ProbeTurn(calls=(ProbeCall(LOOKUP_TOOL, arguments),))


PROBE_TURNS: dict[str, ProbeTurn] = {
    PLAIN_ANSWER: ProbeTurn(text=ANSWER),
    ONE_CALL: ProbeTurn(calls=(_FIRST_CALL,)),
    "parallel calls": ProbeTurn(calls=(_FIRST_CALL, _SECOND_CALL)),
    "a call without arguments": ProbeTurn(calls=(ProbeCall(PING_TOOL, {}),)),
    "numbers and booleans": _make_lookup(zqplace=VALUE, zqnumber=3, zqflag=True),
    "nested arguments": _make_lookup(
        zqplace=VALUE, zqtree=_TREE, zqlist=["zqf", 5, {"zqg": False}]
    ),
    "unicode": _make_lookup(zqplace="zqZürich 東京 🌧"),
    "digits that are text": _make_lookup(zqplace="02134"),
    "awkward text": _make_lookup(zqplace=_AWKWARD_TEXT),
    "text and a call": ProbeTurn(text=ANSWER, calls=(_FIRST_CALL,)),
    "reasoning": ProbeTurn(text=ANSWER, reasoning=REASONING),
    "reasoning and a call": ProbeTurn(reasoning=REASONING, calls=(_FIRST_CALL,)),
    "reasoning, text and a call": ProbeTurn(text=ANSWER, reasoning=REASONING, calls=(_FIRST_CALL,)),
}
STATUS_ORDER: tuple[CheckStatus, ...] = ("ok", "rendered_differently", "failed", "not_rendered")
BASIC_TURNS = (
    PLAIN_ANSWER,
    ONE_CALL,
    "reasoning",
    "reasoning and a call",
)  # enough to separate most formats


def parse_turn(
    text: str, prompt: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None
) -> ProbeTurn:
    """Parse a rendered turn with two formats."""
    tools_or_name = tools.name if tools and is_registered(tools) else tools
    reasoning_or_name = reasoning.name if reasoning and is_registered(reasoning) else reasoning
    return parse_answer(
        OutputParser(tools_or_name, reasoning_or_name, tools=TOOLS, prompt=prompt), text
    )


def parse_answer(parser: OutputParser, text: str) -> ProbeTurn:
    """Parse a whole answer into a turn."""
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


def _load_arguments(arguments: str) -> Json:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _compare(name: str, text: str, prompt: str, parsed: ProbeTurn) -> RoundTripCheck:
    """Compare the parsed turn with the original; markers after it are allowed."""
    turn = PROBE_TURNS[name]
    calls_match = _write_canonical_calls(turn.calls) == _write_canonical_calls(parsed.calls)
    same = calls_match and turn.reasoning.strip() == parsed.reasoning.strip()
    parsed_text, expected_text = parsed.text.strip(), turn.text.strip()
    end = parsed_text.removeprefix(expected_text).strip()
    only_markers_follow = not TAG.sub("", end).strip() and len(TAG.findall(end)) <= MAX_END_MARKERS
    status: CheckStatus = "failed"
    if same and parsed_text.startswith(expected_text) and only_markers_follow:
        status = "ok"
    elif calls_match and (_is_equivalent(turn, parsed) or _is_two_turns(text, prompt)):
        status = "rendered_differently"
    end = end if status == "ok" else ""
    return RoundTripCheck(
        name=name, status=status, expected=turn, parsed=parsed, prompt=prompt, text=text, end=end
    )


def _is_equivalent(turn: ProbeTurn, parsed: ProbeTurn) -> bool:
    """Whether text was parsed as reasoning because the template renders it there."""
    rendered, read = (turn.reasoning + turn.text).split(), parsed.reasoning.split()
    return bool(turn.text) and not parsed.text.strip() and "".join(rendered) == "".join(read)


def _is_two_turns(text: str, prompt: str) -> bool:
    """Whether a rendered turn contains a second turn, judged by the longest opening marker."""
    return max(OPENER.findall(prompt), key=len, default=text + prompt).strip() in text


def _write_canonical_calls(calls: tuple[ProbeCall, ...]) -> list[str]:
    """Return calls as text, because 1 == True in Python."""
    return [json.dumps([call.name, call.arguments], sort_keys=True) for call in calls]


class RoundTrip:
    """Renders each turn with one template, in each setting of its switches, and checks formats."""

    def __init__(self, probe: RenderProbe, settings: Sequence[Switches]) -> None:
        self.probe = probe
        self._settings = settings
        self._renderings: dict[str, list[RenderedTurn]] = {}

    def get_renderings(self, name: str) -> list[RenderedTurn]:
        """Return the renderings of a turn, those that continue a real prompt first."""
        if name not in self._renderings:
            self._renderings[name] = self._render(PROBE_TURNS[name])
        return self._renderings[name]

    def _render(self, turn: ProbeTurn) -> list[RenderedTurn]:
        form, first = self._find_form(turn)
        if form is None:
            return []
        distinct: dict[tuple[str, str], RenderedTurn] = {}
        for switches in [first, *self._settings]:
            rendered = self.probe.render_turn(turn, form, switches)
            if rendered is not None and contains_turn(rendered, turn):
                distinct.setdefault((rendered.prompt, rendered.text), rendered)
        return sorted(distinct.values(), key=lambda rendered: bool(rendered.skipped_opening))

    def _find_form(self, turn: ProbeTurn) -> tuple[TurnForm | None, Switches]:
        probe = self.probe
        if turn.reasoning and probe.reasoning_form is None:
            return None, {}
        reasoning_form, switches = probe.reasoning_form or (TurnForm(), {})
        if not turn.calls:
            return (reasoning_form, switches) if turn.reasoning else (TurnForm(), {})
        if probe.call_form is None:
            return None, {}
        if not turn.reasoning:
            return probe.call_form, {}
        return replace(probe.call_form, reasoning_in=reasoning_form.reasoning_in), switches

    def check(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        names: Sequence[str] = tuple(PROBE_TURNS),
    ) -> tuple[RoundTripCheck, ...]:
        """Check two formats on the named turns."""
        return tuple(self._check_turn(name, tools, reasoning) for name in names)

    def _check_turn(
        self, name: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None
    ) -> RoundTripCheck:
        turn, best = PROBE_TURNS[name], None
        renderings = self.get_renderings(name) if not turn.calls or tools is not None else []
        for rendered in renderings:
            for text, prompt in (
                () if self.probe.is_out_of_time else _list_candidate_texts(rendered, turn)
            ):
                check = _compare(name, text, prompt, parse_turn(text, prompt, tools, reasoning))
                if check.status == "ok" and not check.end:
                    return check
                if best is None or STATUS_ORDER.index(check.status) < STATUS_ORDER.index(
                    best.status
                ):
                    best = check
        return best or RoundTripCheck(name=name, status="not_rendered", expected=turn)


def _list_candidate_texts(rendered: RenderedTurn, turn: ProbeTurn) -> list[tuple[str, str]]:
    prompts = [rendered.prompt]
    if rendered.skipped_opening and turn.reasoning:
        # reasoning of earlier turns is rendered without its opening marker
        prompts.append(rendered.prompt + rendered.skipped_opening)
    return [(text, prompt) for prompt in prompts for text in rendered.texts]


def contains_turn(rendered: RenderedTurn, turn: ProbeTurn) -> bool:
    """Whether the rendering contains all words of a turn."""
    text = rendered.text
    if any(word not in text for word in (turn.text, turn.reasoning)):
        return False
    if any(text.count(call.name) < turn.calls.count(call) for call in turn.calls):
        return False
    words = [word for call in turn.calls for word in _list_probe_words(call.arguments)]
    return all(word in text for word in words)


def _list_probe_words(value: Json) -> list[str]:
    """Return the made-up words in a value, which no template has a reason to change."""
    if isinstance(value, dict):
        return [word for item in value.values() for word in _list_probe_words(item)]
    if isinstance(value, list):
        return [word for item in value for word in _list_probe_words(item)]
    made_up = isinstance(value, str) and value.startswith(WORD) and value.isalnum()
    return [value] if made_up and value.isascii() else []
