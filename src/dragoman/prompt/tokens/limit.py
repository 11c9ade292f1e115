"""How long a prompt may be, checked before and while it is tokenized.

Tokenizing a text costs far more than rejecting it. A text cannot have fewer tokens than its
characters divided by those of the longest token, so a text that is longer than that allows is
rejected at once, and tokenizing others stops as soon as there are too many tokens. Every function
that turns text into tokens takes a `PromptLimit`.

Beyond `MAX_CHARACTERS`, texts must have fewer characters for each token than the longest token has:
only white space reaches that many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.errors import BadRequest, DragomanError
from dragoman.types import Chat

DEFAULT_TOKENS = 1 << 18  # where nothing else is known
MAX_CHARACTERS = 4 << 20  # texts up to this length are limited by the longest token alone
CHARACTERS_PER_TOKEN = 8  # on average, of texts that are longer than that
LONGEST_TOKEN = 256  # characters, where it is not known


class PromptLimit(Struct, frozen=True, kw_only=True):
    """How long a prompt may be; `make_error` gets the actual length, in words."""

    tokens: int
    characters: int
    longest_token: int
    make_error: Callable[[str], DragomanError]

    def check_characters(self, count: int) -> None:
        """Reject a text that is too long to be tokenized."""
        if count <= self.characters:
            return
        tokens = count // self.longest_token
        if tokens >= self.tokens:
            raise self.make_error(f"at least {tokens} tokens")
        raise self.make_error(f"{count} characters, of which at most {self.characters} are read")

    def check_chat(self, chat: Chat) -> None:
        """Reject a chat that is too long to be rendered."""
        if len(chat.messages) > self.tokens:  # each of them has a token at least
            raise self.make_error(f"at least {len(chat.messages)} tokens")
        self.check_characters(chat.characters)

    def check_tokens(self, count: int, *, is_whole: bool = False) -> None:
        """Reject a prompt that has too many tokens; all of them, or the first ones alone."""
        if count > self.tokens:
            raise self.make_error(f"{count} tokens" if is_whole else f"at least {count} tokens")


def make_limit(
    tokens: int, longest_token: int | None, make_error: Callable[[str], DragomanError]
) -> PromptLimit:
    longest = longest_token or LONGEST_TOKEN
    usual = max(MAX_CHARACTERS, CHARACTERS_PER_TOKEN * tokens)
    return PromptLimit(
        tokens=tokens,
        characters=min(tokens * longest, usual),
        longest_token=longest,
        make_error=make_error,
    )


DEFAULT_LIMIT = make_limit(
    DEFAULT_TOKENS, None, lambda length: BadRequest(f"The text is too long: it has {length}.")
)


def measure_longest_token(pieces: Sequence[bytes]) -> int:
    """Return how many characters a single token can end, at most."""
    longest = 1
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) <= longest:
            break
        # the first bytes may end a character that began in the token before
        starts = sum(byte & 0xC0 != 0x80 for byte in piece) + (piece[0] & 0xC0 == 0x80)
        longest = max(longest, starts)
    return longest
