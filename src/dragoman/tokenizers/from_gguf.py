"""A vocabulary and a tokenizer out of the metadata of a GGUF file.

Two kinds of tokenizer can be rebuilt here: byte-level pair merging (with the cutting that the file
names, see `tokenizer_patterns`) and the older kind whose merges follow from token scores, with
bytes as a last resort. Other kinds give no backend, and the engine's own tokenizer does the work;
their pieces are still known.

Tokens that plain text must never produce are left out of the backend's vocabulary altogether, so
there is no setting that could let them in.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dragoman.tokenizers.pretokenizers import PRETOKENIZERS, Pretokenizer
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

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# kinds whose tokens write a space as a low line; their text is never byte-encoded
SPACED_KINDS = frozenset({"llama", "bert", "t5", "gemma4"})
SPACED_CUTS = frozenset({"gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe"})
ALWAYS_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})  # whatever the file says
RAW_KINDS = frozenset({"plamo2", "plamo3", "whitespace"})
_RWKV_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_RWKV_LETTERS = {"t": "\t", "n": "\n", "r": "\r"}


def vocabulary_from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Everything a GGUF file says of its tokens."""
    tokens = _tokens(metadata)
    types = _types(metadata, len(tokens))
    specials = _specials(tokens, types)
    said = {
        name: _token_id(metadata, f"{name}_token_id", len(tokens))
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask", "cls")
    }
    bos = said["bos"] if said["bos"] is not None else find_bos_id(specials)
    ends = find_stop_ids((said["eos"], said["eot"], said["eom"]), specials)
    eos = said["eos"] if said["eos"] is not None else min(ends, default=None)
    shown_as = {"bos": bos, "eos": eos, "unk": said["unknown"], "pad": said["padding"]}
    shown_as |= {"sep": said["seperator"], "mask": said["mask"], "cls": said["cls"]}
    hidden = {token for token, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)}
    return Vocabulary(
        pieces=pieces_from_gguf(metadata),
        specials=specials,
        control=frozenset(hidden | ends),
        bos_id=bos,
        eos_id=eos,
        eos_ids=ends,
        add_bos=bos is not None and _add_bos(metadata),
        variables={
            f"{name}_token": encode_raw(tokens[token]).decode("utf-8", "replace")
            for name, token in shown_as.items()
            if token is not None
        },
        rstrip=_rstrip(metadata, specials),
        source="gguf",
    )


def pieces_from_gguf(metadata: Mapping[str, Any]) -> list[bytes]:
    """Token id -> the bytes it stands for; special tokens stand for their own text."""
    tokens = _tokens(metadata)
    types = _types(metadata, len(tokens))
    ordinary = _ordinary_piece(metadata)
    pieces = []
    for text, kind in zip(tokens, types, strict=True):
        if kind == NORMAL:
            pieces.append(ordinary(text))
        elif kind == BYTE:
            pieces.append(parse_byte_token(text) or b"")
        else:
            pieces.append(b"" if kind == UNUSED else encode_raw(text))
    return pieces


def backend_from_gguf(metadata: Mapping[str, Any]) -> Backend | None:
    """A tokenizer for plain text, or None where this kind cannot be rebuilt."""
    kind, cut = _kind(metadata), _cut(metadata)
    try:
        if kind == "llama":
            return _scored(metadata)
        if kind == "gemma4" or (kind == "gpt2" and cut == "gemma4"):
            return _merged(metadata, None)
        if kind == "gpt2" and cut in PRETOKENIZERS:
            return _merged(metadata, PRETOKENIZERS[cut])
    except Exception as error:  # the library raises bare exceptions for a vocabulary it refuses
        log.warning("the tokenizer cannot be rebuilt from the model file: %s", error)
    return None


def _kind(metadata: Mapping[str, Any]) -> str:
    kind = metadata.get(PREFIX + "model")
    return kind if isinstance(kind, str) else "none"


def _cut(metadata: Mapping[str, Any]) -> str:
    cut = metadata.get(PREFIX + "pre")
    return cut if isinstance(cut, str) and cut else "default"


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = metadata.get(PREFIX + "tokens")
    return tokens if isinstance(tokens, list) else []


