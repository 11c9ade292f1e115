"""Puts turns that the model wrote before back into a prompt, token by token.

A client tells an earlier answer back without its thoughts, and with calls that it wrote anew. Put
into a prompt like that it is another text than the one the engine has in its cache. Where the turn
is remembered (`Message.said`) the prompt gets what was there: what opened it, and what followed.

The template is still given the client's message, because templates count and check, but with signs
in it by which its place in the prompt is found (`places`). Everything from there up to what ends
the turn (`bounds`) is replaced. A turn that has no clear place is written as the client told it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import TemplateRejected
from dragoman.prompt.special_tokens import BREAK, remove_breaks
from dragoman.prompt.template.budget import RenderLimits
from dragoman.prompt.template.template import TOO_COSTLY
from dragoman.replay.turn_boundaries import Marks, Piece, TurnBoundaries, TurnShape, Write, shape_of
from dragoman.replay.turn_positions import TurnOpening, TurnSpan, locate_turns
from dragoman.types import Chat, Message, ReplayedTurn

UNPLACED, REFUSED = "unplaced", "refused"


class Tokens(Marks, Protocol):
    """What is needed of a tokenizer."""

    pieces: list[bytes]


class PromptPieces(Struct, frozen=True):
    """A prompt in pieces, plain text and special tokens in turn."""

    pieces: list[Piece]
    replayed_turns: int = 0  # turns that are put back as they were
    skipped: tuple[str, ...] = ()  # why each other one that is remembered is not
    answer_start: int | None = None  # the piece that opens the answer, a special token


class TurnSplicer:
    """Writes chats for one template, with what is remembered of them."""

    def __init__(self, write: Write, tokens: Tokens) -> None:
        self._write = write
        self._tokens = tokens.pieces
        self._names = {token: text for text, token in tokens.specials.items()}
        self._bounds = TurnBoundaries(write, tokens)

    def write(self, chat: Chat, limits: RenderLimits) -> PromptPieces:
        """The pieces of a chat, and where its answer is opened."""
        lost: list[str] = []
        recalled, made, told = 0, None, chat.messages
        if find_replays(chat):
            chat, lost = self._placeable(chat)
        for _ in range(2):
            said = find_replays(chat)
            if not said:
                break
            made, failed = self._recalled(chat, said, limits)
            if made is not None:
                recalled = len(said)
                break
            lost += [UNPLACED] * len(failed) or [REFUSED] * len(said)
            chat = drop_replays(chat, failed or None, told)
        plain = drop_replays(chat, None, told)
        if made is None:
            lost += [UNPLACED] * len(find_replays(chat))
            made = [*self._write(plain, limits)]
        return PromptPieces(made, recalled, tuple(lost), self._bounds.opened(plain, made, limits))

    def _recalled(
        self, chat: Chat, said: Sequence[ReplayedTurn], limits: RenderLimits
    ) -> tuple[list[Piece] | None, set[int]]:
        """The pieces, or which turns stand in the way; none, if it is the template."""
        try:
            pieces = self._write(chat, limits)
        except TemplateRejected as error:
            if error.code == TOO_COSTLY:
                raise
            return None, set()
        found, failed = locate_turns(pieces, [self._opener(one) for one in said], self._bounds.ends)
        return (None, failed) if failed else (splice_turns(pieces, found, said), failed)

    def _opener(self, said: ReplayedTurn) -> TurnOpening:
        first, *rest = said.opening
        until = next((at for at, token in enumerate(rest) if token in self._names), 0)
        text = b"".join(map(self._tokens.__getitem__, rest[:until]))
        return TurnOpening(self._names[first], text.decode(errors="replace"))

    def _placeable(self, chat: Chat) -> tuple[Chat, list[str]]:
        """The chat with what is remembered of turns that can be replaced at all."""
        messages, lost = [], []
        for at, message in enumerate(chat.messages):
            said = message.replay
            if said is not None:
                going_on = chat.continue_final_message and at == len(chat.messages) - 1
                marked = bool(said.opening) and said.opening[0] in self._names
                shape = shape_of(chat.messages, at)
                fit = self._fit(message, said, shape) if marked and not going_on else None
                lost += [] if fit is not None else [UNPLACED]
                message = fit or replace(message, replay=None)
            messages.append(message)
        return replace(chat, messages=tuple(messages)), lost

    def _fit(self, message: Message, said: ReplayedTurn, shape: TurnShape) -> Message | None:
        """A turn, or only its calls, if that can be replaced: what goes there is all of it."""
        made = replace(message, replay=replace(said))  # one that is no other turn's
        if self._bounds.placeable(shape):
            return made
        calls = replace(shape, text=False, thoughts=False)
        if not message.tool_calls or not self._bounds.placeable(calls):
            return None
        return replace(made, content=(), reasoning=None)


def splice_turns(
    pieces: Sequence[str], where: Sequence[TurnSpan], said: Sequence[ReplayedTurn]
) -> list[Piece]:
    """The pieces with turns as they were said; still plain text and tokens in turn."""
    made: list[Piece] = []
    at = 0
    for place in where:
        one = said[place.number]
        made += [*pieces[at : place.start], (*one.opening, *one.ids)]
        made += [""] if place.end % 2 else []
        at = place.end
    made += pieces[at:]
    return [_cleaned(piece) for piece in made]


def _cleaned(piece: Piece) -> Piece:
    return (
        remove_breaks(piece)
        if isinstance(piece, str) and (BREAK in piece or "\\" in piece)
        else piece
    )


def find_replays(chat: Chat) -> list[ReplayedTurn]:
    return [message.replay for message in chat.messages if message.replay is not None]


def drop_replays(
    chat: Chat, numbers: set[int] | None = None, told: Sequence[Message] | None = None
) -> Chat:
    """The chat with nothing remembered of these turns, or of any; `told` is how they were told."""
    if all(message.replay is None for message in chat.messages):
        return chat
    messages, number = [], -1
    for message, own in zip(chat.messages, told or chat.messages, strict=True):
        number += message.replay is not None
        if message.replay is not None and (numbers is None or number in numbers):
            message = replace(own, replay=None)
        messages.append(message)
    return replace(chat, messages=tuple(messages))


def join_pieces(pieces: Sequence[Piece], tokens: Sequence[bytes]) -> str:
    """The pieces as a person would read them."""
    get = tokens.__getitem__
    return "".join(
        piece if isinstance(piece, str) else b"".join(map(get, piece)).decode(errors="replace")
        for piece in pieces
    )
