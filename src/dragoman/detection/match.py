"""Chooses the formats of a template.

The round trip comes first: a format is a candidate if it parses what the template renders. Of
several, the one wins that parses the most turns, leaves the least text unparsed, and has its
markers in the template. Formats that differ only in spelling are distinguished by their examples:
the template renders the call of the example, and the result is compared. Text comes second: markers
in the instructions that the template writes for declared tools, then in its source. Where the
template writes no call, the vocabulary decides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from dragoman.detection.examples import (
    make_example_pattern,
    make_skeleton,
    parse_example,
    rate_similarity,
)
from dragoman.detection.markers import (
    allows_unmarked_calls,
    contains_any_marker,
    get_call_openers,
    make_marker_check,
    match_hints,
    measure_coverage,
)
from dragoman.detection.render_probe import RenderProbe, TurnForm
from dragoman.detection.result import ProbeTurn, RoundTripCheck
from dragoman.detection.round_trip import BASIC_TURNS, ONE_CALL, RoundTrip
from dragoman.detection.vocabulary import (
    match_reasoning_by_vocabulary,
    match_tools_by_vocabulary,
)
from dragoman.formats import get_reasoning_formats, list_reasoning_in, list_tools_in
from dragoman.output.spec import ReasoningFormat, ToolFormat

# the evidence for a reasoning format, strongest first
PARSED_BACK = "rendered reasoning is parsed back unchanged"
IN_OPENING = "its markers are in the text that opens an answer"
IN_TURNS = "its markers are in rendered turns"
SPLIT_AT = "the template splits text at its markers"
IN_TEMPLATE = "its markers are in the template"
ARE_TOKENS = "its markers are tokens of the model"
FIT_SEVERAL = "the tokens of the model fit several formats: "
MIN_DISTINCTIVE = 4  # characters; shorter markers may occur by chance


@dataclass(frozen=True)
class ToolFormatChoice:
    """A tool format and the reason for choosing it."""

    format: ToolFormat | None = None
    reason: str = ""
    is_verified: bool = False  # by a round trip, not only by the template's text
    equivalent: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReasoningFormatChoice:
    """A reasoning format and the reason for choosing it."""

    format: ReasoningFormat | None = None
    reason: str = ""
    is_verified: bool = False


class FormatMatcher:
    """Finds the formats of one template."""

    def __init__(
        self, round_trip: RoundTrip, openings: Iterable[str], vocabulary: Container[str] = ()
    ) -> None:
        self.round_trip = round_trip
        self.probe: RenderProbe = round_trip.probe
        self.vocabulary = vocabulary
        self.openings = "\n".join(openings)
        # the last reading of a rendered turn is complete, the others are shorter
        self.turns = "\n".join(
            rendered.texts[-1]
            for name in BASIC_TURNS
            for rendered in round_trip.get_renderings(name)
        )
        self.instructions = _render_tool_instructions(self.probe)
        self.source = "\n".join(sorted(self.probe.facts.literals))
        self.all_text = "\n".join((self.turns, self.openings, self.instructions, self.source))
        self.tool_formats = list_tools_in(self.all_text)
        self.reasoning_formats = list_reasoning_in(self.all_text)
        self.likely_reasoning = self._find_likely_reasoning()

    # reasoning

    def match_reasoning(self, tools: ToolFormat | None) -> ReasoningFormatChoice:
        """Return the reasoning format that goes with a tool format."""
        evidence: list[tuple[str, Callable[[ReasoningFormat], bool]]] = [
            (PARSED_BACK, lambda reasoning: self._verifies_reasoning(tools, reasoning)),
            (IN_OPENING, lambda reasoning: self._opens_or_closes_in(reasoning, self.openings)),
            (IN_TURNS, lambda reasoning: self._opens_or_closes_in(reasoning, self.turns)),
            (SPLIT_AT, self._splits_at_close),
            (IN_TEMPLATE, self._has_both_markers),
        ]
        for reason, holds in evidence:
            matching = [reasoning for reasoning in self.likely_reasoning if holds(reasoning)]
            if matching:
                best = max(matching, key=self._rank_reasoning)
                return ReasoningFormatChoice(best, reason, is_verified=reason == PARSED_BACK)
        return self._match_reasoning_by_vocabulary(tools)

    def _opens_or_closes_in(self, reasoning: ReasoningFormat, text: str) -> bool:
        """Whether the text opens reasoning, or closes reasoning that is opened elsewhere."""
        if contains_any_marker(reasoning.open, text):
            return True
        is_opened = contains_any_marker(reasoning.open, self.all_text)
        return is_opened and contains_any_marker(reasoning.close, text)

    def _splits_at_close(self, reasoning: ReasoningFormat) -> bool:
        return any(marker in self.probe.facts.separators for marker in reasoning.close)

    def _has_both_markers(self, reasoning: ReasoningFormat) -> bool:
        """Whether the template's own text contains an opening and a closing marker."""
        pair = (reasoning.open, reasoning.close)
        return all(contains_any_marker(markers, self.source) for markers in pair)

    def _find_likely_reasoning(self) -> list[ReasoningFormat]:
        return [
            reasoning
            for reasoning in self.reasoning_formats
            if not reasoning.keeps_markers
            and contains_any_marker(_list_reasoning_markers(reasoning), self.all_text)
        ]

    def _verifies_reasoning(self, tools: ToolFormat | None, reasoning: ReasoningFormat) -> bool:
        names = ("reasoning", "reasoning and a call")
        return any(check.status == "ok" for check in self.round_trip.check(tools, reasoning, names))

    def _rank_reasoning(self, reasoning: ReasoningFormat) -> tuple[int, int, int, int]:
        missing, length = measure_coverage(reasoning, make_marker_check(self.all_text))
        return (
            match_hints(reasoning, self.all_text),
            -missing,
            self._rate_reasoning_example(reasoning),
            length,
        )

    def _rate_reasoning_example(self, reasoning: ReasoningFormat) -> int:
        """Return how closely rendered reasoning resembles the format's example."""
        if self.probe.reasoning_form is None:
            return 0
        form, switches = self.probe.reasoning_form
        rendered = self.probe.render_turn(
            ProbeTurn(text="answer", reasoning="reasoning"), form, switches
        )
        if rendered is None:
            return 0
        return max(
            rate_similarity(rendered.prompt + text, reasoning.example) for text in rendered.texts
        )

    def _match_reasoning_by_vocabulary(self, tools: ToolFormat | None) -> ReasoningFormatChoice:
        """Choose a reasoning format for a template that never mentions reasoning."""
        known = get_reasoning_formats()
        choice = match_reasoning_by_vocabulary(self.vocabulary)
        if choice.format is not None:
            return ReasoningFormatChoice(choice.format, ARE_TOKENS)
        if tools is not None and tools.default_reasoning in known:
            return ReasoningFormatChoice(
                known[tools.default_reasoning], "models with this tool format use it"
            )
        return ReasoningFormatChoice()

    # calls

    def match_tools(self) -> ToolFormatChoice:
        """Return the tool format."""
        choice = self._match_by_round_trip()
        by_instructions = self._match_by_text(
            self.instructions, "its markers are in the instructions for tools"
        )
        if choice is None:
            by_source = self._match_by_text(self.source, IN_TEMPLATE)
            return (
                by_instructions
                or by_source
                or self._match_by_vocabulary()
                or self._match_by_example_shape()
                or self._explain_no_choice()
            )
        is_unmarked = choice.format is not None and allows_unmarked_calls(choice.format)
        if (
            not is_unmarked
            or by_instructions is None
            or by_instructions.format is None
            or by_instructions.format is choice.format
        ):
            return choice
        if by_instructions.format.name in choice.equivalent:
            return ToolFormatChoice(
                by_instructions.format,
                f"{choice.reason}, and {by_instructions.reason}",
                is_verified=True,
            )
        return ToolFormatChoice(
            by_instructions.format,
            f"{by_instructions.reason}, although earlier calls are rendered differently",
        )

    def _match_by_round_trip(self) -> ToolFormatChoice | None:
        """Return the format that parses the template's renderings."""
        texts = [
            rendered.prompt + rendered.texts[-1]
            for rendered in self.round_trip.get_renderings(ONE_CALL)
        ]
        if not texts:
            return None
        likely = [tools for tools in self.tool_formats if _may_match(tools, texts)]
        checks_by_name = {tools.name: self._find_best_checks(tools) for tools in likely}
        passed = [
            tools for tools in likely if _get_status(checks_by_name[tools.name], ONE_CALL) == "ok"
        ]
        if not passed:
            marked = [
                tools
                for tools in likely
                if contains_any_marker(get_call_openers(tools), "\n".join(texts))
            ]
            if not marked:
                return None
            best = max(marked, key=lambda tools: self._rank_fully(tools, (0,)))
            return ToolFormatChoice(best, "its markers are in rendered calls")
        ranks = {tools.name: self._rank(tools, checks_by_name[tools.name]) for tools in passed}
        best = max(passed, key=lambda tools: self._rank_fully(tools, ranks[tools.name]))
        count = sum(check.status == "ok" for check in checks_by_name[best.name])
        equal = [tools.name for tools in passed if ranks[tools.name] == ranks[best.name]]
        return ToolFormatChoice(
            best,
            f"rendered calls are parsed back unchanged ({count} kinds of turns)",
            is_verified=True,
            equivalent=tuple(name for name in equal if name != best.name),
        )

    def fails_round_trip(self, tools: ToolFormat) -> bool:
        """Whether a format fails to parse rendered calls."""
        return not _score_checks(self._find_best_checks(tools))[0]

    def _find_best_checks(self, tools: ToolFormat) -> tuple[RoundTripCheck, ...]:
        """Return the checks with the best fitting reasoning format."""
        best: tuple[RoundTripCheck, ...] = ()
        for reasoning in [None, *self.likely_reasoning]:
            if _get_status(self.round_trip.check(tools, reasoning, [ONE_CALL]), ONE_CALL) != "ok":
                continue
            checks = self.round_trip.check(tools, reasoning)
            if _score_checks(checks) > _score_checks(best):
                best = checks
        return best

    def _rank(self, tools: ToolFormat, checks: tuple[RoundTripCheck, ...]) -> tuple[int, ...]:
        """Rank how well a format parses rendered turns; equal ranks are interchangeable."""
        marked = contains_any_marker(
            get_call_openers(tools), self.turns
        ) and not allows_unmarked_calls(tools)
        return (int(marked), *_score_checks(checks))

    def _rank_fully(self, tools: ToolFormat, rank: tuple[int, ...]) -> tuple[int, ...]:
        missing, length = measure_coverage(tools, make_marker_check(self.all_text))
        unmatched = 0 if allows_unmarked_calls(tools) else missing
        return (
            *rank,
            match_hints(tools, self.all_text),
            self._rate_call_example(tools),
            -unmatched,
            length,
        )

    def _rate_call_example(self, tools: ToolFormat) -> int:
        """Return how closely a rendered call resembles the format's example."""
        form = self.probe.call_form
        example_turn = parse_example(tools)
        if form is None or not example_turn.calls:
            return 0
        rendered = self.probe.render_turn(ProbeTurn(calls=example_turn.calls), form, {})
        return (
            max(rate_similarity(text, tools.example) for text in rendered.texts) if rendered else 0
        )

    def _match_by_text(self, text: str, reason: str) -> ToolFormatChoice | None:
        """Return the format whose markers a text contains."""
        candidates = [
            tools
            for tools in self.tool_formats
            if _has_all_openers(tools, text) or match_hints(tools, text) > 0
        ]
        if not candidates:
            return None

        text_skeleton = make_skeleton(text)

        def rank(tools: ToolFormat) -> tuple[int, ...]:
            missing, length = measure_coverage(tools, make_marker_check(text))
            resembles_example = make_skeleton(tools.example) in text_skeleton
            criteria = (-missing, not allows_unmarked_calls(tools), length, resembles_example)
            return match_hints(tools, text), *map(int, criteria)

        return ToolFormatChoice(max(candidates, key=rank), reason)

    def _match_by_example_shape(self) -> ToolFormatChoice | None:
        """Return the unmarked format whose example resembles the template's instructions."""
        candidates = [
            (len(shape.pattern), tools)
            for tools in self.tool_formats
            if allows_unmarked_calls(tools)
            and (shape := make_example_pattern(tools.example))
            and shape.search(self.source)
        ]
        if not candidates:
            return None
        best = max(candidates, key=lambda pair: pair[0])[1]
        return ToolFormatChoice(best, "the template asks for calls like its example")

    def _match_by_vocabulary(self) -> ToolFormatChoice | None:
        choice = match_tools_by_vocabulary(self.vocabulary)
        if choice.format is not None:
            return ToolFormatChoice(choice.format, ARE_TOKENS, equivalent=choice.rivals)
        return None

    def _explain_no_choice(self) -> ToolFormatChoice:
        rivals = match_tools_by_vocabulary(self.vocabulary).rivals
        return ToolFormatChoice(None, FIT_SEVERAL + ", ".join(rivals) if rivals else "")


