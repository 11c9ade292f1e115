"""Finds how a template's reasoning is switched, and where an answer starts in each setting.

Every template variable with "think" or "reason" in its name is set to each value that the template
compares it with. A variable that changes the prompt is a switch; the text that opens an answer
shows its setting. Some templates are switched by words in a system message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman.detection.render_probe import RenderProbe, Switches, TurnForm
from dragoman.detection.result import AnswerPosition, ReasoningControls, ReasoningSwitch
from dragoman.output.spec import ReasoningFormat
from dragoman.output.text_buffer import find_last_marker
from dragoman.prompt.template.template import RESERVED_VARIABLES
from dragoman.types import Json

REASONING_VARIABLE = re.compile(r"think|reason", re.I)
BUDGET_VARIABLE = re.compile(r"budget", re.I)
EFFORT_VARIABLE = re.compile(r"effort|strength|level", re.I)
ANY_EFFORT = "zqeffort"  # a word that no template compares with
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
USUAL_EFFORTS = ("low", "medium", "high")
SYSTEM_WORDS = ("/think", "/no_think", "/nothink")
# common variables first; the first setting that works is used
COMMON_NAMES = ("enable_thinking", "thinking", "thinking_mode", "reasoning", "reasoning_effort")
ON = ("enabled", "on", "thinking", "think", "high", "medium", "low", "max", "auto", "adaptive")
OFF = ("disabled", "off", "none", "no_think", "chat")
MODES = (*ON, *OFF)
MAX_VALUES = 12  # values tried per variable
MAX_NAMES = 16  # variables tried
MAX_OPENINGS = 16  # different openings in which turns are rendered


@dataclass(frozen=True)
class SwitchSetting:
    """One setting of the switches and its effect."""

    switches: Switches
    opening: str  # the text that opens an answer
    prompt: str  # the whole prompt


class SwitchSettings:
    """All settings of all switches of one template."""

    def __init__(self, probe: RenderProbe) -> None:
        self._probe = probe
        self.default = self._render_setting({}) or SwitchSetting({}, "", "")
        self.tried: dict[str, list[SwitchSetting]] = {}
        self.budget: str | None = None
        for name in _list_switch_names(probe):
            if BUDGET_VARIABLE.search(name):
                self._try_values(name, (0, 512))
                self.budget = self.budget or (name if _has_effect(self.tried[name]) else None)
            elif not EFFORT_VARIABLE.search(name) or not self._is_free_text(name):
                self._try_values(name, _list_candidate_values(probe, name))

    def _try_values(self, name: str, values: Iterable[Json]) -> None:
        settings = [self._render_setting({name: value}) for value in values]
        self.tried[name] = [setting for setting in settings if setting is not None]

    def _render_setting(self, switches: Switches, system: str = "") -> SwitchSetting | None:
        form = TurnForm(system=system)
        opening = self._probe.render_opening(switches, form)
        if opening is None:
            return None
        prompt = self._probe.render(None, form, switches, add_generation_prompt=True) or ""
        return SwitchSetting(switches, opening, prompt)

    def _is_free_text(self, name: str) -> bool:
        """Whether a variable accepts any text: the template only prints it."""
        setting = self._render_setting({name: ANY_EFFORT})
        return setting is not None and ANY_EFFORT in setting.prompt

    @property
    def all(self) -> list[SwitchSetting]:
        return [self.default, *(setting for tried in self.tried.values() for setting in tried)]

    @property
    def distinct(self) -> list[SwitchSetting]:
        """One setting for each different opening of an answer, the default first."""
        settings: dict[str, SwitchSetting] = {}
        for setting in self.all:
            settings.setdefault(setting.opening, setting)
        return list(settings.values())[:MAX_OPENINGS]

    def describe_controls(self, reasoning: ReasoningFormat | None) -> ReasoningControls:
        """Interpret the settings for a reasoning format."""
        candidates = [
            _find_switch(name, tried, reasoning)
            for name, tried in self.tried.items()
            if name != self.budget
        ]
        switches = [switch for switch in candidates if switch is not None]
        switches.sort(key=lambda switch: not self._changes_position(switch, reasoning))
        openings = {"default": self.default.opening}
        if switches:
            for name, value in (("on", switches[0].on), ("off", switches[0].off)):
                openings[name] = self._find_setting(switches[0].name, value).opening
        effort, efforts = self._find_efforts(switches)
        return ReasoningControls(
            switches=tuple(switches),
            effort=effort,
            efforts=efforts,
            budget=self.budget,
            answer_positions={
                name: find_answer_position(reasoning, opening) for name, opening in openings.items()
            },
            openings=openings,
            system_words=self._find_system_words(reasoning),
        )

    def _changes_position(self, switch: ReasoningSwitch, reasoning: ReasoningFormat | None) -> bool:
        """Whether the switch changes where an answer starts."""
        settings = [self._find_setting(switch.name, value) for value in (switch.on, switch.off)]
        return len({find_answer_position(reasoning, setting.opening) for setting in settings}) > 1

    def _find_setting(self, name: str, value: Json) -> SwitchSetting:
        return next(
            setting for setting in self.tried[name] if repr(setting.switches[name]) == repr(value)
        )

    def _find_efforts(
        self, switches: Sequence[ReasoningSwitch]
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return the variable for the reasoning effort, and its values when reasoning is on."""
        for name in _list_switch_names(self._probe):
            if not EFFORT_VARIABLE.search(name):
                continue
            if self._is_free_text(name):
                return name, USUAL_EFFORTS
            on = {switch.name: switch.on for switch in switches[:1] if switch.name != name}
            values = [
                value
                for value in _list_candidate_values(self._probe, name)
                if isinstance(value, str)
            ]
            settings = [self._render_setting({**on, name: value}) for value in values]
            unset, compared = self._render_setting(on), _find_compared_words(self._probe, name)
            effective = [
                setting.switches[name]
                for setting in settings
                if setting is not None
                and (
                    setting.switches[name] in compared or (unset and setting.prompt != unset.prompt)
                )
            ]
            if _has_effect([setting for setting in (*settings, unset) if setting is not None]):
                return name, tuple(effective)
        return None, ()

    def _find_system_words(self, reasoning: ReasoningFormat | None) -> dict[str, AnswerPosition]:
        """Return the words in a system message that change where an answer starts."""
        words = [word for word in SYSTEM_WORDS if word in self._probe.facts.words]
        settings = {word: self._render_setting({}, word) for word in words}
        positions = {
            word: find_answer_position(reasoning, setting.opening)
            for word, setting in settings.items()
            if setting is not None
        }
        return (
            positions
            if len({*positions.values(), find_answer_position(reasoning, self.default.opening)}) > 1
            else {}
        )


