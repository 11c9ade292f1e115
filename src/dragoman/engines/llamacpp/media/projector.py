"""The projector of a model (`mmproj`): finds the file, and refuses a broken one.

A projector encodes pictures or sound as embeddings of its text model. It is a GGUF file of its own,
usually beside the model. The native library follows null pointers where tensors are missing and
ends the process where shapes contradict each other, so the file is checked here first, by what its
type of projector needs (`projector_rules`). This module needs no engine.

A file beside the model is used if its name contains `mmproj` and it is clear which model it belongs
to: it is named like the model, or all models in the directory are one model in several
quantizations. Of several such files, the one with the most precise weights is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from dragoman.engines.llamacpp import gguf
from dragoman.engines.llamacpp.media.projector_rules import check_rules
from dragoman.errors import ModelBroken

NONE = "none"  # the value of the setting that uses no projector
NAME_PART = "mmproj"  # of its file name
PRECISIONS = ("f16", "bf16", "f32", "q8_0")  # of projectors, the preferred one first
MODALITIES = {"vision": "image", "audio": "audio"}
_SEPARATORS = re.compile(r"[.\-_ ]+")


class Projector(Struct, frozen=True):
    """A projector file that was checked."""

    path: Path
    size: int  # bytes
    kinds: tuple[str, ...]  # types of projector, such as `mlp`
    modalities: tuple[str, ...]  # `image`, `audio`


def find_projector(model: Path, setting: str | None = None) -> Path | None:
    """Return the projector file of a model: the one that is set, or else the one beside it."""
    if setting == NONE:
        return None
    if setting is not None:
        return Path(setting)
    try:
        names = [path.name for path in model.parent.iterdir()]
    except OSError:
        return None
    chosen = choose_projector(model.name, names)
    return None if chosen is None else model.parent / chosen


def choose_projector(model: str, files: Iterable[str]) -> str | None:
    """Return the projector of a model among the names of the files in its directory."""
    names = [name for name in files if name.lower().endswith(".gguf")]
    candidates = [name for name in names if NAME_PART in name.lower()]
    if not candidates or NAME_PART in model.lower():
        return None
    own_name = _get_base_name(model)
    named_alike = [name for name in candidates if _get_base_name(name) == own_name]
    models = {_get_base_name(name) for name in names if name not in candidates}
    usable = named_alike or (candidates if models == {own_name} else [])
    return min(usable, key=_rank_precision, default=None)


def _get_base_name(file: str) -> str:
    """Return the name of a file without its quantization, its part and the word `mmproj`."""
    stem = file[: -len(".gguf")]
    split = gguf.parse_split_name(stem)
    stem = (split[0] if split else stem).lower()
    for _ in range(2):  # the word may be on either side of the quantization
        stem = gguf.strip_quantization(stem.strip(".-_ "))
        stem = stem.removeprefix(NAME_PART).removesuffix(NAME_PART)
    return _SEPARATORS.sub("-", stem.strip(".-_ "))


def _rank_precision(file: str) -> tuple[int, str]:
    name = file.lower()
    ranks = [
        index
        for index, word in enumerate(PRECISIONS)
        if re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9])", name)
    ]
    return (ranks[0] if ranks else len(PRECISIONS)), name


def read_projector(path: Path, width: int | None) -> Projector:
    """Check a projector file; `width` is the length of its model's embeddings.

    Raises a `ModelBroken` that says what is wrong with it.
    """
    try:
        header = gguf.read_header(path)
        if header.kind != "mmproj":
            raise ModelBroken("The file is not a projector.")
        kinds = tuple(_check_parts(header, width))
    except ModelBroken as error:
        raise ModelBroken(
            f"Its projector (`mmproj`) cannot be used. {error.message} Replace the file, or set "
            "`mmproj: none` to serve text only."
        ) from None
    modalities = tuple(name for part, name in MODALITIES.items() if _has_encoder(header, part))
    return Projector(path, header.size, kinds, modalities)


def _has_encoder(header: gguf.GgufHeader, part: str) -> bool:
    return header.metadata.get(f"clip.has_{part}_encoder") is True


def _check_parts(header: gguf.GgufHeader, width: int | None) -> Iterator[str]:
    """Check the encoders of a file, and yield the type of each projector."""
    parts = [part for part in MODALITIES if _has_encoder(header, part)]
    if not parts:
        raise ModelBroken("It has neither a vision nor an audio encoder.")
    for part in parts:
        kind = header.get_text(f"clip.{part}.projector_type") or header.get_text(
            "clip.projector_type"
        )
        if kind is None:
            raise ModelBroken("Its `clip.projector_type` is missing.")
        check_rules(header, part, kind, width)
        yield kind
