"""Puts the turns that the model wrote back into a prompt, token by token.

The template still renders the client's version of such a turn, because templates count and check
turns. Markers in its texts show where it is in the prompt (`turn_positions`). The splicer replaces
everything from the start of the turn to its end (`turn_boundaries`) with the stored tokens. A turn
without clear boundaries stays as the client sent it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.errors import TemplateRejected, TemplateTooCostly
from dragoman.prompt.pieces import Piece, PromptPieces
from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.special_tokens import BREAK, remove_breaks
from dragoman.prompt.template.budget import RenderLimits
from dragoman.prompt.turn_markers import drop_replays, find_replays
from dragoman.replay.turn_boundaries import (
    LearnedBoundaries,
    TurnBoundaries,
    TurnShape,
    get_turn_shape,
    make_boundaries,
)
from dragoman.replay.turn_positions import TurnOpening, TurnSpan, locate_turns
from dragoman.types import Chat, Message, ReplayedTurn

UNPLACED = "unplaced"  # the turn has no clear boundaries in the prompt
REFUSED = "refused"  # the template rejects the conversation with markers in it


class TurnSplicer:
    """Composes the prompts of one renderer, with earlier turns as the model wrote them."""

    def __init__(
        self, renderer: PromptRenderer, boundaries: LearnedBoundaries | None = None
    ) -> None:
        if renderer.tokenizer is None:
            raise ValueError("turns can only be spliced into prompts of token ids")
        learned = boundaries or make_boundaries(renderer.tokenizer)
        self._render = renderer.render_pieces
        self._token_bytes = renderer.tokenizer.pieces
        self._special_texts = learned.special_texts
        self._boundaries = TurnBoundaries(renderer.render_pieces, learned)

    def compose(self, chat: Chat, limits: RenderLimits) -> PromptPieces:
        """Return the pieces of a chat's prompt, and where the answer starts."""
        skipped: list[str] = []
        replayed, pieces, originals = 0, None, chat.messages
        if find_replays(chat):
            chat, skipped = self._drop_irreplaceable(chat)
        for _ in range(2):
            replays = find_replays(chat)
            if not replays:
                break
            pieces, missing = self._splice(chat, replays, limits)
            if pieces is not None:
                replayed = len(replays)
                break
            skipped += [UNPLACED] * len(missing) or [REFUSED] * len(replays)
            chat = _restore(chat, missing or set(range(len(replays))), originals)
        plain = drop_replays(replace(chat, messages=originals))
        if pieces is None:
            skipped += [UNPLACED] * len(find_replays(chat))
            pieces = [*self._render(plain, limits)]
        start = self._boundaries.find_answer_start(plain, pieces, limits)
        return PromptPieces(pieces, replayed, tuple(skipped), start)

    def _splice(
        self, chat: Chat, replays: Sequence[ReplayedTurn], limits: RenderLimits
    ) -> tuple[list[Piece] | None, set[int]]:
        """Return the pieces, or the numbers of the turns without boundaries.

        The second is empty if the template rejects the conversation.
        """
        try:
            pieces = self._render(chat, limits)
        except TemplateTooCostly:
            raise
        except TemplateRejected:
            return None, set()
        openings = [self._make_opening(replay) for replay in replays]
        spans, missing = locate_turns(pieces, openings, self._boundaries.endings)
        return (None, missing) if missing else (splice_turns(pieces, spans, replays), missing)

    def _make_opening(self, replay: ReplayedTurn) -> TurnOpening:
        first, *rest = replay.opening
        end = next((index for index, token in enumerate(rest) if token in self._special_texts), 0)
        text = b"".join(map(self._token_bytes.__getitem__, rest[:end]))
        return TurnOpening(self._special_texts[first], text.decode(errors="replace"))

    def _drop_irreplaceable(self, chat: Chat) -> tuple[Chat, list[str]]:
        """Drop the replays of turns that cannot be replaced in this template."""
        messages, skipped = [], []
        for index, message in enumerate(chat.messages):
            replay = message.replay
            if replay is not None:
                continued = chat.continue_final_message and index == len(chat.messages) - 1
                has_opening = bool(replay.opening) and replay.opening[0] in self._special_texts
                shape = get_turn_shape(chat.messages, index)
                usable = None
                if has_opening and not continued:
                    usable = self._make_replaceable(message, replay, shape)
                skipped += [] if usable is not None else [UNPLACED]
                message = usable or replace(message, replay=None)
            messages.append(message)
        return replace(chat, messages=tuple(messages)), skipped

    def _make_replaceable(
        self, message: Message, replay: ReplayedTurn, shape: TurnShape
    ) -> Message | None:
        """Return the turn if it can be replaced, else only its calls: the replay has all of it.

        The replay is copied, because turns are identified by the identity of their replays.
        """
        copy = replace(message, replay=replace(replay))
        if self._boundaries.can_replace(shape):
            return copy
        only_calls = replace(shape, has_text=False, has_reasoning=False)
        if not message.tool_calls or not self._boundaries.can_replace(only_calls):
            return None
        return replace(copy, content=(), reasoning=None)


def splice_turns(
    pieces: Sequence[str], spans: Sequence[TurnSpan], replays: Sequence[ReplayedTurn]
) -> list[Piece]:
    """Replace turns with their replays; plain text and tokens still alternate."""
    spliced: list[Piece] = []
    end = 0
    for span in spans:
        replay = replays[span.number]
        spliced += [*pieces[end : span.start], (*replay.opening, *replay.ids)]
        spliced += [""] if span.end % 2 else []
        end = span.end
    spliced += pieces[end:]
    return [_remove_breaks(piece) for piece in spliced]


def _remove_breaks(piece: Piece) -> Piece:
    if isinstance(piece, str) and (BREAK in piece or "\\" in piece):
        return remove_breaks(piece)
    return piece


def _restore(chat: Chat, numbers: set[int], originals: Sequence[Message]) -> Chat:
    """Put the client's messages back in place of these turns."""
    messages, number = [], -1
    for message, original in zip(chat.messages, originals, strict=True):
        number += message.replay is not None
        if message.replay is not None and number in numbers:
            message = replace(original, replay=None)
        messages.append(message)
    return replace(chat, messages=tuple(messages))
