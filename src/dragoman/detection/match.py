"""Which formats a template's turns are written in.

What a template does comes first: a format is a candidate if it reads back what went in. Of several,
the one wins that reads most, leaves least over, and has its markers in the template; formats that
differ in nothing but spelling are told apart by their examples: the template is given the very call
of the example, and what it writes is compared. What a template says comes second: markers in the
instructions that it writes for declared tools, then in its source. The vocabulary comes last.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache

from dragoman.detection.markers import (
    allows_unmarked_calls,
    call_openers,
    contains_any_marker,
    make_marker_test,
    match_hints,
    measure_coverage,
)
from dragoman.detection.render_probe import RenderProbe, TurnForm
from dragoman.detection.result import ProbeTurn, RoundTripCheck
from dragoman.detection.round_trip import BRIEF, CALL, RoundTrip, fold_spans
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.output.library import OutputParser
from dragoman.output.spec import ReasoningFormat, ToolFormat

SPACE = re.compile(r"\s+")
MIN_DISTINCTIVE = 4  # characters of a marker that hardly stand there by chance


@dataclass(frozen=True)
class ToolFormatChoice:
    """A format and the reason for it."""

    format: ToolFormat | None = None
    reason: str = ""
    verified: bool = False  # by what the template does, and not only by what it says
    equivalent: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReasoningFormatChoice:
    """The same for reasoning."""

    format: ReasoningFormat | None = None
    reason: str = ""
    verified: bool = False


class FormatMatcher:
    """Finds the formats of one template."""

    def __init__(
        self, scene: RoundTrip, openings: Iterable[str], vocabulary: Container[str] = ()
    ) -> None:
        self.scene = scene
        self.probe: RenderProbe = scene.probe
        self.vocabulary = vocabulary
        self.openings = "\n".join(openings)
        # the last text of a take is all of it, the others are how it begins
        self.turns = "\n".join(take.texts[-1] for name in BRIEF for take in scene.renders_of(name))
        self.instructions = _tool_instructions(self.probe)
        self.source = "\n".join(sorted(self.probe.facts.literals))
        self.all_text = "\n".join((self.turns, self.openings, self.instructions, self.source))
        self.likely_reasoning = self._find_likely_reasoning()

    # Reasoning

    def match_reasoning(self, tools: ToolFormat | None) -> ReasoningFormatChoice:
        """The format of reasoning, beside a format of calls."""
        likely = self.likely_reasoning
        shown = [one for one in likely if self._verifies_reasoning(tools, one)]
        if shown:
            best = max(shown, key=self._rank_reasoning)
            return ReasoningFormatChoice(
                best, "reasoning that were written come back with it", verified=True
            )
        for text, why in (
            (self.openings, "its markers are in what opens an answer"),
            (self.turns, "its markers are in the turns that are written"),
        ):
            found = [one for one in likely if self._opens_or_closes_in(one, text)]
            if found:
                return ReasoningFormatChoice(max(found, key=self._rank_reasoning), why)
        cut = [one for one in likely if self._splits_at_close(one)]
        if cut:
            return ReasoningFormatChoice(
                max(cut, key=self._rank_reasoning), "the template cuts at its markers"
            )
        whole = [one for one in likely if self._has_both_markers(one)]
        if whole:
            return ReasoningFormatChoice(
                max(whole, key=self._rank_reasoning), "its markers are in the template"
            )
        return self._match_reasoning_by_vocabulary(tools)

    def _opens_or_closes_in(self, reasoning: ReasoningFormat, text: str) -> bool:
        """Opened in the text; or closed there, and opened elsewhere."""
        closed = contains_any_marker(reasoning.close, text) and contains_any_marker(
            reasoning.open, self.all_text
        )
        return contains_any_marker(reasoning.open, text) or closed

    def _splits_at_close(self, reasoning: ReasoningFormat) -> bool:
        return any(marker in self.probe.facts.separators for marker in reasoning.close)

    def _has_both_markers(self, reasoning: ReasoningFormat) -> bool:
        """Opened and closed by what the template itself can write, and by no header."""
        return contains_any_marker(reasoning.open, self.source) and contains_any_marker(
            reasoning.close, self.source
        )

    def _find_likely_reasoning(self) -> list[ReasoningFormat]:
        return [
            one
            for one in reasoning_formats().values()
            if not one.keeps_markers and contains_any_marker(_reasoning_markers(one), self.all_text)
        ]

    def _verifies_reasoning(self, tools: ToolFormat | None, reasoning: ReasoningFormat) -> bool:
        names = ("reasoning", "reasoning and a call")
        return any(item.status == "proved" for item in self.scene.check(tools, reasoning, names))

    def _rank_reasoning(self, reasoning: ReasoningFormat) -> tuple[int, int, int, int]:
        missing, length = measure_coverage(reasoning, make_marker_test(self.all_text))
        return (
            match_hints(reasoning, self.all_text),
            -missing,
            self._resembles_reasoning_example(reasoning),
            length,
        )

    def _resembles_reasoning_example(self, reasoning: ReasoningFormat) -> int:
        """How much the template writes reasoning as the example does."""
        if self.probe.reasoning_form is None:
            return 0
        form, switches = self.probe.reasoning_form
        written = self.probe.render_turn(
            ProbeTurn(text="answer", reasoning="reasoning"), form, switches
        )
        if written is None:
            return 0
        return max(_similarity(written.prompt + text, reasoning.example) for text in written.texts)

    def _match_reasoning_by_vocabulary(self, tools: ToolFormat | None) -> ReasoningFormatChoice:
        """A template without a word on reasoning."""
        known = reasoning_formats()
        for one in known.values():
            markers = (*one.open[:1], *one.close[:1])
            if (
                not one.keeps_markers
                and len(markers) == 2
                and all(map(self.vocabulary.__contains__, markers))
            ):
                return ReasoningFormatChoice(one, "its markers are tokens of the model")
        if tools is not None and tools.default_reasoning in known:
            return ReasoningFormatChoice(
                known[tools.default_reasoning], "models that call this way think this way"
            )
        return ReasoningFormatChoice()

    # Calls

    def match_tools(self) -> ToolFormatChoice:
        """The format of calls."""
        choice = self._match_by_round_trip()
        turn = self._match_by_text(
            self.instructions, "its markers are in the instructions for tools"
        )
        if choice is None:
            source = self._match_by_text(self.source, "its markers are in the template")
            return (
                turn
                or source
                or self._match_by_example_shape()
                or self._match_by_vocabulary()
                or ToolFormatChoice()
            )
        bare = choice.format is not None and allows_unmarked_calls(choice.format)
        if not bare or turn is None or turn.format is None or turn.format is choice.format:
            return choice
        if turn.format.name in choice.equivalent:
            return ToolFormatChoice(
                turn.format, f"{choice.reason}, and {turn.reason}", verified=True
            )
        return ToolFormatChoice(
            turn.format, f"{turn.reason}, though it writes older calls otherwise"
        )

    def _match_by_round_trip(self) -> ToolFormatChoice | None:
        """The format that reads back what the template writes."""
        texts = [take.prompt + take.texts[-1] for take in self.scene.renders_of(CALL)]
        if not texts:
            return None
        likely = [one for one in tool_formats().values() if _may_match(one, texts)]
        proofs = {one.name: self._best_checks(one) for one in likely}
        passed = [one for one in likely if _status(proofs[one.name], CALL) == "proved"]
        if not passed:
            marked = [
                one for one in likely if contains_any_marker(call_openers(one), "\n".join(texts))
            ]
            if not marked:
                return None
            best = max(marked, key=lambda one: self._full_rank(one, (0,)))
            return ToolFormatChoice(best, "its markers are in the calls that are written")
        ranks = {one.name: self._rank(one, proofs[one.name]) for one in passed}
        best = max(passed, key=lambda one: self._full_rank(one, ranks[one.name]))
        count = sum(item.status == "proved" for item in proofs[best.name])
        equal = [one.name for one in passed if ranks[one.name] == ranks[best.name]]
        return ToolFormatChoice(
            best,
            f"calls that were written come back with it ({count} kinds of turns)",
            verified=True,
            equivalent=tuple(name for name in equal if name != best.name),
        )

    def fails_round_trip(self, tools: ToolFormat) -> bool:
        """Whether a format does not read back the calls that are written."""
        return not _score(self._best_checks(tools))[0]

    def _best_checks(self, tools: ToolFormat) -> tuple[RoundTripCheck, ...]:
        """The proof beside whatever reasoning fit best."""
        best: tuple[RoundTripCheck, ...] = ()
        for reasoning in [None, *self.likely_reasoning]:
            if _status(self.scene.check(tools, reasoning, [CALL]), CALL) != "proved":
                continue
            proof = self.scene.check(tools, reasoning)
            if _score(proof) > _score(best):
                best = proof
        return best

    def _rank(self, tools: ToolFormat, proof: tuple[RoundTripCheck, ...]) -> tuple[int, ...]:
        """How well a format reads what is written; equal ones differ in nothing that matters."""
        marked = contains_any_marker(call_openers(tools), self.turns) and not allows_unmarked_calls(
            tools
        )
        return (int(marked), *_score(proof))

    def _full_rank(self, tools: ToolFormat, rank: tuple[int, ...]) -> tuple[int, ...]:
        missing, length = measure_coverage(tools, make_marker_test(self.all_text))
        unlike = 0 if allows_unmarked_calls(tools) else missing
        return (
            *rank,
            match_hints(tools, self.all_text),
            self._resembles_call_example(tools),
            -unlike,
            length,
        )

    def _resembles_call_example(self, tools: ToolFormat) -> int:
        """How much the template writes a call as the example does."""
        form = self.probe.call_form
        turn = _parse_example(tools)
        if form is None or not turn.calls:
            return 0
        written = self.probe.render_turn(ProbeTurn(calls=turn.calls), form, {})
        return max(_similarity(text, tools.example) for text in written.texts) if written else 0

    def _match_by_text(self, text: str, why: str) -> ToolFormatChoice | None:
        """The format whose markers a text has."""
        found = [
            one
            for one in tool_formats().values()
            if _has_all_openers(one, text) or match_hints(one, text) > 0
        ]
        if not found:
            return None

        bones = _skeleton(text)

        def rank(tools: ToolFormat) -> tuple[int, ...]:
            missing, length = measure_coverage(tools, make_marker_test(text))
            alike = _skeleton(tools.example) in bones  # whatever the words in it are
            likely = (-missing, not allows_unmarked_calls(tools), length, alike)
            return match_hints(tools, text), *map(int, likely)

        return ToolFormatChoice(max(found, key=rank), why)

    def _match_by_example_shape(self) -> ToolFormatChoice | None:
        """The format without markers that a template asks for: keys and brackets of the example."""
        found = [
            (len(shape.pattern), one)
            for one in tool_formats().values()
            if allows_unmarked_calls(one)
            and (shape := _example_pattern(one.example))
            and shape.search(self.source)
        ]
        if not found:
            return None
        best = max(found, key=lambda pair: pair[0])[1]
        return ToolFormatChoice(best, "the template asks for calls that look like its example")

    def _match_by_vocabulary(self) -> ToolFormatChoice | None:
        has = self.vocabulary.__contains__
        found = [
            one
            for one in tool_formats().values()
            if not allows_unmarked_calls(one) and any(map(has, (*one.section.open, *one.call.open)))
        ]
        if not found:
            return None

        def rank(tools: ToolFormat) -> tuple[int, int]:
            missing, length = measure_coverage(tools, has)
            return -missing, length

        return ToolFormatChoice(max(found, key=rank), "its markers are tokens of the model")


def _reasoning_markers(reasoning: ReasoningFormat) -> tuple[str, ...]:
    header = reasoning.header.open + reasoning.header.end if reasoning.header else ()
    return (*reasoning.open, *reasoning.close, *header)


def _tool_instructions(probe: RenderProbe) -> str:
    """What the template tells the model when there are tools."""
    plain = probe.render(None, TurnForm(), {}, opened=True) or ""
    told = probe.render(None, TurnForm(tools=True), {}, opened=True) or ""
    lines = set(plain.splitlines())
    return "\n".join(line for line in told.splitlines() if line not in lines)


def _may_match(tools: ToolFormat, texts: list[str]) -> bool:
    """A cheap look before a format is tried."""
    if allows_unmarked_calls(tools):
        return True
    return any(contains_any_marker(call_openers(tools), text) for text in texts)


def _has_all_openers(tools: ToolFormat, text: str) -> bool:
    """Whether all that opens a call is there. A few characters alone may stand for anything."""
    groups = [tools.section.open, tools.call.open]
    if tools.header is not None:
        groups.append(tools.header.open)
    wanted = [group for group in groups if any(marker.strip() for marker in group)]
    telling = any(len(marker) >= MIN_DISTINCTIVE for group in wanted for marker in group)
    return telling and all(contains_any_marker(group, text) for group in wanted)


def _status(proof: Iterable[RoundTripCheck], name: str) -> str:
    return next((item.status for item in proof if item.name == name), "unwritten")


def _score(proof: Iterable[RoundTripCheck]) -> tuple[int, int]:
    """How much was proved, and how little was left over."""
    proved = [item for item in proof if item.status == "proved"]
    return len(proved), -sum(bool(item.end) for item in proved)


@lru_cache(maxsize=256)
def _parse_example(tools: ToolFormat) -> ProbeTurn:
    return fold_spans(OutputParser(tools.name), tools.example)


def _similarity(text: str, example: str) -> int:
    """2 for the same, 1 for the same but for white space."""
    if text.strip().endswith(example.strip()):
        return 2
    return int(SPACE.sub("", text).endswith(SPACE.sub("", example)))


@lru_cache(maxsize=256)
def _example_pattern(example: str) -> re.Pattern[str] | None:
    """What an example without markers looks like, whatever the words in it are."""
    called = re.match(r"(\[?)\w+\(\w+=", example)
    if called:
        return re.compile(re.escape(called[1]) + r"[\w<>-]{1,60}\([\w<>-]{1,60}=")
    opened = re.match(r"[\[{]*", example)
    keys = re.findall(r'"(\w+)":', example)[:2]
    if opened is None or not opened[0] or len(keys) < 2:
        return None
    quoted = [rf'\\?"{key}\\?"\s*:' for key in keys]
    return re.compile(
        r"\s*".join(map(re.escape, opened[0])) + r"\s*" + r"[^\n{}]{0,80}?".join(quoted)
    )


def _skeleton(text: str) -> str:
    """A text with one letter for every run of words."""
    inside = re.sub(r"(?<=>)[^<>\s]+|\b\w+\b", "x", text)
    return re.sub(r"x(?:[ ,.]*x)+", "x", inside)
