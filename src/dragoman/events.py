"""The data types of an answer, and the only fold over it.

After the engine, everything is a `Delta`. A streamed response encodes each one; a whole response is
a `Completion`, which adds them up. Everything that a client sees of an answer (text, finish reason,
usage, logprobs) is in the deltas, so the two cannot disagree.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Channel: TypeAlias = Literal["text", "reasoning", "tool_name", "tool_args"]
Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


class Token(Struct, frozen=True):
    """One token with its logprob, as clients get it."""

    text: str
    data: bytes
    logprob: float | None
    top: tuple[Token, ...] = ()
    id: int = -1


class Usage(Struct, frozen=True):
    """The tokens of an answer. Adding the usage of two choices counts their prompt once."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    drafted: int = 0  # by speculative decoding
    accepted: int = 0  # of the drafted tokens

    def __add__(self, other: Usage) -> Usage:
        if self == NO_USAGE:
            return other
        return Usage(
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )


NO_USAGE = Usage()


class Delta(Struct, frozen=True, gc=False):
    """What one choice gained on one channel.

    Joining a channel's deltas gives its final text. The delta that carries `finish` is the last of
    its choice and carries the choice's `usage`; a prompt is on the usage of its first choice only.
    """

    choice: int = 0
    text: str = ""
    channel: Channel = "text"
    call: int = 0  # which tool call, on the tool_* channels
    tokens: tuple[Token, ...] = ()  # logprobs of the text, if the client wants them
    finish: Finish | None = None
    stop: str | int | None = None  # the stop string or token that ended it
    usage: Usage | None = None
    id: str = ""  # of the call, sent with its name; generated if the model gave none
    context: list[int] | None = None  # with `finish`, if wanted: all tokens of prompt and answer
    ids: tuple[int, ...] = ()  # if wanted: of the new tokens, with the stop token
    unnamed_tokens: int = 0  # beside these: new tokens whose ids the engine does not know


class AnswerTimes(Struct, frozen=True, kw_only=True):
    """How many seconds the parts of a request took."""

    total: float = 0.0
    load: float = 0.0  # until the model was there
    prompt: float = 0.0  # to read the prompt
    answer: float = 0.0  # to generate the answer


class GeneratedCall(Struct):
    """A tool call that the model generated."""

    name: str = ""
    arguments: str = ""
    id: str = ""


class OutputPart(Struct, frozen=True):
    """A run of text on one channel."""

    channel: Channel
    text: str
    call: int = 0


class Choice(Struct):
    """One choice of a completion."""

    index: int
    text: str = ""
    reasoning: str = ""
    calls: list[GeneratedCall] = msgspec.field(default_factory=list)
    tokens: list[Token] = msgspec.field(default_factory=list)
    finish: Finish | None = None
    stop: str | int | None = None
    context: list[int] | None = None
    ids: list[int] = msgspec.field(default_factory=list)
    unnamed_tokens: int = 0
    parts: list[OutputPart] = msgspec.field(default_factory=list)  # the same texts in their order


class Completion:
    """Adds up all deltas of an answer."""

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}
        self._runs: dict[int, list[tuple[Channel, int, list[str]]]] = {}
        self._call_ids: dict[tuple[int, int], str] = {}
        self.usage = Usage()

    def add(self, delta: Delta) -> None:
        choice = self._choices.get(delta.choice)
        if choice is None:
            choice = self._choices[delta.choice] = Choice(delta.choice)
        if delta.text or delta.channel.startswith("tool_"):
            self._get_run(delta).append(delta.text)
        if delta.id:
            self._call_ids[delta.choice, delta.call] = delta.id
        choice.tokens.extend(delta.tokens)
        choice.ids.extend(delta.ids)
        choice.unnamed_tokens += delta.unnamed_tokens
        if delta.finish is not None:
            choice.finish = delta.finish
            choice.stop = delta.stop
            choice.context = delta.context
        if delta.usage is not None:
            self.usage += delta.usage

    def _get_run(self, delta: Delta) -> list[str]:
        """Return the texts of the current run of this channel, or start a new run."""
        runs = self._runs.setdefault(delta.choice, [])
        if not runs or runs[-1][:2] != (delta.channel, delta.call):
            runs.append((delta.channel, delta.call, []))
        return runs[-1][2]

    def build_choices(self) -> list[Choice]:
        """Return all choices by index, with their texts joined."""
        for index, runs in self._runs.items():
            joined: dict[tuple[Channel, int], str] = {}
            choice = self._choices[index]
            choice.parts = [
                OutputPart(channel, "".join(texts), call) for channel, call, texts in runs
            ]
            for part in choice.parts:
                key = (part.channel, part.call)
                joined[key] = joined.get(key, "") + part.text
            for (channel, call), text in sorted(joined.items()):
                self._set_text(choice, channel, call, text)
        for (index, call), call_id in self._call_ids.items():
            self._choices[index].calls[call].id = call_id
        return [self._choices[index] for index in sorted(self._choices)]

    @staticmethod
    def _set_text(choice: Choice, channel: Channel, call: int, text: str) -> None:
        match channel:
            case "text":
                choice.text = text
            case "reasoning":
                choice.reasoning = text
            case "tool_name" | "tool_args":
                while len(choice.calls) <= call:
                    choice.calls.append(GeneratedCall())
                if channel == "tool_name":
                    choice.calls[call].name = text
                else:
                    choice.calls[call].arguments = text
