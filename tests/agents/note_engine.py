"""An engine that can do one thing: find the note in the working directory and report its content.

It gets a rendered prompt and answers in the model's own markup. The prompt decides what it does:
without a tool result it lists files; if the last result has the name of a note it reads that note;
if it has a marker it reports the marker. The engine knows neither the name of the note nor the
marker, so an answer with the marker has gone through the whole loop: our template, our parser, the
wire API, the agent, its tools, and back.
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
TOOL_LIST = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
TOOL_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
TITLE = "Looking for a note"  # the answer to requests without tools, such as for a title
REASONING_START = "<think>\n"  # how a prompt ends if the answer starts with reasoning

Call = tuple[str, dict[str, Any]]  # a tool's name and arguments


class AgentTools(NamedTuple):
    """Calls of an agent's tools."""

    list_files: Call
    read_file: Callable[[str], Call]


def write_json_call(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"\n<tool_call>\n{call}\n</tool_call>"


def write_tag_call(name: str, arguments: dict[str, Any]) -> str:
    values = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()]
    return f"\n\n<tool_call>\n<function={name}>\n{''.join(values)}</function>\n</tool_call>"


class ModelMarkup(NamedTuple):
    """A chat template and the function that writes calls the way it shows."""

    template: Path
    call: Callable[[str, dict[str, Any]], str]


HERE = Path(__file__).parent
MARKUPS = {
    "plain": ModelMarkup(HERE / "qwen.jinja", write_json_call),
    "thinking": ModelMarkup(HERE / "qwen_thinking.jinja", write_tag_call),
}


class NoteEngine(ScriptedEngine):
    """Records the prompts that had tools, and its answers to them."""

    def __init__(self, agent_tools: AgentTools, markup: ModelMarkup) -> None:
        super().__init__(context=100_000)
        self.agent_tools = agent_tools
        self.markup = markup
        self.prompts: list[str] = []
        self.answers: list[str] = []

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        assert isinstance(job.prompt, str)
        answer = self._answer(job.prompt)
        async for step in ScriptedEngine(answer, context=self.settings.context).generate(job):
            yield step

    def _answer(self, prompt: str) -> str:
        tool_lists = TOOL_LIST.findall(prompt)
        reasons = prompt.endswith(REASONING_START)
        if not tool_lists:
            return f"A title.\n</think>\n\n{TITLE}" if reasons else TITLE
        names = [json.loads(line)["function"]["name"] for line in tool_lists[0].splitlines()]
        reasoning, answer = self._decide(TOOL_RESULT.findall(prompt), names)
        self.prompts.append(prompt)
        self.answers.append(answer)
        return f"{reasoning}\n</think>\n\n{answer}" if reasons else answer

    def _decide(self, results: list[str], names: list[str]) -> tuple[str, str]:
        """The reasoning and the answer that follow from the tool results."""
        if not results:
            return "First the files.", "I will look." + self._call(
                names, self.agent_tools.list_files
            )
        if marker := MARKER.search(results[-1]):
            return "That is it.", f"The note says {marker[0]}."
        if note := NOTE.search(results[-1]):
            return "A note!", "There is a note." + self._call(
                names, self.agent_tools.read_file(note[0])
            )
        return "What now?", f"I cannot continue from this: {results[-1]}"

    def _call(self, names: list[str], call: Call) -> str:
        if call[0] not in names:
            return f" But there is no tool {call[0]}, only {', '.join(names)}."
        return self.markup.call(*call)

    def check(self) -> None:
        """Check that it listed, read and answered and, if it reasons, got its reasoning back."""
        assert ["<tool_call>" in answer for answer in self.answers] == [True, True, False]
        if self.markup is MARKUPS["thinking"]:
            assert all(prompt.endswith(REASONING_START) for prompt in self.prompts)
            for reasoning in ("First the files.", "A note!"):
                assert f"<think>\n{reasoning}\n</think>" in self.prompts[-1]
