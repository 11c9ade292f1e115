"""How a template's thinking is switched, and where an answer begins in each position.

Every variable with "think" or "reason" in its name that the template reads is set to everything
that it is compared with. What changes the prompt is a switch; the position it is in shows in what
the template writes to open an answer. Some templates are switched by words in a system message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.detection.markers import last
from dragoman.detection.render_probe import Manner, Stage, Switches
from dragoman.detection.result import Begin, Switch, Thinking
from dragoman.output.spec import ReasoningFormat
from dragoman.prompt.template.template import RESERVED_VARIABLES

ABOUT = re.compile(r"think|reason", re.I)
BUDGET = re.compile(r"budget", re.I)
EFFORT = re.compile(r"effort|strength|level", re.I)
ANY_EFFORT = "zqeffort"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
USUAL_EFFORTS = ("low", "medium", "high")
WORDS = ("/think", "/no_think", "/nothink")
# the usual variables first; the first one that works is the one to use
USUAL = ("enable_thinking", "thinking", "thinking_mode", "reasoning", "reasoning_effort")
ON = ("enabled", "on", "thinking", "think", "high", "medium", "low", "max", "auto", "adaptive")
OFF = ("disabled", "off", "none", "no_think", "chat")
MODES = (*ON, *OFF)
MOST = 12  # values that are tried for one variable
NAMES = 16  # variables that are tried
WAYS = 16  # of opening an answer that turns are written in


@dataclass(frozen=True)
class Position:
    """One setting of the switches, and what it does."""

    switches: Switches
    opening: str  # what the template writes to open an answer
    prompt: str  # all that it writes


class Positions:
    """All settings of all switches of one template."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.default = self._at({}) or Position({}, "", "")
        self.tried: dict[str, list[Position]] = {}
        self.budget: str | None = None
        for name in _names(stage):
            if BUDGET.search(name):
                self._try(name, (0, 512))
                self.budget = self.budget or (name if _telling(self.tried[name]) else None)
            elif not EFFORT.search(name) or not self._free(name):
                self._try(name, _values(stage, name))

    def _try(self, name: str, values: Iterable[Any]) -> None:
        found = [self._at({name: value}) for value in values]
        self.tried[name] = [one for one in found if one is not None]

    def _at(self, switches: Switches, system: str = "") -> Position | None:
        manner = Manner(system=system)
        opening = self._stage.opening(switches, manner)
        if opening is None:
            return None
        prompt = self._stage.render(None, manner, switches, opened=True) or ""
        return Position(switches, opening, prompt)

    def _free(self, name: str) -> bool:
        """Whether a variable may be anything: it is only written down."""
        found = self._at({name: ANY_EFFORT})
        return found is not None and ANY_EFFORT in found.prompt

    @property
    def all(self) -> list[Position]:
        return [self.default, *(one for tried in self.tried.values() for one in tried)]

    @property
    def distinct(self) -> list[Position]:
        """One position for each way of opening an answer, the default first."""
        found: dict[str, Position] = {}
        for one in self.all:
            found.setdefault(one.opening, one)
        return list(found.values())[:WAYS]

    def thinking(self, reasoning: ReasoningFormat | None) -> Thinking:
        """What the positions mean when thoughts are written like this."""
        found = [
            _switch(name, tried, reasoning)
            for name, tried in self.tried.items()
            if name != self.budget
        ]
        switches = [switch for switch in found if switch is not None]
        switches.sort(key=lambda switch: not self._turns(switch, reasoning))
        openings = {"default": self.default.opening}
        if switches:
            for way, value in (("on", switches[0].on), ("off", switches[0].off)):
                openings[way] = self._found(switches[0].name, value).opening
        effort, efforts = self._efforts(switches)
        return Thinking(
            switches=tuple(switches),
            effort=effort,
            efforts=efforts,
            budget=self.budget,
            begins={way: begin(reasoning, opening) for way, opening in openings.items()},
            openings=openings,
            words=self._words(reasoning),
        )

    def _turns(self, switch: Switch, reasoning: ReasoningFormat | None) -> bool:
        """Whether it changes where an answer begins."""
        ends = [self._found(switch.name, value) for value in (switch.on, switch.off)]
        return len({begin(reasoning, one.opening) for one in ends}) > 1

    def _found(self, name: str, value: Any) -> Position:
        return next(one for one in self.tried[name] if repr(one.switches[name]) == repr(value))

    def _efforts(self, switches: Sequence[Switch]) -> tuple[str | None, tuple[str, ...]]:
        """The variable for how much to think, and what it may be when thinking is on."""
        for name in _names(self._stage):
            if not EFFORT.search(name):
                continue
            if self._free(name):
                return name, USUAL_EFFORTS
            on = {one.name: one.on for one in switches[:1] if one.name != name}
            values = [value for value in _values(self._stage, name) if isinstance(value, str)]
            found = [self._at({**on, name: value}) for value in values]
            plain, named = self._at(on), _compared(self._stage, name)
            kept = [
                one.switches[name]
                for one in found
                if one is not None
                and (one.switches[name] in named or (plain and one.prompt != plain.prompt))
            ]
            if _telling([one for one in (*found, plain) if one is not None]):
                return name, tuple(kept)
        return None, ()

    def _words(self, reasoning: ReasoningFormat | None) -> dict[str, Begin]:
        """Words in a system message that change where an answer begins."""
        words = [word for word in WORDS if word in self._stage.facts.words]
        found = {word: self._at({}, word) for word in words}
        begins = {
            word: begin(reasoning, one.opening) for word, one in found.items() if one is not None
        }
        return begins if len({*begins.values(), begin(reasoning, self.default.opening)}) > 1 else {}


