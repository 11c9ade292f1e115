"""Composes prompts to fill in text between a prefix and a suffix, with the model's own tokens.

The order is that in which models are trained: repository, other files, prefix, suffix, middle:

    [REPOSITORY]name[FILE]a.py ...[FILE]name[PREFIX]prefix[SUFFIX]suffix[MIDDLE]

A model without a token for the middle gets the suffix first and continues the prefix. All texts are
plain text: none of them can contain a special token.

Where a client allows it, texts that do not fit are shortened as llama-server does: the end of the
prefix gets three quarters of the room and the start of the suffix the rest, and other files get
what is left, the last ones first.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.errors import Unsupported
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.tokenizers.vocabulary import InfillTokens
from dragoman.types import Infill, Prompt

# llama-server's names for what requests do not name
REPOSITORY_NAME = "myproject"
FILE_NAME = "filename"
SNIPPET = "\n\n--- snippet ---\n\n"  # before a file, if the model has no token for it
PREFIX_SHARE = 0.75


def get_infill_tokens(tokenizer: AnyTokenizer | None, param: str) -> InfillTokens:
    """Return the model's tokens, or raise an error that names the client's field."""
    tokens: InfillTokens | None = getattr(tokenizer, "infill", None)
    if tokens is None:
        raise Unsupported(f"`{param}` is not supported by this model.", param=param)
    return tokens


async def encode_infill(
    prompt: Prompt, infill: Infill, tokenizer: AnyTokenizer | None, room: int | None
) -> tuple[list[int], tuple[str, ...]]:
    """Return the prompt that asks a model to fill in text, and warnings.

    `room` is how long the prompt may be.
    """
    tokens = get_infill_tokens(tokenizer, infill.param)
    assert tokenizer is not None  # noqa: S101
    content = prompt.content
    prefix = list(content) if isinstance(content, list) else await tokenizer.encode(content)
    suffix = await tokenizer.encode(infill.suffix)
    files = await _encode_files(infill.files, tokens, tokenizer) if infill.files else []
    has_bos = prompt.add_special_tokens and tokenizer.add_bos and tokenizer.bos_id is not None
    bos = [tokenizer.bos_id] if has_bos and tokenizer.bos_id is not None else []
    warnings: tuple[str, ...] = ()
    length = len(prefix) + len(suffix) + len(files)
    if infill.may_shorten and room is not None and length > room - len(bos) - 3:
        prefix, suffix, files = _shorten(prefix, suffix, files, room - len(bos) - 3)
        left = len(prefix) + len(suffix) + len(files)
        warnings = (f"Only {left} of {length} tokens of the texts fit into the context.",)
    before, after = [tokens.prefix, *prefix], [tokens.suffix, *suffix]
    if tokens.middle is None:
        return [*bos, *files, *after, *before], warnings
    return [*bos, *files, *before, *after, tokens.middle], warnings


async def _encode_files(
    files: Sequence[tuple[str, str]], tokens: InfillTokens, tokenizer: AnyTokenizer
) -> list[int]:
    ids: list[int] = []
    if tokens.repository is not None:
        ids += [tokens.repository, *await tokenizer.encode(f"{REPOSITORY_NAME}\n")]
    for name, text in files:
        ids += await _encode_file_start(name, tokens, tokenizer)
        ids += await tokenizer.encode(text)
    if tokens.file is not None:
        ids += await _encode_file_start(FILE_NAME, tokens, tokenizer)
    return ids


async def _encode_file_start(name: str, tokens: InfillTokens, tokenizer: AnyTokenizer) -> list[int]:
    if tokens.file is None:
        return await tokenizer.encode(SNIPPET)
    return [tokens.file, *await tokenizer.encode(f"{name}\n")]


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
