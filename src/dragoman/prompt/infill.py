"""Composes prompts to fill in text between a prefix and a suffix, with the model's own tokens.

The order is that in which models are trained: repository, other files, prefix, suffix, middle:

    [REPOSITORY]name[FILE]a.py ...[FILE]name[PREFIX]prefix[SUFFIX]suffix[MIDDLE]

A model without a token for the middle gets the suffix first and continues the prefix. All texts are
plain text: none of them can contain a special token.

Where a client allows it, texts that do not fit are shortened as llama-server does: the end of the
prefix gets three quarters of the space and the start of the suffix the rest, and other files get
what is left, the last ones first. A text is tokenized only as far as it may fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dragoman.errors import Unsupported
from dragoman.prompt.tokens.limit import DEFAULT_LIMIT, PromptLimit
from dragoman.prompt.tokens.slices import encode_text
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.tokenizers.vocabulary import InfillTokens
from dragoman.types import Infill, Prompt

# llama-server's names for what requests do not name
REPOSITORY_NAME = "myproject"
FILE_NAME = "filename"
SNIPPET = "\n\n--- snippet ---\n\n"  # before a file, if the model has no token for it
PREFIX_SHARE = 0.75
USUAL_TOKEN = 8  # characters, more than tokens have on average
CUT_TOKENS = 16  # at a cut that may differ from those of the whole text


def get_infill_tokens(tokenizer: AnyTokenizer | None, param: str) -> InfillTokens:
    """Return the model's tokens, or raise an error that names the client's field."""
    tokens: InfillTokens | None = getattr(tokenizer, "infill", None)
    if tokens is None:
        raise Unsupported(f"`{param}` is not supported by this model.", param=param)
    return tokens


async def encode_infill(
    prompt: Prompt,
    infill: Infill,
    tokenizer: AnyTokenizer | None,
    room: int | None,
    limit: PromptLimit,
) -> tuple[list[int], tuple[str, ...]]:
    """Return the prompt that asks a model to fill in text, and warnings.

    `room` is how long the prompt may be if the client allows to shorten it, else `limit`.
    """
    tokens = get_infill_tokens(tokenizer, infill.param)
    assert tokenizer is not None  # noqa: S101
    texts = TextParts(tokenizer, room if infill.may_shorten else None, limit)
    content = prompt.content
    prefix = list(content) if isinstance(content, list) else await texts.encode_end(content)
    suffix = await texts.encode_start(infill.suffix)
    files = await _encode_files(infill.files, tokens, texts) if infill.files else []
    has_bos = prompt.add_special_tokens and tokenizer.add_bos and tokenizer.bos_id is not None
    bos = [tokenizer.bos_id] if has_bos and tokenizer.bos_id is not None else []
    warnings: tuple[str, ...] = ()
    length = len(prefix) + len(suffix) + len(files)
    if infill.may_shorten and room is not None and length > room - len(bos) - 3:
        prefix, suffix, files = _shorten(prefix, suffix, files, room - len(bos) - 3)
        left = len(prefix) + len(suffix) + len(files)
        of = f"{left} tokens" if texts.is_incomplete else f"{left} of {length} tokens"
        warnings = (f"Only {of} of the texts fit into the context.",)
    before, after = [tokens.prefix, *prefix], [tokens.suffix, *suffix]
    if tokens.middle is None:
        return [*bos, *files, *after, *before], warnings
    return [*bos, *files, *before, *after, tokens.middle], warnings


class TextParts:
    """Encodes the texts of one prompt, of each only as much as there may be room for."""

    def __init__(self, tokenizer: AnyTokenizer, room: int | None, limit: PromptLimit) -> None:
        """Without `room`, texts are encoded completely, and `limit` applies to all together."""
        self._tokenizer = tokenizer
        self._room = room
        self._limit = limit
        self._characters = self._tokens = 0  # of the texts so far
        self.is_incomplete = False  # not all of the texts was encoded

    async def encode_end(self, text: str) -> list[int]:
        """Encode a text, or as much of its end as there may be room for."""
        return await self._encode(text, lambda size: text[-size:])

    async def encode_start(self, text: str) -> list[int]:
        """Encode a text, or as much of its beginning as there may be room for."""
        return await self._encode(text, lambda size: text[:size])

    def is_full(self, parts: Sequence[Sequence[int]]) -> bool:
        """Whether there is no room for more than these tokens."""
        is_full = self._room is not None and sum(map(len, parts)) > self._room
        self.is_incomplete |= is_full
        return is_full

    async def _encode(self, text: str, cut: Callable[[int], str]) -> list[int]:
        if self._room is None:
            self._characters += len(text)
            self._limit.check_characters(self._characters)
            ids = list(await encode_text(text, self._tokenizer, self._limit, self._tokens))
            self._tokens += len(ids)
            return ids
        size = USUAL_TOKEN * self._room
        while True:
            ids = list(await encode_text(cut(size), self._tokenizer, DEFAULT_LIMIT))
            if size >= len(text):
                return ids
            if len(ids) > self._room + CUT_TOKENS or size > self._limit.characters:
                self.is_incomplete = True
                return ids
            size *= 4


async def _encode_files(
    files: Sequence[tuple[str, str]], tokens: InfillTokens, texts: TextParts
) -> list[int]:
    """Encode other files, in their order; the last ones matter most if there is little room."""
    parts: list[list[int]] = []
    if tokens.file is not None:
        parts.append(await _encode_file_start(FILE_NAME, tokens, texts))
    for name, text in reversed(files):
        if texts.is_full(parts):
            break
        parts.append(await texts.encode_end(text))
        parts.append(await _encode_file_start(name, tokens, texts))
    if tokens.repository is not None:
        parts.append([tokens.repository, *await texts.encode_start(f"{REPOSITORY_NAME}\n")])
    return [token for part in reversed(parts) for token in part]


async def _encode_file_start(name: str, tokens: InfillTokens, texts: TextParts) -> list[int]:
    if tokens.file is None:
        return await texts.encode_start(SNIPPET)
    return [tokens.file, *await texts.encode_start(f"{name}\n")]


def _shorten(
    prefix: list[int], suffix: list[int], files: list[int], room: int
) -> tuple[list[int], list[int], list[int]]:
    """Return as much of the texts as there is room for; what one does not need, others get."""
    room = max(room, 0)
    suffix_room = max(room - int(room * PREFIX_SHARE), room - len(prefix))
    suffix = suffix[:suffix_room]
    prefix = prefix[max(0, len(prefix) - (room - len(suffix))) :]
    left = room - len(prefix) - len(suffix)
    return prefix, suffix, files[max(0, len(files) - left) :]
