"""An index of the names of models, and the spellings under which a name is looked up.

A name of Ollama's registry has a tag: `qwen3:4b` is also the file `qwen3-4b.gguf`, and `latest` is
the tag of a name without one. `hf.co/owner/repo:Q4_K_M` and `hf:owner/repo` are the files that were
downloaded from that repository. The registry and its namespace `library` may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelSource

NameIndex = dict[str, list["ModelSource"]]
LATEST = "latest"
DEFAULT_PREFIXES = ("registry.ollama.ai/", "library/")
_HUB_NAME = re.compile(
    r"(?:hf:|(?:https://)?(?:hf\.co|huggingface\.co)/)"
    r"(?P<owner>[\w.\-]+)/(?P<repo>[\w.\-]+?)(?P<file>/[\w.\-/]+)?(?::(?P<tag>[\w.\-]+))?"
)


def normalize_name(name: str) -> str:
    return name.strip().casefold()


def slugify(text: str) -> str:
    return re.sub(r"[\s_]+", "-", normalize_name(text))


def index_explicit(sources: list[ModelSource]) -> NameIndex:
    """Index the names of explicit models; the first model of a name wins."""
    names: NameIndex = {}
    for source in sources:
        for name in (source.id, *source.aliases):
            names.setdefault(normalize_name(name), [source])
    return names


def add_names(names: NameIndex, source: ModelSource, *spellings: str) -> None:
    for spelling in dict.fromkeys(map(normalize_name, spellings)):
        if spelling:
            names.setdefault(spelling, []).append(source)


def merge_duplicates(sources: list[ModelSource]) -> list[ModelSource]:
    """Merge sources of the same model with the same options."""
    merged: dict[str, ModelSource] = {}
    for source in sources:
        first = merged.get(source.key)
        if first is None:
            merged[source.key] = source
            continue
        names = dict.fromkeys((*first.aliases, source.id, *source.aliases))
        names.pop(first.id, None)
        merged[source.key] = msgspec.structs.replace(first, aliases=tuple(names))
    return list(merged.values())


def strip_registry(name: str) -> str:
    """Return a name without the registry and namespace of Ollama, which names leave out."""
    for prefix in DEFAULT_PREFIXES:
        if name.lower().startswith(prefix):
            name = name[len(prefix) :]
    return name


def list_spellings(name: str, *, any_tag: bool = True) -> Iterator[str]:
    """List a name and, for `name:tag`, the spellings that files use.

    With `any_tag`, a model without a tag has every tag, else only `latest`.
    """
    yield name
    short = strip_registry(name)
    if short != name:
        yield from list_spellings(short, any_tag=any_tag)
        return
    hub = _HUB_NAME.fullmatch(name)
    if hub is not None:
        yield from _list_hub_spellings(hub)
        return
    base, colon, tag = name.partition(":")
    if colon and base:
        yield f"{base}.{tag}"
        yield f"{base}-{tag}"
        if any_tag or tag == LATEST:
            yield base


def _list_hub_spellings(hub: re.Match[str]) -> Iterator[str]:
    """List the paths below the models directory at which a download may be."""
    directory, tag = f"{hub['owner']}--{hub['repo']}", hub["tag"]
    if hub["file"]:
        yield f"{directory}{hub['file'].removesuffix('.gguf')}"
    elif tag and tag != LATEST:
        stem = hub["repo"].removesuffix("-gguf")
        yield f"{directory}/{stem}-{tag}"
        yield f"{directory}/{stem}.{tag}"
    else:
        yield directory
