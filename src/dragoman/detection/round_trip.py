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
    Manner,
    Stage,
    Switches,
    Written,
)
from dragoman.detection.result import Call, Item, Said, Status
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.output.library import OutputParser
from dragoman.output.spec import ReasoningFormat, ToolFormat

OPENER = re.compile(rf"(?:{TAG.pattern})[^<\[\n]*")
MARKS_BEHIND = 4  # that a template may write behind a turn
CALL, TALK = "one call", "an answer"
_ONE = Call(LOOK, {"zqplace": VALUE})
_TWO = Call(LOOK, {"zqplace": "zqsecond", "zqnumber": 7})
_AWKWARD = 'zq"quoted" it\'s\nnext {line} [1], <b>&amp;</b> \\ zq'
_TREE = {"zqa": {"zqb": [1, 2.5, None, "zqc"]}, "zqd": True}


def _look(**arguments: Any) -> Said:
    return Said(calls=(Call(LOOK, arguments),))


ITEMS: dict[str, Said] = {
    TALK: Said(text=ANSWER),
    CALL: Said(calls=(_ONE,)),
    "parallel calls": Said(calls=(_ONE, _TWO)),
    "a call without arguments": Said(calls=(Call(PING, {}),)),
    "numbers and booleans": _look(zqplace=VALUE, zqnumber=3, zqflag=True),
    "nested arguments": _look(zqplace=VALUE, zqtree=_TREE, zqlist=["zqf", 5, {"zqg": False}]),
    "unicode": _look(zqplace="zqZürich 東京 🌧"),
    "digits that are text": _look(zqplace="02134"),
    "awkward text": _look(zqplace=_AWKWARD),
    "text and a call": Said(text=ANSWER, calls=(_ONE,)),
    "thoughts": Said(text=ANSWER, thoughts=THOUGHT),
    "thoughts and a call": Said(thoughts=THOUGHT, calls=(_ONE,)),
    "thoughts, text and a call": Said(text=ANSWER, thoughts=THOUGHT, calls=(_ONE,)),
}
ORDER: tuple[Status, ...] = ("proved", "otherwise", "failed", "unwritten")
BRIEF = (TALK, CALL, "thoughts", "thoughts and a call")  # enough to tell most formats apart


def read(
    text: str, prompt: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None
) -> Said:
    """What a format makes of a turn."""
    known = tools.name if tools and tool_formats().get(tools.name) is tools else tools
    about = reasoning.name if reasoning and _known(reasoning) else reasoning
    return folded(OutputParser(known, about, tools=TOOLS, prompt=prompt), text)


def _known(reasoning: ReasoningFormat) -> bool:
    return reasoning_formats().get(reasoning.name) is reasoning


def folded(parser: OutputParser, text: str) -> Said:
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
    return Said(
        text="".join(said["text"]),
        thoughts="".join(said["reasoning"]),
        calls=tuple(Call(name, _loaded(arguments)) for name, arguments in calls),
    )


def _loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _compared(name: str, text: str, prompt: str, came: Said) -> Item:
    """Whether the same came out; marks behind it are told apart."""
    said = ITEMS[name]
    called = _exactly(said.calls) == _exactly(came.calls)
    same = called and said.thoughts.strip() == came.thoughts.strip()
    found, wanted = came.text.strip(), said.text.strip()
    end = found.removeprefix(wanted).strip()
    ended = not TAG.sub("", end).strip() and len(TAG.findall(end)) <= MARKS_BEHIND
    status: Status = "failed"
    if same and found.startswith(wanted) and ended:
        status = "proved"
    elif called and (_moved(said, came) or _apart(text, prompt)):
        status = "otherwise"
    end = end if status == "proved" else ""
    return Item(name=name, status=status, said=said, came=came, prompt=prompt, text=text, end=end)


def _moved(said: Said, came: Said) -> bool:
    """Whether text came back as thoughts, since the template writes it there."""
    words, found = (said.thoughts + said.text).split(), came.thoughts.split()
    return bool(said.text) and not came.text.strip() and "".join(words) == "".join(found)


def _apart(text: str, prompt: str) -> bool:
    """Whether a second turn is opened inside of a turn, by the longest mark that opened it."""
    return max(OPENER.findall(prompt), key=len, default=text + prompt).strip() in text


def _exactly(calls: tuple[Call, ...]) -> list[str]:
    """As text, since Python takes 1 for True."""
    return [json.dumps([call.name, call.arguments], sort_keys=True) for call in calls]


class Scene:
    """Every turn as one template writes it, in every position of its switches."""

    def __init__(self, stage: Stage, positions: Sequence[Switches]) -> None:
        self.stage = stage
        self._positions = positions
        self._takes: dict[str, list[Written]] = {}

    def takes(self, name: str) -> list[Written]:
        """The ways in which a turn is written, those first that continue a real prompt."""
        if name not in self._takes:
            self._takes[name] = self._written(ITEMS[name])
        return self._takes[name]

    def _written(self, said: Said) -> list[Written]:
        manner, first = self._manner(said)
        if manner is None:
            return []
        found: dict[tuple[str, str], Written] = {}
        for switches in [first, *self._positions]:
            written = self.stage.write(said, manner, switches)
            if written is not None and holds(written, said):
                found.setdefault((written.prompt, written.text), written)
        return sorted(found.values(), key=lambda written: bool(written.ahead))

    def _manner(self, said: Said) -> tuple[Manner | None, Switches]:
        stage = self.stage
        if said.thoughts and stage.thinking is None:
            return None, {}
        thinking, switches = stage.thinking or (Manner(), {})
        if not said.calls:
            return (thinking, switches) if said.thoughts else (Manner(), {})
        if stage.calling is None:
            return None, {}
        if not said.thoughts:
            return stage.calling, {}
        return replace(stage.calling, carrier=thinking.carrier), switches

    def prove(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        names: Sequence[str] = tuple(ITEMS),
    ) -> tuple[Item, ...]:
        """The items, read with two formats."""
        return tuple(self._item(name, tools, reasoning) for name in names)

    def _item(self, name: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> Item:
        said, best = ITEMS[name], None
        takes = self.takes(name) if not said.calls or tools is not None else []
        for take in takes:
            for text, prompt in () if self.stage.over else _readings(take, said):
                item = _compared(name, text, prompt, read(text, prompt, tools, reasoning))
                if item.status == "proved" and not item.end:
                    return item
                if best is None or ORDER.index(item.status) < ORDER.index(best.status):
                    best = item
        return best or Item(name=name, status="unwritten", said=said)


def _readings(take: Written, said: Said) -> list[tuple[str, str]]:
    prompts = [take.prompt]
    if take.ahead and said.thoughts:  # older thoughts are written without what opens them
        prompts.append(take.prompt + take.ahead)
    return [(text, prompt) for prompt in prompts for text in take.texts]


def holds(written: Written, said: Said) -> bool:
    """Whether all words of a turn arrived."""
    text = written.text
    if any(word not in text for word in (said.text, said.thoughts)):
        return False
    if any(text.count(call.name) < said.calls.count(call) for call in said.calls):
        return False
    plain = [value for call in said.calls for value in _words(call.arguments)]
    return all(word in text for word in plain)


def _words(value: Any) -> list[str]:
    """The made-up words in a value that no template has a reason to change."""
    if isinstance(value, dict):
        return [word for one in value.values() for word in _words(one)]
    if isinstance(value, list):
        return [word for one in value for word in _words(one)]
    made_up = isinstance(value, str) and value.startswith(WORD) and value.isalnum()
    return [value] if made_up and value.isascii() else []