def _list_reasoning_markers(reasoning: ReasoningFormat) -> tuple[str, ...]:
    header = reasoning.header.open + reasoning.header.end if reasoning.header else ()
    return (*reasoning.open, *reasoning.close, *header)


def _render_tool_instructions(probe: RenderProbe) -> str:
    """Return the instructions that the template adds when tools are declared."""
    plain = probe.render(None, TurnForm(), {}, add_generation_prompt=True) or ""
    with_tools = probe.render(None, TurnForm(has_tools=True), {}, add_generation_prompt=True) or ""
    lines = set(plain.splitlines())
    return "\n".join(line for line in with_tools.splitlines() if line not in lines)


def _may_match(tools: ToolFormat, texts: list[str]) -> bool:
    """Whether a format is worth trying; a cheap check."""
    if allows_unmarked_calls(tools):
        return True
    return any(contains_any_marker(get_call_openers(tools), text) for text in texts)


def _has_all_openers(tools: ToolFormat, text: str) -> bool:
    """Whether the text contains all opening markers, at least one of them distinctive."""
    groups = [tools.section.open, tools.call.open]
    if tools.header is not None:
        groups.append(tools.header.open)
    required = [group for group in groups if any(marker.strip() for marker in group)]
    is_distinctive = any(len(marker) >= MIN_DISTINCTIVE for group in required for marker in group)
    return is_distinctive and all(contains_any_marker(group, text) for group in required)


def _get_status(checks: Iterable[RoundTripCheck], name: str) -> str:
    return next((check.status for check in checks if check.name == name), "not_rendered")


def _score_checks(checks: Iterable[RoundTripCheck]) -> tuple[int, int]:
    """Return how many checks passed, and minus the number of those that left text unparsed."""
    passed = [check for check in checks if check.status == "ok"]
    return len(passed), -sum(bool(check.end) for check in passed)
