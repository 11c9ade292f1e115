"""Takes the tokenizer that a program has: a path, a Hugging Face object, or one of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer as Backend

from dragoman.errors import ModelBroken
from dragoman.tokenizers.from_json import ROLES, TokenizerFiles
from dragoman.tokenizers.tokenizer import (
    AnyTokenizer,
    tokenizer_from_directory,
    tokenizer_from_files,
)
from dragoman.types import Json

FILE = "tokenizer.json"
OWN_ATTRIBUTES = ("pieces", "specials", "control", "variables", "encode")


def adapt_tokenizer(source: object) -> AnyTokenizer:
    """Return a tokenizer of ours, or raise a `TypeError` that says what to pass.

    `source` is a directory with a `tokenizer.json`, such a file, a tokenizer of `tokenizers` or a
    fast one of `transformers`, or one of ours already.
    """
    if all(hasattr(source, name) for name in OWN_ATTRIBUTES):
        return cast(AnyTokenizer, source)
    tokenizer = None
    if isinstance(source, str | Path):
        tokenizer = _read_path(Path(source))
    backend = getattr(source, "backend_tokenizer", source)
    if isinstance(backend, Backend):
        tokenizer = tokenizer_from_files(_read_object(source, backend))
    if tokenizer is None:
        raise TypeError(
            f"the tokenizer is a {type(source).__name__}; pass a directory with a `{FILE}`, "
            "a `tokenizers.Tokenizer`, or a fast tokenizer of `transformers`"
        )
    return tokenizer


def _read_path(path: Path) -> AnyTokenizer | None:
    directory = path.parent if path.name == FILE else path
    if not (directory / FILE).is_file():
        raise TypeError(f"there is no `{FILE}` at {path}")
    try:
        return tokenizer_from_directory(directory)
    except ModelBroken as error:
        raise TypeError(f"{directory / FILE}: {error.message}") from None


def _read_object(source: object, backend: Backend) -> TokenizerFiles:
    config: dict[str, Json] = dict(getattr(source, "special_tokens_map", {}))
    config |= {
        name: str(value)
        for name in (f"{role}_token" for role in ROLES)
        if isinstance(value := getattr(source, name, None), str)
    }
    add_bos = getattr(source, "add_bos_token", None)
    if isinstance(add_bos, bool):
        config["add_bos_token"] = add_bos
    return TokenizerFiles(json.loads(backend.to_str()), config)
