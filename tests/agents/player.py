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
from typing import Any, NamedTuple

from dragoman.testing import Scripted
from dragoman.types import Job, Step

NOTE = re.compile(r"[\w./-]*note-[0-9a-f]{8}\.txt")
MARKER = re.compile(r"marker-[0-9a-f]{16}")
OFFER = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
SMALL_TALK = "Looking for a note"  # to requests beside the task, such as one for a title


class Moves(NamedTuple):
    """Calls of an agent's own tools: name and arguments."""

    look: tuple[str, dict[str, Any]]
    read: Callable[[str], tuple[str, dict[str, Any]]]


class Player(Scripted):
    """The model. `said` is every answer it gave, `offers` the tools it was offered each time."""

    def __init__(self, moves: Moves) -> None:
        super().__init__(context=100_000)
        self.moves = moves
        self.said: list[str] = []
        self.offers: list[list[dict[str, Any]]] = []

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        assert isinstance(job.prompt, str)
        answer = self._answer(job.prompt)
        self.said.append(answer)
        async for step in Scripted(answer, context=self.settings.context).generate(job):
            yield step

    def _answer(self, prompt: str) -> str:
        offers = OFFER.findall(prompt)
        if not offers:
            return SMALL_TALK
        self.offers.append([json.loads(line) for line in offers[0].splitlines()])
        results = RESULT.findall(prompt)
        if not results:
            return "I will look which files there are." + self._call(*self.moves.look)
        if marker := MARKER.search(results[-1]):
            return f"The note says {marker[0]}."
        if note := NOTE.search(results[-1]):
            return "There is a note." + self._call(*self.moves.read(note[0]))
        return f"I cannot go on from this: {results[-1]}"

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        names = [tool["function"]["name"] for tool in self.offers[-1]]
        if name not in names:
            return f" But there is no tool {name}, only {', '.join(names)}."
        call = json.dumps({"name": name, "arguments": arguments})
        return f"\n<tool_call>\n{call}\n</tool_call>"


def check(player: Player) -> None:
    """It went the way it was meant to: three answers with tools at hand, two of them calls."""
    played = [answer for answer in player.said if answer != SMALL_TALK]
    assert ["<tool_call>" in answer for answer in played] == [True, True, False]