def begin(reasoning: ReasoningFormat | None, opening: str) -> Begin:
    """Where an answer begins after this opening."""
    if reasoning is None:
        return "open"
    opened, closed = last(reasoning.open, opening), last(reasoning.close, opening)
    if opened == closed:
        return "open"
    return "inside" if opened > closed else "closed"


def _telling(tried: Sequence[Position]) -> bool:
    return len({one.prompt for one in tried}) > 1


def _names(stage: Stage) -> list[str]:
    names = [name for name in stage.facts.variables - RESERVED_VARIABLES if ABOUT.search(name)]
    names.sort(key=lambda name: (USUAL.index(name) if name in USUAL else 99, name))
    return names[:NAMES]


def _compared(stage: Stage, name: str) -> list[str]:
    """The words that a template compares a variable with."""
    near = re.compile(rf"\b{re.escape(name)}\b[^\n%}}]{{0,40}}?(?:==|!=|\bin\b)([^\n%]{{0,120}})")
    return [
        word
        for match in near.finditer(stage.template.source)
        for word in re.findall(r"""["']([\w-]{1,20})["']""", match[1])
    ]


def _values(stage: Stage, name: str) -> Sequence[Any]:
    """What to set a variable to: yes, no, and the words that the template compares it with."""
    words = _compared(stage, name)
    if EFFORT.search(name):
        return list(dict.fromkeys([*words, *EFFORTS]))[:MOST]
    known = [mode for mode in MODES if mode in stage.facts.words]
    return [True, False, *dict.fromkeys([*words, *known])][:MOST]


def _switch(
    name: str, tried: Sequence[Position], reasoning: ReasoningFormat | None
) -> Switch | None:
    """The variable as a switch, if it turns anything on and off."""
    if not _telling(tried):
        return None
    on = _pick(name, tried, (True, *ON), [one for one in tried if _is(one, reasoning, "inside")])
    off = _pick(name, tried, (False, *OFF), [one for one in tried if _is(one, reasoning, "closed")])
    if off is not None and (on is None or on.prompt == off.prompt):
        on = next((one for one in tried if one.prompt != off.prompt), None)
    if on is None or off is None or on.prompt == off.prompt:
        return None
    return Switch(name, on.switches[name], off.switches[name])


def _is(position: Position, reasoning: ReasoningFormat | None, wanted: Begin) -> bool:
    return begin(reasoning, position.opening) == wanted


def _pick(
    name: str, tried: Sequence[Position], words: Sequence[Any], telling: Sequence[Position]
) -> Position | None:
    """The position that does what is wanted and says so, else does it, else says so."""
    said = set(map(repr, words))
    for some in (telling, tried):
        named = [one for one in some if repr(one.switches[name]) in said]
        named.sort(key=lambda one: list(map(repr, words)).index(repr(one.switches[name])))
        if named or (some is telling and telling):
            return (named or list(telling))[0]
    return None
