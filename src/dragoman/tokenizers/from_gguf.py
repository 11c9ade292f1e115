"""Builds a vocabulary and a tokenizer from the metadata of a GGUF file.

Two kinds of tokenizer can be rebuilt: byte-level BPE (with the pre-tokenizer that the file names,
see `pretokenizers`), and the older kind whose merges follow from token scores, with bytes as a
fallback. Other kinds have no backend, and the engine's own tokenizer is used; the bytes of their
tokens are known nevertheless.

Tokens that plain text must never produce are not in the backend's vocabulary at all, so no setting
can let them in.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dragoman.tokenizers.pretokenizers import PRETOKENIZERS, Pretokenizer
from dragoman.tokenizers.text_format import format_from_gguf
from dragoman.tokenizers.vocabulary import (
    BYTE_CHARACTERS,
    INFILL_TEXTS,
    InfillTokens,
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

log = logging.getLogger("dragoman.tokenizers")

Metadata: TypeAlias = Mapping[str, Any]  # of a GGUF file, whose values have many types

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# models whose tokens write a space as U+2581; their text is never byte-encoded
SPACED_MODELS = frozenset({"llama", "bert", "t5", "gemma4"})
SPACED_PRETOKENIZERS = frozenset({"gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe"})
ALWAYS_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})  # whatever the file contains
RAW_MODELS = frozenset({"plamo2", "plamo3", "whitespace"})
# roles of infill tokens -> their names in the metadata, new and old
INFILL_NAMES = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "pad": ("fim_pad",),
    "repository": ("fim_rep",),
    "file": ("fim_sep",),
}
_RWKV_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_RWKV_ESCAPES = {"t": "\t", "n": "\n", "r": "\r"}


def vocabulary_from_gguf(metadata: Metadata) -> Vocabulary:
    """Read everything that a GGUF file contains about its tokens."""
    tokens = _read_tokens(metadata)
    types = _read_types(metadata, len(tokens))
    specials = _find_specials(tokens, types)
    listed = {
        name: _read_token_id(metadata, f"{name}_token_id", len(tokens))
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask", "cls")
    }
    bos = listed["bos"] if listed["bos"] is not None else find_bos_id(specials)
    stops = find_stop_ids((listed["eos"], listed["eot"], listed["eom"]), specials)
    eos = listed["eos"] if listed["eos"] is not None else min(stops, default=None)
    named = {"bos": bos, "eos": eos, "unk": listed["unknown"], "pad": listed["padding"]}
    named |= {"sep": listed["seperator"], "mask": listed["mask"], "cls": listed["cls"]}
    hidden = {token for token, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)}
    return Vocabulary(
        pieces=pieces_from_gguf(metadata),
        specials=specials,
        control=frozenset(hidden | stops),
        bos_id=bos,
        eos_id=eos,
        eos_ids=stops,
        add_bos=bos is not None and _adds_bos(metadata),
        variables={
            f"{name}_token": encode_raw(tokens[token]).decode("utf-8", "replace")
            for name, token in named.items()
            if token is not None
        },
        rstrip=_find_stripping(metadata, specials),
        source="gguf",
        infill=_find_infill_tokens(metadata, tokens),
        text_format=format_from_gguf(metadata, bos is not None and _adds_bos(metadata)),
    )


def _find_infill_tokens(metadata: Metadata, tokens: list[str]) -> InfillTokens | None:
    listed: dict[str, int | None] = {}
    for role, names in INFILL_NAMES.items():
        ids = (_read_token_id(metadata, f"{name}_token_id", len(tokens)) for name in names)
        listed[role] = next((token for token in ids if token is not None), None)
    texts = {text for texts in INFILL_TEXTS.values() for text in texts}
    return find_infill_tokens(
        listed, {text: token for token, text in enumerate(tokens) if text in texts}
    )


def pieces_from_gguf(metadata: Metadata) -> list[bytes]:
    """Return the bytes of each token by id; those of a special token are its text."""
    tokens = _read_tokens(metadata)
    types = _read_types(metadata, len(tokens))
    decode = _choose_decoder(metadata)
    pieces = []
    for text, kind in zip(tokens, types, strict=True):
        if kind == NORMAL:
            pieces.append(decode(text))
        elif kind == BYTE:
            pieces.append(parse_byte_token(text) or b"")
        else:
            pieces.append(b"" if kind == UNUSED else encode_raw(text))
    return pieces


def backend_from_gguf(metadata: Metadata) -> Backend | None:
    """Build a tokenizer for plain text, or return None if this kind cannot be rebuilt."""
    model, pretokenizer = _read_model(metadata), _read_pretokenizer(metadata)
    try:
        if model == "llama":
            return _make_scored_backend(metadata)
        if model == "gemma4" or (model == "gpt2" and pretokenizer == "gemma4"):
            return _make_merging_backend(metadata, None)
        if model == "gpt2" and pretokenizer in PRETOKENIZERS:
            return _make_merging_backend(metadata, PRETOKENIZERS[pretokenizer])
    except Exception as error:  # the library raises bare exceptions for an invalid vocabulary
        log.warning("the tokenizer cannot be rebuilt from the model file: %s", error)
    return None


def _read_model(metadata: Metadata) -> str:
    model = metadata.get(PREFIX + "model")
    return model if isinstance(model, str) else "none"


def _read_pretokenizer(metadata: Metadata) -> str:
    name = metadata.get(PREFIX + "pre")
    return name if isinstance(name, str) and name else "default"


def _read_tokens(metadata: Metadata) -> list[str]:
    tokens = metadata.get(PREFIX + "tokens")
    return tokens if isinstance(tokens, list) else []


def _read_types(metadata: Metadata, count: int) -> Sequence[int]:
    types = metadata.get(PREFIX + "token_type")
    if types is None or isinstance(types, str | int | float) or len(types) < count:
        return [NORMAL] * count
    return types[:count]  # type: ignore[no-any-return]


def _read_token_id(metadata: Metadata, name: str, count: int) -> int | None:
    value = metadata.get(PREFIX + name)
    return value if type(value) is int and 0 <= value < count else None


def _find_specials(tokens: list[str], types: Sequence[int]) -> dict[str, int]:
    return {
        text: token
        for token, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if text
        and (
            kind in (CONTROL, UNKNOWN)
            or (kind == DEFINED and is_markup(text))
            # a special token of a chat format that the file lists as ordinary by mistake
            or (kind == NORMAL and text.startswith("<|") and text.endswith("|>"))
        )
    }


def _adds_bos(metadata: Metadata) -> bool:
    model, pretokenizer = _read_model(metadata), _read_pretokenizer(metadata)
    if model == "gemma4" or pretokenizer in ALWAYS_BOS:
        return True
    add_bos = metadata.get(PREFIX + "add_bos_token")
    if isinstance(add_bos, bool):
        return add_bos
    if model == "gpt2":
        return pretokenizer in PRETOKENIZERS and PRETOKENIZERS[pretokenizer].add_bos
    return model in ("llama", "bert")


def _find_stripping(metadata: Metadata, specials: Mapping[str, int]) -> frozenset[int]:
    """Find the special tokens that strip white space; only the Phi-3 family has some."""
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    exceptions = {"<unk>", "<s>", "<|endoftext|>"}
    return frozenset(token for text, token in specials.items() if text not in exceptions)


def _choose_decoder(metadata: Metadata) -> Callable[[str], bytes]:
    """Return the function that decodes ordinary tokens."""
    model = _read_model(metadata)
    if model in SPACED_MODELS or _read_pretokenizer(metadata) in SPACED_PRETOKENIZERS:
        return decode_spaced
    if model in RAW_MODELS:
        return encode_raw
    return _decode_rwkv if model == "rwkv" else decode_byte_level


def _decode_rwkv(text: str) -> bytes:
    piece, position = b"", 0
    for escape in _RWKV_ESCAPE.finditer(text):
        piece += encode_raw(text[position : escape.start()])
        code, char = escape.groups()
        piece += bytes([int(code, 16)]) if code else encode_raw(_RWKV_ESCAPES.get(char, char))
        position = escape.end()
    return piece + encode_raw(text[position:])


def _split_vocabulary(metadata: Metadata) -> tuple[dict[str, int], list[str]]:
    """Return the tokens of plain text, and the words among them that match before all others."""
    tokens = _read_tokens(metadata)
    types = _read_types(metadata, len(tokens))
    special = set(_find_specials(tokens, types).values())
    defined = [
        text
        for token, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == DEFINED and token not in special and text
    ]
    vocabulary = {text: token for token, text in enumerate(tokens) if token not in special and text}
    return vocabulary, defined


def _make_merging_backend(metadata: Metadata, pretokenizer: Pretokenizer | None) -> Backend:
    """Build byte-level BPE; without a pre-tokenizer, BPE over lines with U+2581 for spaces."""
    vocabulary, defined = _split_vocabulary(metadata)
    merges = []
    for merge in metadata[PREFIX + "merges"]:
        space = merge.find(" ", 1)
        merges.append((merge[:space], merge[space + 1 :]))
    if pretokenizer is None:
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
        backend.normalizer = normalizers.Replace(" ", "\u2581")
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
    else:
        whole_words = pretokenizer.whole_words
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pretokenizer.patterns
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        missing = "".join(char for char in BYTE_CHARACTERS if char not in vocabulary)
        if missing:  # the backend drops these bytes; no merge may join what was around them
            steps.append(pre_tokenizers.Split(Regex(f"[{re.escape(missing)}]"), "removed"))
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    _add_words(backend, defined)
    return backend


def _make_scored_backend(metadata: Metadata) -> Backend:
    """Build BPE that merges by token scores, highest first, with bytes as a fallback."""
    vocabulary, defined = _split_vocabulary(metadata)
    scores = metadata.get(PREFIX + "scores")
    if scores is None or len(scores) < len(_read_tokens(metadata)):
        scores = [0.0] * len(_read_tokens(metadata))
    scored: list[tuple[float, int, str, str]] = []
    for text, token in vocabulary.items():
        for middle in range(1, len(text)):
            left, right = text[:middle], text[middle:]
            if left in vocabulary and right in vocabulary:
                scored.append((-scores[token], token, left, right))
    scored.sort(key=lambda merge: merge[:2])
    merges = [(left, right) for _, _, left, right in scored]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    space = normalizers.Replace(" ", "\u2581")
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend("\u2581"), space])
        if metadata.get(PREFIX + "add_space_prefix", True) is not False
        else space
    )
    _add_words(backend, defined)
    return backend


def _add_words(backend: Backend, words: list[str]) -> None:
    backend.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
