"""Which formats a template's turns are written in.

What a template does comes first: a format is a candidate if it reads back what went in. Of several,
the one wins that reads most, leaves least over, and has its marks in the template; formats that
differ in nothing but spelling are told apart by their examples: the template is given the very call
of the example, and what it writes is compared. What a template says comes second: marks in the
instructions that it writes for declared tools, then in its source. The vocabulary comes last.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache

from dragoman.detection.markers import any_stands, coverage, markless, openers, signs, within
from dragoman.detection.render_probe import Manner, Stage
from dragoman.detection.result import Item, Said
from dragoman.detection.round_trip import BRIEF, CALL, Scene, folded
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.output.library import OutputParser
from dragoman.output.spec import ReasoningFormat, ToolFormat

SPACE = re.compile(r"\s+")
TELLING = 4  # letters of a mark that hardly stand there by chance


@dataclass(frozen=True)
class Choice:
    """A format and the reason for it."""

    format: ToolFormat | None = None
    why: str = ""
    shown: bool = False  # by what the template does, and not only by what it says
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Thoughts:
    """The same for reasoning."""

    format: ReasoningFormat | None = None
    why: str = ""
    shown: bool = False


class Chooser:
    """Finds the formats of one template."""

    def __init__(
        self, scene: Scene, openings: Iterable[str], vocabulary: Container[str] = ()
    ) -> None:
        self.scene = scene
        self.stage: Stage = scene.stage
        self.vocabulary = vocabulary
        self.openings = "\n".join(openings)
        # the last text of a take is all of it, the others are how it begins
        self.turns = "\n".join(take.texts[-1] for name in BRIEF for take in scene.takes(name))
        self.told = _told(self.stage)
        self.source = "\n".join(sorted(self.stage.facts.literals))
        self.words = "\n".join((self.turns, self.openings, self.told, self.source))
        self.likely = self._likely_thoughts()

    # Thoughts

    def thoughts(self, tools: ToolFormat | None) -> Thoughts:
        """The format of thoughts, beside a format of calls."""
        likely = self.likely
        shown = [one for one in likely if self._shows(tools, one)]
        if shown:
            best = max(shown, key=self._fit)
            return Thoughts(best, "thoughts that were written come back with it", shown=True)
        for text, why in (
            (self.openings, "its marks are in what opens an answer"),
            (self.turns, "its marks are in the turns that are written"),
        ):
            found = [one for one in likely if self._framed(one, text)]
            if found:
                return Thoughts(max(found, key=self._fit), why)
        cut = [one for one in likely if self._cuts(one)]
        if cut:
            return Thoughts(max(cut, key=self._fit), "the template cuts at its marks")
        whole = [one for one in likely if self._both(one)]
        if whole:
            return Thoughts(max(whole, key=self._fit), "its marks are in the template")
        return self._silent(tools)

    def _framed(self, reasoning: ReasoningFormat, text: str) -> bool:
        """Opened in the text; or closed there, and opened elsewhere."""
        closed = any_stands(reasoning.close, text) and any_stands(reasoning.open, self.words)
        return any_stands(reasoning.open, text) or closed

    def _cuts(self, reasoning: ReasoningFormat) -> bool:
        return any(mark in self.stage.facts.separators for mark in reasoning.close)

    def _both(self, reasoning: ReasoningFormat) -> bool:
        """Opened and closed by what the template itself can write, and by no header."""
        return any_stands(reasoning.open, self.source) and any_stands(reasoning.close, self.source)

    def _likely_thoughts(self) -> list[ReasoningFormat]:
        return [
            one
            for one in reasoning_formats().values()
            if not one.keeps_markers and any_stands(_thought_marks(one), self.words)
        ]

    def _shows(self, tools: ToolFormat | None, reasoning: ReasoningFormat) -> bool:
        names = ("thoughts", "thoughts and a call")
        return any(item.status == "proved" for item in self.scene.prove(tools, reasoning, names))

    def _fit(self, reasoning: ReasoningFormat) -> tuple[int, int, int, int]:
        missing, length = coverage(reasoning, within(self.words))
        return signs(reasoning, self.words), -missing, self._like_thoughts(reasoning), length

    def _like_thoughts(self, reasoning: ReasoningFormat) -> int:
        """How much the template writes thoughts as the example does."""
        if self.stage.thinking is None:
            return 0
        manner, switches = self.stage.thinking
        written = self.stage.write(Said(text="answer", thoughts="thoughts"), manner, switches)
        if written is None:
            return 0
        return max(_alike(written.prompt + text, reasoning.example) for text in written.texts)

    def _silent(self, tools: ToolFormat | None) -> Thoughts:
        """A template without a word on thoughts."""
        known = reasoning_formats()
        for one in known.values():
            marks = (*one.open[:1], *one.close[:1])
            if (
                not one.keeps_markers
                and len(marks) == 2
                and all(map(self.vocabulary.__contains__, marks))
            ):
                return Thoughts(one, "its marks are tokens of the model")
        if tools is not None and tools.default_reasoning in known:
            return Thoughts(
                known[tools.default_reasoning], "models that call this way think this way"
            )
        return Thoughts()

    # Calls

    def calls(self) -> Choice:
        """The format of calls."""
        choice = self._shown()
        said = self._said(self.told, "its marks are in the instructions for tools")
        if choice is None:
            source = self._said(self.source, "its marks are in the template")
            return said or source or self._asked() or self._by_vocabulary() or Choice()
        bare = choice.format is not None and markless(choice.format)
        if not bare or said is None or said.format is None or said.format is choice.format:
            return choice
        if said.format.name in choice.also:
            return Choice(said.format, f"{choice.why}, and {said.why}", shown=True)
        return Choice(said.format, f"{said.why}, though it writes older calls otherwise")

    def _shown(self) -> Choice | None:
        """The format that reads back what the template writes."""
        texts = [take.prompt + take.texts[-1] for take in self.scene.takes(CALL)]
        if not texts:
            return None
        likely = [one for one in tool_formats().values() if _may_read(one, texts)]
        proofs = {one.name: self._best_proof(one) for one in likely}
        passed = [one for one in likely if _status(proofs[one.name], CALL) == "proved"]
        if not passed:
            marked = [one for one in likely if any_stands(openers(one), "\n".join(texts))]
            if not marked:
                return None
            best = max(marked, key=lambda one: self._whole_rank(one, (0,)))
            return Choice(best, "its marks are in the calls that are written")
        ranks = {one.name: self._rank(one, proofs[one.name]) for one in passed}
        best = max(passed, key=lambda one: self._whole_rank(one, ranks[one.name]))
        count = sum(item.status == "proved" for item in proofs[best.name])
        equal = [one.name for one in passed if ranks[one.name] == ranks[best.name]]
        return Choice(
            best,
            f"calls that were written come back with it ({count} kinds of turns)",
            shown=True,
            also=tuple(name for name in equal if name != best.name),
        )

    def fails(self, tools: ToolFormat) -> bool:
        """Whether a format does not read back the calls that are written."""
        return not _score(self._best_proof(tools))[0]

    def _best_proof(self, tools: ToolFormat) -> tuple[Item, ...]:
        """The proof beside whatever thoughts fit best."""
        best: tuple[Item, ...] = ()
        for reasoning in [None, *self.likely]:
            if _status(self.scene.prove(tools, reasoning, [CALL]), CALL) != "proved":
                continue
            proof = self.scene.prove(tools, reasoning)
            if _score(proof) > _score(best):
                best = proof
        return best

    def _rank(self, tools: ToolFormat, proof: tuple[Item, ...]) -> tuple[int, ...]:
        """How well a format reads what is written; equal ones differ in nothing that matters."""
        marked = any_stands(openers(tools), self.turns) and not markless(tools)
        return (int(marked), *_score(proof))

    def _whole_rank(self, tools: ToolFormat, rank: tuple[int, ...]) -> tuple[int, ...]:
        missing, length = coverage(tools, within(self.words))
        unlike = 0 if markless(tools) else missing
        return (*rank, signs(tools, self.words), self._like_calls(tools), -unlike, length)

    def _like_calls(self, tools: ToolFormat) -> int:
        """How much the template writes a call as the example does."""
        manner = self.stage.calling
        said = _example(tools)
        if manner is None or not said.calls:
            return 0
        written = self.stage.write(Said(calls=said.calls), manner, {})
        return max(_alike(text, tools.example) for text in written.texts) if written else 0

    def _said(self, text: str, why: str) -> Choice | None:
        """The format whose marks a text has."""
        found = [
            one
            for one in tool_formats().values()
            if _all_openers(one, text) or signs(one, text) > 0
        ]
        if not found:
            return None

        bones = _skeleton(text)

        def rank(tools: ToolFormat) -> tuple[int, ...]:
            missing, length = coverage(tools, within(text))
            alike = _skeleton(tools.example) in bones  # whatever the words in it are
            likely = (-missing, not markless(tools), length, alike)
            return signs(tools, text), *map(int, likely)

        return Choice(max(found, key=rank), why)

    def _asked(self) -> Choice | None:
        """The format without marks that a template asks for: keys and brackets of the example."""
        found = [
            (len(shape.pattern), one)
            for one in tool_formats().values()
            if markless(one) and (shape := _shape(one.example)) and shape.search(self.source)
        ]
        if not found:
            return None
        best = max(found, key=lambda pair: pair[0])[1]
        return Choice(best, "the template asks for calls that look like its example")

    def _by_vocabulary(self) -> Choice | None:
        has = self.vocabulary.__contains__
        found = [
            one
            for one in tool_formats().values()
            if not markless(one) and any(map(has, (*one.section.open, *one.call.open)))
        ]
        if not found:
            return None

        def rank(tools: ToolFormat) -> tuple[int, int]:
            missing, length = coverage(tools, has)
            return -missing, length

        return Choice(max(found, key=rank), "its marks are tokens of the model")


def _thought_marks(reasoning: ReasoningFormat) -> tuple[str, ...]:
    header = reasoning.header.open + reasoning.header.end if reasoning.header else ()
    return (*reasoning.open, *reasoning.close, *header)


def _told(stage: Stage) -> str:
    """What the template tells the model when there are tools."""
    plain = stage.render(None, Manner(), {}, opened=True) or ""
    told = stage.render(None, Manner(tools=True), {}, opened=True) or ""
    lines = set(plain.splitlines())
    return "\n".join(line for line in told.splitlines() if line not in lines)


def _may_read(tools: ToolFormat, texts: list[str]) -> bool:
    """A cheap look before a format is tried."""
    if markless(tools):
        return True
    return any(any_stands(openers(tools), text) for text in texts)


def _all_openers(tools: ToolFormat, text: str) -> bool:
    """Whether all that opens a call is there. A few letters alone may stand for anything."""
    groups = [tools.section.open, tools.call.open]
    if tools.header is not None:
        groups.append(tools.header.open)
    wanted = [group for group in groups if any(mark.strip() for mark in group)]
    telling = any(len(mark) >= TELLING for group in wanted for mark in group)
    return telling and all(any_stands(group, text) for group in wanted)


def _status(proof: Iterable[Item], name: str) -> str:
    return next((item.status for item in proof if item.name == name), "unwritten")


def _score(proof: Iterable[Item]) -> tuple[int, int]:
    """How much was proved, and how little was left over."""
    proved = [item for item in proof if item.status == "proved"]
    return len(proved), -sum(bool(item.end) for item in proved)


@lru_cache(maxsize=256)
def _example(tools: ToolFormat) -> Said:
    return folded(OutputParser(tools.name), tools.example)


def _alike(text: str, example: str) -> int:
    """2 for the same, 1 for the same but for white space."""
    if text.strip().endswith(example.strip()):
        return 2
    return int(SPACE.sub("", text).endswith(SPACE.sub("", example)))


@lru_cache(maxsize=256)
def _shape(example: str) -> re.Pattern[str] | None:
    """What an example without marks looks like, whatever the words in it are."""
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
