"""A tokenizer as data, so that another server can build the same one.

It is the vocabulary, with all that is known about its tokens, and the `tokenizer.json` of what
splits plain text. A tokenizer that only asks its engine cannot be sent.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer as Backend

from dragoman.errors import ModelBroken
from dragoman.tokenizers.tokenizer import AnyTokenizer, Tokenizer
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import Json


class SerializedTokenizer(Struct, kw_only=True):
    """A tokenizer; bytes are in base64."""

    vocabulary: Vocabulary
    tokenizer: str  # the text of a `tokenizer.json`


def serialize_tokenizer(tokenizer: AnyTokenizer) -> SerializedTokenizer | None:
    """Return a tokenizer as data; None if it has no backend of its own."""
    if not isinstance(tokenizer, Tokenizer):
        return None
    return SerializedTokenizer(
        vocabulary=tokenizer.vocabulary, tokenizer=tokenizer.serialize_backend()
    )


def deserialize_tokenizer(data: Json) -> Tokenizer:
    """Build the tokenizer that another server has sent, or raise `ModelBroken`."""
    try:
        found = msgspec.convert(data, SerializedTokenizer)
        check_vocabulary(found.vocabulary)
        return Tokenizer(found.vocabulary, Backend.from_str(found.tokenizer))
    except Exception:  # the library has no class for what it cannot read
        raise ModelBroken("The tokenizer of the upstream server cannot be read.") from None


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Raise a `ValueError` if the vocabulary names tokens that it does not have."""
    size = len(vocabulary.pieces)
    named = {*vocabulary.specials.values(), *vocabulary.control, *vocabulary.eos_ids}
    if not size or any(not 0 <= token < size for token in named):
        raise ValueError("the vocabulary names tokens that it does not have")