def find_answer_position(reasoning: ReasoningFormat | None, opening: str) -> AnswerPosition:
    """Return where an answer starts after this opening."""
    if reasoning is None:
        return "open"
    if reasoning.opens_at_start and opening.endswith(reasoning.opens_at_start):
        return "inside"
    opened = find_last_marker(opening, reasoning.open)[0]
    closed = find_last_marker(opening, reasoning.close)[0]
    if opened == closed:
        return "open"
    return "inside" if opened > closed else "closed"


def _has_effect(tried: Sequence[SwitchSetting]) -> bool:
    return len({setting.prompt for setting in tried}) > 1


def _list_switch_names(probe: RenderProbe) -> list[str]:
    names = [
        name
        for name in probe.facts.variables - RESERVED_VARIABLES
        if REASONING_VARIABLE.search(name)
    ]
    names.sort(key=lambda name: (COMMON_NAMES.index(name) if name in COMMON_NAMES else 99, name))
    return names[:MAX_NAMES]


def _find_compared_words(probe: RenderProbe, name: str) -> list[str]:
    """Return the words that a template compares a variable with."""
    near = re.compile(rf"\b{re.escape(name)}\b[^\n%}}]{{0,40}}?(?:==|!=|\bin\b)([^\n%]{{0,120}})")
    return [
        word
        for match in near.finditer(probe.template.source)
        for word in re.findall(r"""["']([\w-]{1,20})["']""", match[1])
    ]


def _list_candidate_values(probe: RenderProbe, name: str) -> Sequence[Json]:
    """Return values to try: true, false, and the words the template compares with."""
    words = _find_compared_words(probe, name)
    if EFFORT_VARIABLE.search(name):
        return list(dict.fromkeys([*words, *EFFORTS]))[:MAX_VALUES]
    known = [mode for mode in MODES if mode in probe.facts.words]
    return [True, False, *dict.fromkeys([*words, *known])][:MAX_VALUES]


def _find_switch(
    name: str, tried: Sequence[SwitchSetting], reasoning: ReasoningFormat | None
) -> ReasoningSwitch | None:
    """Return the variable as a switch, if it turns something on and off."""
    if not _has_effect(tried):
        return None
    on = _pick_setting(
        name,
        tried,
        (True, *ON),
        [setting for setting in tried if _has_position(setting, reasoning, "inside")],
    )
    off = _pick_setting(
        name,
        tried,
        (False, *OFF),
        [setting for setting in tried if _has_position(setting, reasoning, "closed")],
    )
    if off is not None and (on is None or on.prompt == off.prompt):
        on = next((setting for setting in tried if setting.prompt != off.prompt), None)
    if on is None or off is None or on.prompt == off.prompt:
        return None
    return ReasoningSwitch(name, on.switches[name], off.switches[name])


def _has_position(
    setting: SwitchSetting, reasoning: ReasoningFormat | None, position: AnswerPosition
) -> bool:
    return find_answer_position(reasoning, setting.opening) == position


def _pick_setting(
    name: str,
    tried: Sequence[SwitchSetting],
    values: Sequence[Json],
    effective: Sequence[SwitchSetting],
) -> SwitchSetting | None:
    """Return a setting with the effect, preferably one of the values; else any of the values."""
    spellings = set(map(repr, values))
    for candidates in (effective, tried):
        matching = [setting for setting in candidates if repr(setting.switches[name]) in spellings]
        matching.sort(
            key=lambda setting: list(map(repr, values)).index(repr(setting.switches[name]))
        )
        if matching:
            return matching[0]
        if candidates is effective and effective:
            return effective[0]
    return None
