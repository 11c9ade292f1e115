"""What a scripted engine says, and when.

A script is a list of `Reply`s. The first one that fits the last message of the prompt is played,
so a whole agent loop is one script: a reply for the question, a reply for the tool's result. An
engine is given a prompt, not messages, so the last message is found by the marks that chat
templates put between turns; a prompt without such marks is looked at as it is.

A reply also says how its text is cut into steps and how it goes wrong, if it shall.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import ERROR_CLASSES, EngineFailed

Garbage: TypeAlias = Literal["nan_logprob", "after_finish", "bad_token", "bad_choice"]
By: TypeAlias = Literal["words", "characters", "bytes"]


class Reply(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A text to play, when to play it, how to cut it, and what shall go wrong.

    Faults count steps over all choices: `raise_at=2` lets two steps through.
    """

    text: str = ""
    when: str | None = None  # part of the last message; None fits always
    regex: bool = False  # read `when` as a regular expression
    max_uses: int | None = None  # how often it may be played; None is always
    variants: tuple[str, ...] = ()  # other texts, for further choices and other seeds
    chunks: By | int = "words"  # a number is so many characters; bytes only as token ids
    pieces: tuple[Any, ...] = ()  # the steps by hand: str, or bytes where token ids are spoken
    pace: float | None = None  # seconds between steps; None is the engine's pace
    raise_at: int | None = None
    error: Any = "EngineFailed"  # what is raised: an exception, or the name of one
    hang_at: int | None = None  # nothing more comes until it is cancelled
    exit_at: int | None = None  # the process ends, without a word
    no_finish: bool = False  # ends without saying why
    garbage: Garbage | None = None

    def matches(self, message: str) -> bool:
        if self.when is None:
            return True
        return bool(re.search(self.when, message)) if self.regex else self.when in message

    def list_texts(self) -> tuple[str, ...]:
        return (self.text, *self.variants)

    @property
    def has_faults(self) -> bool:
        return any(at is not None for at in (self.raise_at, self.hang_at, self.exit_at))

    @property
    def corrupts_steps(self) -> bool:
        return self.no_finish or self.garbage is not None

    def make_error(self) -> BaseException:
        if isinstance(self.error, BaseException):
            return self.error
        kind = ERROR_CLASSES.get(self.error)
        if kind is not None:
            return kind("The script says that the engine fails here.")
        found = getattr(builtins, self.error, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found("The script says that the engine fails here.")
        return EngineFailed("The script names an error that does not exist.")


Script: TypeAlias = str | Reply | Sequence[str | Reply] | Mapping[str, str | Reply]

TURN_MARK = re.compile(
    r"<\|[^<>|]{1,40}\|?>|<[^<>|]{1,40}\|>|<｜[^<>｜]{1,40}｜>|</?s>"
    r"|<(?:start|end)_of_turn>|\[/?(?:INST|[A-Z]+_[A-Z_]+)\]"
)
ROLE = re.compile(
    r"\s*(?:system|developer|user|assistant|model|tool|ipython|function|observation)\b"
)
OPENERS = re.compile(r"</?think(?:ing)?>|\[/?THINK\]")
TAIL = 16384  # characters looked at, so that a long chat costs no more than a short one


def find_last_message(prompt: str) -> str:
    """The last turn of a rendered prompt that holds more than a role and an opened thought."""
    tail = prompt[-TAIL:]
    parts = TURN_MARK.split(tail)
    if len(parts) == 1:
        return tail
    for part in reversed(parts):
        if OPENERS.sub("", ROLE.sub("", part, count=1) if ROLE.match(part) else part).strip():
            return part
    return ""


class ReplySelector:
    """Picks the reply for a prompt, and remembers how often each was played."""

    def __init__(self, script: Script) -> None:
        self.replies = _replies(script)
        self._played = [0] * len(self.replies)

    def select(self, prompt: str) -> int | None:
        """The number of the first reply that fits and has a turn left."""
        message = find_last_message(prompt)
        for at, reply in enumerate(self.replies):
            spent = reply.max_uses is not None and self._played[at] >= reply.max_uses
            if not spent and reply.matches(message):
                self._played[at] += 1
                return at
        return None


def _replies(script: Script) -> list[Reply]:
    match script:
        case str():
            return [Reply(script)]
        case Reply():
            return [script]
        case Mapping():
            return [_when(when, reply) for when, reply in script.items()]
        case _:
            last = len(script) - 1
            return [_in_turn(reply, at == last) for at, reply in enumerate(script)]


def _when(when: str, reply: str | Reply) -> Reply:
    if isinstance(reply, str):
        return Reply(reply, when=when)
    return msgspec.structs.replace(reply, when=when)


def _in_turn(reply: str | Reply, last: bool) -> Reply:
    """Plain texts in a list are played one after the other; the last one stays."""
    return reply if isinstance(reply, Reply) else Reply(reply, max_uses=None if last else 1)


WORD = re.compile(r" ?\w{1,8}| ?[^\w\s]{1,3}|\s+")


def cut_text(text: str, chunks: By | int) -> list[str]:
    """The text in pieces that join to it."""
    if isinstance(chunks, int):
        if chunks < 1:
            raise ValueError("`chunks` must be at least 1")
        return [text[at : at + chunks] for at in range(0, len(text), chunks)]
    if chunks == "words":
        return WORD.findall(text)
    if chunks == "characters":
        return list(text)
    raise ValueError(f"`chunks` cannot be {chunks!r} where the engine speaks text")
