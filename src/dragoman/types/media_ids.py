"""Pictures and sound among the token ids of a prompt.

A media item is a run of negative ids that spell its digest, so a prompt with media is a list of
integers like any other: two prompts are equal only if their media are, and everything that compares
or stores prompts (replay, the prefix index, slots) works as with text. Clients cannot send negative
ids. How many tokens an item really takes is known to the engine alone (`count_prompt`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from dragoman.types.media import MediaItem

RUN_LENGTH = 8  # ids of an item, with 31 bits of its digest each
_BITS = 31


class PromptCount(Struct, frozen=True):
    """How an engine reads a prompt with media."""

    tokens: int  # those of media included
    is_exact: bool = True  # its text is read as the ids of the prompt
    items: tuple[int, ...] = ()  # tokens of each item, in the order of the prompt

    def count_prefix(self, prompt: Sequence[int], length: int) -> int:
        """Return how many tokens the first `length` ids of the prompt are."""
        negative = sum(token < 0 for token in prompt[:length])
        whole = negative // RUN_LENGTH
        return length - negative + sum(self.items[:whole])


@lru_cache(maxsize=1024)
def make_media_ids(digest: str) -> tuple[int, ...]:
    """Return the ids that stand for an item with this digest."""
    value = int(digest, 16)
    mask = (1 << _BITS) - 1
    return tuple(-1 - (value >> (_BITS * place) & mask) for place in range(RUN_LENGTH))


def count_text_ids(prompt: Sequence[int]) -> int:
    """Return how many ids of a prompt are tokens of text."""
    return sum(token >= 0 for token in prompt)


def split_at_media(
    prompt: Sequence[int], media: Sequence[MediaItem]
) -> Iterator[list[int] | MediaItem]:
    """Yield the text and the media of a prompt, in order; text between two items may be empty.

    Raises a `ValueError` if the media are not those of the prompt.
    """
    items = {make_media_ids(item.digest): item for item in media}
    text: list[int] = []
    index = 0
    while index < len(prompt):
        token = prompt[index]
        if token >= 0:
            text.append(token)
            index += 1
            continue
        item = items.get(tuple(prompt[index : index + RUN_LENGTH]))
        if item is None:
            raise ValueError("the prompt has media that the job has not")
        yield text
        yield item
        text = []
        index += RUN_LENGTH
    yield text
