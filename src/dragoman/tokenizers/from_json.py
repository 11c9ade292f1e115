"""Builds a vocabulary and a tokenizer from a `tokenizer.json` and the files beside it.

The file is in the tokenizer library's own format, so the backend is exactly the model's, with one
change: the text of every special token is replaced with an unguessable random text. The token keeps
its id, and plain text cannot become it. The tokens that start and end a text are read from the
small files beside it.
"""

from __future__ import annotations

import copy
import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from tokenizers import Tokenizer as Backend

from dragoman.errors import ModelBroken
from dragoman.tokenizers.text_format import format_from_json
from dragoman.tokenizers.vocabulary import (
    Vocabulary,
    decode_byte_level,
    decode_spaced,
    encode_raw,
    find_bos_id,
    find_infill_tokens,
    find_stop_ids,
    is_markup,
    parse_byte_token,
)
from dragoman.types import Json

log = logging.getLogger("dragoman.tokenizers")

JsonObject: TypeAlias = dict[str, Json]

MAX_BYTES = 128 << 20
ROLES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


class TokenizerFiles(Struct, frozen=True):
    """What the files of a model contain about its tokens."""

    tokenizer: JsonObject  # tokenizer.json
    config: JsonObject = {}  # tokenizer_config.json
    special_tokens: JsonObject = {}  # special_tokens_map.json
    stop_ids: tuple[int, ...] = ()  # of generation_config.json and config.json


def read_directory(path: Path) -> TokenizerFiles:
    """Read the files of a model directory."""
    return TokenizerFiles(
        _read_json(path / "tokenizer.json"),
        _read_optional_json(path / "tokenizer_config.json"),
        _read_optional_json(path / "special_tokens_map.json"),
        tuple(_read_stop_ids(path)),
    )


def make_vocabulary(files: TokenizerFiles) -> Vocabulary:
    """Collect everything that the files contain about tokens."""
    file, config = files.tokenizer, files.config
    added = _read_added_tokens(file)
    words = dict(_iterate_vocabulary(file)) | {text: token for text, (token, _) in added.items()}
    specials = {
        text: token for text, (token, special) in added.items() if special or is_markup(text)
    }
    variables = _read_variables(config, files.special_tokens)
    bos = words.get(variables.get("bos_token", ""), find_bos_id(specials))
    eos = words.get(variables.get("eos_token", ""))
    stops = find_stop_ids([*files.stop_ids, eos], specials)
    adds_bos = bos is not None and _adds_bos(config, file, bos)
    return Vocabulary(
        pieces=_make_pieces(file, words, added),
        specials=specials,
        control=frozenset(token for token, special in added.values() if special) | stops,
        bos_id=bos,
        eos_id=eos if eos is not None else min(stops, default=None),
        eos_ids=stops,
        add_bos=adds_bos,
        variables=variables,
        rstrip=frozenset(
            entry["id"]
            for entry in file.get("added_tokens", [])
            if entry.get("rstrip") and entry["content"] in specials
        ),
        source="tokenizer.json",
        infill=find_infill_tokens({}, words),
        text_format=format_from_json(file, (bos,) if bos is not None and adds_bos else ()),
    )


def make_backend(files: TokenizerFiles) -> Backend:
    """Build the model's own tokenizer, for plain text only."""
    file = copy.deepcopy(files.tokenizer)
    hidden = {
        text: secrets.token_hex(16)
        for text, (_, special) in _read_added_tokens(file).items()
        if special or is_markup(text)
    }
    for entry in file.get("added_tokens", []):
        entry["content"] = hidden.get(entry["content"], entry["content"])
    file["post_processor"] = file["truncation"] = file["padding"] = None
    _hide_specials(file.get("model", {}), hidden)
    try:
        return Backend.from_str(json.dumps(file))
    except Exception as error:  # the library raises bare exceptions
        log.warning("cannot load tokenizer.json: %s", error)
        raise ModelBroken("The model's tokenizer.json cannot be used.") from None


def _hide_specials(model: JsonObject, hidden: dict[str, str]) -> None:
    """Rename special tokens in the vocabulary, too: plain text could match them by their scores."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        for text in hidden.keys() & vocabulary.keys():
            vocabulary[hidden[text]] = vocabulary.pop(text)
    elif isinstance(vocabulary, list):
        for entry in vocabulary:
            entry[0] = hidden.get(entry[0], entry[0])
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]


def _read_json(path: Path) -> JsonObject:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelBroken(f"The model's {path.name} is too large.")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        log.warning("cannot read %s: %r", path.name, error)
        raise ModelBroken(f"The model's {path.name} cannot be read.") from None
    if not isinstance(content, dict):
        raise ModelBroken(f"The model's {path.name} is not a JSON object.")
    return content


def _read_optional_json(path: Path) -> JsonObject:
    try:
        return _read_json(path) if path.exists() else {}
    except ModelBroken:
        return {}


def _read_added_tokens(file: JsonObject) -> dict[str, tuple[int, bool]]:
    return {
        entry["content"]: (entry["id"], bool(entry.get("special")))
        for entry in file.get("added_tokens") or []
    }


def _iterate_vocabulary(file: JsonObject) -> Iterator[tuple[str, int]]:
    vocabulary = file.get("model", {}).get("vocab")
    if isinstance(vocabulary, dict):
        yield from vocabulary.items()
    elif isinstance(vocabulary, list):
        yield from ((entry[0], token) for token, entry in enumerate(vocabulary))


def _make_pieces(
    file: JsonObject, words: dict[str, int], added: dict[str, tuple[int, bool]]
) -> list[bytes]:
    parts = json.dumps([file.get("pre_tokenizer"), file.get("decoder")])
    is_byte_level = '"ByteLevel"' in parts
    prefix = file.get("model", {}).get("continuing_subword_prefix") or ""
    pieces = [b""] * (max(words.values(), default=-1) + 1)
    for text, token in words.items():
        if text in added:
            pieces[token] = encode_raw(text)
        elif is_byte_level:
            pieces[token] = decode_byte_level(text)
        elif prefix:
            pieces[token] = encode_raw(
                text.removeprefix(prefix) if text.startswith(prefix) else f" {text}"
            )
        else:
            pieces[token] = parse_byte_token(text) or decode_spaced(text)
    return pieces


def _read_variables(*files: JsonObject) -> dict[str, str]:
    variables: dict[str, str] = {}
    for file in files:
        for role in ROLES:
            value = file.get(f"{role}_token")
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                variables.setdefault(f"{role}_token", text)
    return variables


def _read_stop_ids(path: Path) -> list[int]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_optional_json(path / name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        ids += [token for token in values if isinstance(token, int) and token >= 0]
    return ids


def _adds_bos(config: JsonObject, file: JsonObject, bos: int) -> bool:
    add_bos = config.get("add_bos_token")
    if isinstance(add_bos, bool):
        return add_bos
    processor = file.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    return any(
        bos in entry.get("ids", [])
        for step in steps
        if step.get("type") == "TemplateProcessing"
        for entry in step.get("special_tokens", {}).values()
    )