def _types(metadata: Mapping[str, Any], count: int) -> Sequence[int]:
    types = metadata.get(PREFIX + "token_type")
    if types is None or isinstance(types, str | int | float) or len(types) < count:
        return [NORMAL] * count
    return types[:count]  # type: ignore[no-any-return]


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    value = metadata.get(PREFIX + name)
    return value if type(value) is int and 0 <= value < count else None


def _specials(tokens: list[str], types: Sequence[int]) -> dict[str, int]:
    return {
        text: token
        for token, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if text
        and (
            kind in (CONTROL, UNKNOWN)
            or (kind == DEFINED and is_markup(text))
            # a mark of a chat format that the file calls ordinary by mistake
            or (kind == NORMAL and text.startswith("<|") and text.endswith("|>"))
        )
    }


def _add_bos(metadata: Mapping[str, Any]) -> bool:
    if _kind(metadata) == "gemma4" or _cut(metadata) in ALWAYS_BOS:
        return True
    said = metadata.get(PREFIX + "add_bos_token")
    if isinstance(said, bool):
        return said
    kind = _kind(metadata)
    if kind == "gpt2":
        return _cut(metadata) in PRETOKENIZERS and PRETOKENIZERS[_cut(metadata)].add_bos
    return kind in ("llama", "bert")


def _rstrip(metadata: Mapping[str, Any], specials: Mapping[str, int]) -> frozenset[int]:
    """One family drops the white space after its marks, and only its name tells."""
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    kept = {"<unk>", "<s>", "<|endoftext|>"}
    return frozenset(token for text, token in specials.items() if text not in kept)


def _ordinary_piece(metadata: Mapping[str, Any]) -> Any:
    kind = _kind(metadata)
    if kind in SPACED_KINDS or _cut(metadata) in SPACED_CUTS:
        return decode_spaced
    if kind in RAW_KINDS:
        return encode_raw
    return _rwkv if kind == "rwkv" else decode_byte_level


def _rwkv(text: str) -> bytes:
    piece, position = b"", 0
    for escape in _RWKV_ESCAPE.finditer(text):
        piece += encode_raw(text[position : escape.start()])
        code, letter = escape.groups()
        piece += bytes([int(code, 16)]) if code else encode_raw(_RWKV_LETTERS.get(letter, letter))
        position = escape.end()
    return piece + encode_raw(text[position:])


def _plain(metadata: Mapping[str, Any]) -> tuple[dict[str, int], list[str]]:
    """The tokens that plain text may become, and those of them that match before all else."""
    tokens = _tokens(metadata)
    types = _types(metadata, len(tokens))
    special = set(_specials(tokens, types).values())
    defined = [
        text
        for token, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == DEFINED and token not in special and text
    ]
    vocabulary = {text: token for token, text in enumerate(tokens) if token not in special and text}
    return vocabulary, defined


def _merged(metadata: Mapping[str, Any], cut: Pretokenizer | None) -> Backend:
    """Byte-level merging; without a cut, merging over whole lines with spaces as low lines."""
    vocabulary, defined = _plain(metadata)
    merges = []
    for merge in metadata[PREFIX + "merges"]:
        space = merge.find(" ", 1)
        merges.append((merge[:space], merge[space + 1 :]))
    if cut is None:
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
        backend.normalizer = normalizers.Replace(" ", "\u2581")
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
    else:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut.whole_words)
        backend = Backend(model)
        steps: list[Any] = [pre_tokenizers.Split(Regex(text), "isolated") for text in cut.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    _define(backend, defined)
    return backend


def _scored(metadata: Mapping[str, Any]) -> Backend:
    """Merging by token scores, highest first, with bytes for what the vocabulary does not have."""
    vocabulary, defined = _plain(metadata)
    scores = metadata.get(PREFIX + "scores")
    if scores is None or len(scores) < len(_tokens(metadata)):
        scores = [0.0] * len(_tokens(metadata))
    found: list[tuple[float, int, str, str]] = []
    for text, token in vocabulary.items():
        for middle in range(1, len(text)):
            left, right = text[:middle], text[middle:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[token], token, left, right))
    found.sort(key=lambda merge: merge[:2])
    merges = [(left, right) for _, _, left, right in found]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    space = normalizers.Replace(" ", "\u2581")
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend("\u2581"), space])
        if metadata.get(PREFIX + "add_space_prefix", True) is not False
        else space
    )
    _define(backend, defined)
    return backend


def _define(backend: Backend, words: list[str]) -> None:
    backend.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
