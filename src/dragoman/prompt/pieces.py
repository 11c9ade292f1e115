"""The data types of prompts: the pieces of a rendered template, and the finished prompt.

A rendered template is split at its special tokens: pieces with an even index are plain text, those
with an odd index are special tokens. A `Splicer` may put the ids of a whole turn in place of such
pieces (`dragoman.replay` has the splicer that the server uses).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from dragoman.prompt.template.budget import RenderLimits
from dragoman.types import Chat, MediaItem

Piece: TypeAlias = str | tuple[int, ...]  # plain text, a special token, or token ids
MEDIA_TEXT = "[media]"  # stands for a picture or sound in the text of a prompt
RenderPieces: TypeAlias = Callable[[Chat, RenderLimits], list[str]]


class PromptPieces(Struct, frozen=True):
    """A prompt in pieces, alternately plain text and special tokens."""

    pieces: list[Piece]
    replayed_turns: int = 0  # turns replaced with the tokens that the model wrote
    skipped: tuple[str, ...] = ()  # why each other turn with a replay was not replaced
    answer_start: int | None = None  # the piece that starts the answer, a special token


class Splicer(Protocol):
    """Puts turns that the model wrote into a prompt, token by token."""

    def compose(self, chat: Chat, limits: RenderLimits) -> PromptPieces: ...


class RenderedPrompt(Struct, frozen=True):
    """A prompt: its text for people to read, and its tokens if there is a tokenizer."""

    text: str
    ids: list[int] | None = None
    special_tokens: int = 0  # how many the template wrote
    last_special_token: str = ""  # the special token that ends the prompt, apart from white space
    cached_tokens: int = 0  # tokens that came from the token cache
    replayed_turns: int = 0  # turns replaced with the tokens that the model wrote
    skipped: tuple[str, ...] = ()  # why each other turn with a replay was not replaced
    answer_start: int | None = None  # the first token of the answer's opening, if a splicer knows
    packed_ids: bytes = b""  # the ids in four bytes each
    media: tuple[MediaItem, ...] = ()  # in the order of the prompt
    is_altered: bool = False  # text that spells special tokens got zero-width spaces

    def fits(self, context: int | None) -> bool:
        return context is None or len(self.ids or ()) < context


def join_pieces(pieces: Sequence[Piece], token_bytes: Sequence[bytes]) -> str:
    """Return the text of the pieces, for people to read."""
    if len(pieces) == 1 and isinstance(pieces[0], str):
        return pieces[0]
    get = token_bytes.__getitem__
    return "".join(
        piece
        if isinstance(piece, str)
        else MEDIA_TEXT
        if piece and piece[0] < 0
        else b"".join(map(get, piece)).decode(errors="replace")
        for piece in pieces
    )
