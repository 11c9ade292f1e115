"""What rendering a chat results in."""

from __future__ import annotations

from msgspec import Struct

from dragoman.types import MediaItem


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
