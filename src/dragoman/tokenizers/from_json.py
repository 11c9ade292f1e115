"""A vocabulary and a tokenizer out of a model directory with a `tokenizer.json`.

The file is the tokenizer library's own, so the backend is the model's exactly, with one change:
wherever it holds the text of a special token, that text is replaced by a random one which nobody
can guess. The token keeps its number, and plain text can not become it. Which token begins and ends
a text is read from the small files beside it.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from dragoman.errors import ModelBroken
from dragoman.tokenizers.vocabulary import (
    Vocabulary,
    decode_byte_level,
    decode_spaced,
    encode_raw,
    find_bos_id,
    find_stop_ids,
    is_markup,
    parse_byte_token,
)

log = logging.getLogger("dragoman.tokenizer")

MAX_BYTES = 128 << 20
ROLES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


def vocabulary_from_directory(path: Path) -> Vocabulary:
    """Everything the files of a model directory say of its tokens."""
    file = _read(path / "tokenizer.json")
    added = _added(file)
    words = dict(_words(file)) | {text: token for text, (token, _) in added.items()}
    specials = {
        text: token for text, (token, special) in added.items() if special or is_markup(text)
    }
    config = _optional(path / "tokenizer_config.json")
    variables = _variables(config, _optional(path / "special_tokens_map.json"))
    bos = words.get(variables.get("bos_token", ""), find_bos_id(specials))
    eos = words.get(variables.get("eos_token", ""))
    ends = find_stop_ids([*_said_endings(path), eos], specials)
    return Vocabulary(
        pieces=_pieces(file, words, added),
        specials=specials,
        control=frozenset(token for token, special in added.values() if special) | ends,
        bos_id=bos,
        eos_id=eos if eos is not None else min(ends, default=None),
        eos_ids=ends,
        add_bos=bos is not None and _adds_bos(config, file, bos),
        variables=variables,
        rstrip=frozenset(
            entry["id"]
            for entry in file.get("added_tokens", [])
            if entry.get("rstrip") and entry["content"] in specials
        ),
        source="tokenizer.json",
    )


def backend_from_directory(path: Path) -> Backend:
    """The model's own tokenizer, for plain text only."""
    file = _read(path / "tokenizer.json")
    hidden = {
        text: secrets.token_hex(16)
        for text, (_, special) in _added(file).items()
        if special or is_markup(text)
    }
    for entry in file.get("added_tokens", []):
        entry["content"] = hidden.get(entry["content"], entry["content"])
    file["post_processor"] = file["truncation"] = file["padding"] = None
    _hide(file.get("model", {}), hidden)
    try:
        return Backend.from_str(json.dumps(file))
    except Exception as error:  # the library raises bare exceptions
        log.warning("tokenizer.json is refused: %s", error)
        raise ModelBroken("The model's tokenizer.json cannot be used.") from None


def _hide(model: dict[str, Any], hidden: dict[str, str]) -> None:
    """Rename special tokens in the vocabulary too: a scored one would match them in plain text."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        for text in hidden.keys() & vocabulary.keys():
            vocabulary[hidden[text]] = vocabulary.pop(text)
    elif isinstance(vocabulary, list):
        for entry in vocabulary:
            entry[0] = hidden.get(entry[0], entry[0])
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelBroken(f"The model's {path.name} is too large.")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s cannot be read: %r", path.name, error)
        raise ModelBroken(f"The model's {path.name} cannot be read.") from None
    if not isinstance(content, dict):
        raise ModelBroken(f"The model's {path.name} is not a JSON object.")
    return content


def _optional(path: Path) -> dict[str, Any]:
    try:
        return _read(path) if path.exists() else {}
    except ModelBroken:
        return {}


def _added(file: dict[str, Any]) -> dict[str, tuple[int, bool]]:
    return {
        entry["content"]: (entry["id"], bool(entry.get("special")))
        for entry in file.get("added_tokens") or []
    }


def _words(file: dict[str, Any]) -> Iterator[tuple[str, int]]:
    vocabulary = file.get("model", {}).get("vocab")
    if isinstance(vocabulary, dict):
        yield from vocabulary.items()
    elif isinstance(vocabulary, list):
        yield from ((entry[0], token) for token, entry in enumerate(vocabulary))


def _pieces(
    file: dict[str, Any], words: dict[str, int], added: dict[str, tuple[int, bool]]
) -> list[bytes]:
    parts = json.dumps([file.get("pre_tokenizer"), file.get("decoder")])
    level = '"ByteLevel"' in parts
    prefix = file.get("model", {}).get("continuing_subword_prefix") or ""
    pieces = [b""] * (max(words.values(), default=-1) + 1)
    for text, token in words.items():
        if text in added:
            pieces[token] = encode_raw(text)
        elif level:
            pieces[token] = decode_byte_level(text)
        elif prefix:
            pieces[token] = encode_raw(
                text.removeprefix(prefix) if text.startswith(prefix) else f" {text}"
            )
        else:
            pieces[token] = parse_byte_token(text) or decode_spaced(text)
    return pieces


def _variables(*files: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        for role in ROLES:
            value = file.get(f"{role}_token")
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found.setdefault(f"{role}_token", text)
    return found


def _said_endings(path: Path) -> list[int]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        said = _optional(path / name).get("eos_token_id")
        several = said if isinstance(said, list) else [said]
        ids += [token for token in several if isinstance(token, int) and token >= 0]
    return ids


def _adds_bos(config: dict[str, Any], file: dict[str, Any], bos: int) -> bool:
    said = config.get("add_bos_token")
    if isinstance(said, bool):
        return said
    processor = file.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    return any(
        bos in entry.get("ids", [])
        for step in steps
        if step.get("type") == "TemplateProcessing"
        for entry in step.get("special_tokens", {}).values()
    )
