"""A model that can do one thing: find the note in the working directory and say what it holds.

It is an engine, so it sees a rendered prompt and answers in the model's own markup. It decides by
what stands in the prompt: without a result of a tool it lists files, with the name of a note in the
last result it reads that note, with a marker in it it says the marker. It knows neither the note's
name nor the marker, so that an answer with the marker went through the whole loop: our template,
our parser, the dialect, the agent, its tools, and back.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.testing import ScriptedEngine
from dragoman.types import Job, Step

NOTE = re.compile(r"[\w./-]*note-[0-9a-f]{8}\.txt")
MARKER = re.compile(r"marker-[0-9a-f]{16}")
OFFER = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
SMALL_TALK = "Looking for a note"  # to requests beside the task, such as one for a title
OPENED = "<think>\n"  # how a prompt ends where a thought begins

Call = tuple[str, dict[str, Any]]  # a tool's name and arguments


class Moves(NamedTuple):
    """Calls of an agent's own tools."""

    look: Call
    read: Callable[[str], Call]


def as_json(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"\n<tool_call>\n{call}\n</tool_call>"


def as_tags(name: str, arguments: dict[str, Any]) -> str:
    values = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()]
    return f"\n\n<tool_call>\n<function={name}>\n{''.join(values)}</function>\n</tool_call>"


class Speech(NamedTuple):
    """A way of speaking: the template that shows it, and how a call is written."""

    template: Path
    call: Callable[[str, dict[str, Any]], str]


HERE = Path(__file__).parent
SPEECHES = {
    "plain": Speech(HERE / "qwen.jinja", as_json),
    "thinking": Speech(HERE / "qwen_thinking.jinja", as_tags),
}


class Player(ScriptedEngine):
    """The model. `prompts` is what it was shown with tools, `said` what it answered to that."""

    def __init__(self, moves: Moves, speech: Speech) -> None:
        super().__init__(context=100_000)
        self.moves = moves
        self.speech = speech
        self.prompts: list[str] = []
        self.said: list[str] = []

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        assert isinstance(job.prompt, str)
        answer = self._answer(job.prompt)
        async for step in ScriptedEngine(answer, context=self.settings.context).generate(job):
            yield step

    def _answer(self, prompt: str) -> str:
        offers = OFFER.findall(prompt)
        thinks = prompt.endswith(OPENED)
        if not offers:
            return f"A title.\n</think>\n\n{SMALL_TALK}" if thinks else SMALL_TALK
        names = [json.loads(line)["function"]["name"] for line in offers[0].splitlines()]
        thought, answer = self._move(RESULT.findall(prompt), names)
        self.prompts.append(prompt)
        self.said.append(answer)
        return f"{thought}\n</think>\n\n{answer}" if thinks else answer

    def _move(self, results: list[str], names: list[str]) -> tuple[str, str]:
        """What it thinks, and what it then says."""
        if not results:
            return "First the files.", "I will look." + self._call(names, self.moves.look)
        if marker := MARKER.search(results[-1]):
            return "That is it.", f"The note says {marker[0]}."
        if note := NOTE.search(results[-1]):
            return "A note!", "There is a note." + self._call(names, self.moves.read(note[0]))
        return "What now?", f"I cannot go on from this: {results[-1]}"

    def _call(self, names: list[str], call: Call) -> str:
        if call[0] not in names:
            return f" But there is no tool {call[0]}, only {', '.join(names)}."
        return self.speech.call(*call)

    def check(self) -> None:
        """It went the way it was meant to and, if it thinks, saw its own thoughts again."""
        assert ["<tool_call>" in answer for answer in self.said] == [True, True, False]
        if self.speech is SPEECHES["thinking"]:
            assert all(prompt.endswith(OPENED) for prompt in self.prompts)
            for thought in ("First the files.", "A note!"):
                assert f"<think>\n{thought}\n</think>" in self.prompts[-1]
