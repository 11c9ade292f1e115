"""The replies of a scripted engine, and when each is played.

A script is a list of `Reply`s. The first one that matches the last message of the prompt is played,
so a whole agent loop is one script: a reply for the question, a reply for the tool's result. An
engine gets a prompt, not messages, so the last message is found by the special tokens that chat
templates put between turns; a prompt without them is searched as a whole.

A reply also defines how its text is cut into steps, and whether and how it fails.
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
CutBy: TypeAlias = Literal["words", "characters", "bytes"]
FAILURE = "The script makes the engine fail here."


class Reply(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A text to play, when to play it, how to cut it, and how it fails.

    Failures count steps over all choices: with `raise_at=2`, two steps are played before it.
    """

    text: str = ""
    when: str | None = None  # part of the last message; None always matches
    regex: bool = False  # read `when` as a regular expression
    max_uses: int | None = None  # how often it may be played; None is without limit
    variants: tuple[str, ...] = ()  # other texts, for further choices and other seeds
    chunks: CutBy | int = "words"  # a number of characters for each piece; "bytes" needs token ids
    pieces: tuple[Any, ...] = ()  # the steps themselves, as str; bytes need token ids
    pace: float | None = None  # seconds between steps; None is the engine's pace
    raise_at: int | None = None
    error: Any = "EngineFailed"  # what is raised: an exception, or its name
    hang_at: int | None = None  # nothing more comes until the job is cancelled
    exit_at: int | None = None  # the process exits
    no_finish: bool = False  # ends without a finish reason
    garbage: Garbage | None = None

    def matches(self, message: str) -> bool:
        if self.when is None:
            return True
        return bool(re.search(self.when, message)) if self.regex else self.when in message

    def list_texts(self) -> tuple[str, ...]:
        return (self.text, *self.variants)

    @property
    def has_faults(self) -> bool:
        return any(step is not None for step in (self.raise_at, self.hang_at, self.exit_at))

    @property
    def corrupts_steps(self) -> bool:
        return self.no_finish or self.garbage is not None

    def make_error(self) -> BaseException:
        if isinstance(self.error, BaseException):
            return self.error
        error_class = ERROR_CLASSES.get(self.error)
        if error_class is not None:
            return error_class(FAILURE)
        builtin = getattr(builtins, self.error, None)
        if isinstance(builtin, type) and issubclass(builtin, Exception):
            return builtin(FAILURE)
        return EngineFailed("The script names an error that does not exist.")


Script: TypeAlias = str | Reply | Sequence[str | Reply] | Mapping[str, str | Reply]

TURN_MARKER = re.compile(
    r"<\|[^<>|]{1,40}\|?>|<[^<>|]{1,40}\|>|<｜[^<>｜]{1,40}｜>|</?s>"
    r"|<(?:start|end)_of_turn>|\[/?(?:INST|[A-Z]+_[A-Z_]+)\]"
)
ROLE = re.compile(
    r"\s*(?:system|developer|user|assistant|model|tool|ipython|function|observation)\b"
)
REASONING_MARKER = re.compile(r"</?think(?:ing)?>|\[/?THINK\]")
SEARCHED_CHARACTERS = (
    16384  # at the end of a prompt, so that a long chat costs no more than a short one
)


def find_last_message(prompt: str) -> str:
    """Return the last turn of a rendered prompt that is more than a role and an opening marker."""
    tail = prompt[-SEARCHED_CHARACTERS:]
    parts = TURN_MARKER.split(tail)
    if len(parts) == 1:
        return tail
    for part in reversed(parts):
        content = ROLE.sub("", part, count=1) if ROLE.match(part) else part
        if REASONING_MARKER.sub("", content).strip():
            return part
    return ""


class ReplySelector:
    """Selects the reply for a prompt, and counts how often each was played."""

    def __init__(self, script: Script) -> None:
        self.replies = _parse_script(script)
        self._uses = [0] * len(self.replies)

    def select(self, prompt: str) -> int | None:
        """Return the index of the first reply that matches and may be played again."""
        message = find_last_message(prompt)
        for index, reply in enumerate(self.replies):
            is_used_up = reply.max_uses is not None and self._uses[index] >= reply.max_uses
            if not is_used_up and reply.matches(message):
                self._uses[index] += 1
                return index
        return None


def _parse_script(script: Script) -> list[Reply]:
    match script:
        case str():
            return [Reply(script)]
        case Reply():
            return [script]
        case Mapping():
            return [_set_condition(when, reply) for when, reply in script.items()]
        case _:
            last = len(script) - 1
            return [_limit_uses(reply, index == last) for index, reply in enumerate(script)]


def _set_condition(when: str, reply: str | Reply) -> Reply:
    if isinstance(reply, str):
        return Reply(reply, when=when)
    return msgspec.structs.replace(reply, when=when)


def _limit_uses(reply: str | Reply, is_last: bool) -> Reply:
    """Make a reply from a list: plain texts are played in order, and the last one repeats."""
    return reply if isinstance(reply, Reply) else Reply(reply, max_uses=None if is_last else 1)


WORD = re.compile(r" ?\w{1,8}| ?[^\w\s]{1,3}|\s+")


def cut_text(text: str, chunks: CutBy | int) -> list[str]:
    """Cut the text into pieces that join to it."""
    if isinstance(chunks, int):
        if chunks < 1:
            raise ValueError("`chunks` must be at least 1")
        return [text[start : start + chunks] for start in range(0, len(text), chunks)]
    if chunks == "words":
        return WORD.findall(text)
    if chunks == "characters":
        return list(text)
    raise ValueError(f"`chunks={chunks!r}` needs an engine with `tokens=True`")
