"""Knows which models are installed, and which model each name means. Nothing is loaded here.

The catalog is an index in memory. `refresh` builds it from these sources, in this order of
precedence: models that the operator added on the command line, `models:` in the configuration
file, the mapping file `models.yaml`, and the files under the models directory. `find` only looks up
a name in that index; a client's name is never turned into a path, so it cannot reach outside. Only
`open_path`, which the command line calls, takes a path.

A scanned file has several names, strongest first: its stem or its path below the models directory,
the name of a directory that holds only this model, the stem without the quantization, the name that
the file gives itself, and its architecture. A weak name that matches several files matches none.

Headers are read once for each (path, change time, size). `refresh` blocks, so it runs in a thread;
it builds a new index and replaces the old one in one step, so a reader sees either the old or the
new one.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman.engines.llamacpp import gguf
from dragoman.engines.llamacpp.loading.memory_plan import MemoryPlan
from dragoman.engines.llamacpp.loading.model_shape import (
    ModelShape,
    find_trained_context,
    read_shape,
)
from dragoman.errors import ModelBroken, Unavailable
from dragoman.models.downloads.hub import find_downloaded
from dragoman.models.loaders.checkpoint_config import read_checkpoint_config
from dragoman.models.mapping import ModelEntries, ModelMapping, ModelOptions
from dragoman.models.name_index import (
    NameIndex,
    add_names,
    index_explicit,
    list_spellings,
    merge_duplicates,
    normalize_name,
    slugify,
)
from dragoman.models.pull import DEFAULT_ALIASES, DEFAULT_FILE
from dragoman.options import suggest
from dragoman.types.computed_once import ComputedOnce

log = logging.getLogger("dragoman.catalog")

MAX_NAME = 512
MAX_FILES = 10_000
UPSTREAM_RETRY = 15.0  # seconds until a server that could not be used is asked again

FileStamp = tuple[str, int, int]


class ModelSource(Struct, frozen=True, kw_only=True, dict=True):
    """A model: where it is, what its header contains, and the options to run it with."""

    id: str
    path: Path = Path()
    kind: Literal["gguf", "safetensors", "remote"] = "gguf"
    architecture: str | None = None
    parameters: str | None = None
    quantization: str | None = None
    context: int | None = None
    modalities: tuple[str, ...] = ("text",)  # of a directory; a GGUF file has a projector
    size: int = 0  # bytes of all its files
    created: int = 0  # when the file was last changed, in seconds
    broken: str | None = None  # why it cannot be loaded
    titles: tuple[str, ...] = ()  # names that the file gives itself
    aliases: tuple[str, ...] = ()
    options: ModelOptions = ModelOptions()
    shape: ModelShape | None = None  # what decides how much memory it needs
    plan: MemoryPlan | None = None  # with which it is loaded; None until then
    real_path: str = ""  # with links resolved
    stamp: FileStamp = ("", 0, 0)  # changes when the file does

    @ComputedOnce
    def key(self) -> str:
        """Sources with the same key are one model in memory."""
        return f"{self.real_path or self.path}\0{msgspec.json.encode(self.options).decode()}"


def list_names(source: ModelSource) -> tuple[str, ...]:
    """List the names under which a model is known."""
    return (source.id, *source.aliases)


def read_stamp(path: Path) -> FileStamp:
    """Return path, change time and length of a file; a negative length is a missing file."""
    try:
        status = path.stat()
    except OSError:
        return (str(path), 0, -1)
    return (str(path), status.st_mtime_ns, status.st_size)


class ModelCatalog:
    """The index of models. `base` holds the options that a model does not set itself."""

    def __init__(
        self,
        root: Path | None = None,
        mapping: Path | None = None,
        base: ModelOptions | None = None,
        configured: ModelEntries | None = None,
    ) -> None:
        self.root = root
        self.mapping = mapping
        self.configured = configured or {}  # entries of the configuration file
        self._entries = ModelMapping(mapping, configured)
        self.base = base or ModelOptions()
        self.added: list[ModelSource] = []  # by the operator
        self.listing_error: Unavailable | None = None  # why those of an upstream are unknown
        self._index: list[NameIndex] = []
        self._sources: list[ModelSource] = []
        self._main_names: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def list_main_names(self, source: ModelSource) -> tuple[str, ...]:
        """List the names of a model that an operator gave it, and that of its file."""
        return tuple(
            name for name in list_names(source) if normalize_name(name) in self._main_names
        )

    def list_sources(self) -> list[ModelSource]:
        """List all models once, those of the operator first."""
        return list(self._sources)

    def find(self, name: str, *, any_tag: bool = True) -> ModelSource | None:
        """Find the model that has a name; with `any_tag`, `name:tag` is also a model `name`."""
        name = normalize_name(name)
        if not name or len(name) > MAX_NAME:
            return None
        for spelling in list_spellings(name, any_tag=any_tag):
            for names in self._index:
                matches = names.get(spelling, [])
                if len(matches) == 1:
                    return matches[0]
        return None

    def suggest(self, name: str) -> str:
        """Return a question that names the model with the most similar name, or ""."""
        return suggest(name, [item for source in self._sources for item in list_names(source)])

    def resolve(self, name: str, *, paths: bool = False) -> ModelSource | None:
        """Find a model; with `paths`, an unknown name may be the path of a model."""
        source = self.find(name)
        if source is not None:
            return source
        if paths and os.path.exists(name):
            return self.open_path(Path(name))
        path = None if self.root is None else find_downloaded(name, self.root)
        return next((known for known in self._sources if known.path == path), None)

    def refresh(self) -> None:
        """Scan the disk again. Blocks; one scan runs at a time."""
        with self._lock:
            added = list(map(_describe_again, self.added))
            mapped = list(self._read_mapped())
            scanned = self.scan(self.root) if self.root is not None else []
            named = [source for source in mapped if source.options.parent is None]
            claimed = {source.real_path for source in [*added, *named]}
            others = [source for source in scanned if source.real_path not in claimed]
            keys = {source.key for source in [*added, *mapped]}
            same = [source for source in scanned if source.key in keys]
            explicit = merge_duplicates([*added, *mapped, *same])
            self._index = [index_explicit(explicit), *self._index_scanned(scanned)]
            self._sources = explicit + others
            every = [*self.added, *mapped, *scanned]
            self._main_names = frozenset(normalize_name(source.id) for source in every)

    def add(self, source: ModelSource, names: Sequence[str] = ()) -> ModelSource:
        """Add a model under additional names, ahead of all scanned models."""
        source = msgspec.structs.replace(source, aliases=(*names, *source.aliases))
        self.added.append(source)
        return source

    def open_path(self, path: Path, options: ModelOptions | None = None) -> ModelSource:
        """Open a file or directory that the operator named."""
        source = self._describe(path)
        if options is None:
            return source
        return msgspec.structs.replace(source, options=options.with_defaults(source.options))

    def open_upstream(self, name: str, options: ModelOptions) -> ModelSource:
        """Open a model that another server runs, which is not asked yet."""
        options = options.with_defaults(self.base.restrict_to("remote"))
        return describe_upstream(name, options)

    def resolve_draft(self, source: ModelSource) -> ModelSource:
        """Return the model with the path of its draft model, which may be given by name."""
        name = source.options.draft_model
        if name is None or os.path.isfile(name):
            return source
        draft = self.find(name)
        if draft is None or draft.broken is not None or draft.kind != "gguf":
            raise ModelBroken(f"There is no draft model {name!r}.{self.suggest(name)}")
        options = msgspec.structs.replace(source.options, draft_model=str(draft.path))
        return msgspec.structs.replace(source, options=options)

    def _read_mapped(self) -> Iterator[ModelSource]:
        for name, (path, options) in self._entries.read().items():
            if options.upstream is not None:
                yield self.open_upstream(name, options)
                continue
            source = self._describe(path)
            yield msgspec.structs.replace(
                source, id=name, aliases=(), options=options.with_defaults(source.options)
            )

    def scan(self, root: Path) -> list[ModelSource]:
        """Describe all models in a directory and the directories below it."""
        files = sorted(_find_model_files(root))[:MAX_FILES]
        sources = [self._describe(path) for path in files]
        models = [source for source in sources if source.broken != NOT_A_MODEL]
        return _make_distinct(models, root)

    def _describe(self, path: Path) -> ModelSource:
        source = describe_version(path, read_stamp(path))
        return msgspec.structs.replace(source, options=self.base.restrict_to(source.kind))

    def _index_scanned(self, sources: list[ModelSource]) -> list[NameIndex]:
        root = self.root or Path()
        models_per_directory = Counter(source.path.parent for source in sources)
        tiers: list[NameIndex] = [{} for _ in range(6)]
        for source in sources:
            stem, parent = _get_stem(source), source.path.parent
            relative_name = _get_relative_name(source, root)
            add_names(tiers[0], source, source.id, relative_name, *source.aliases)
            add_names(tiers[1], source, stem)
            if parent != root and models_per_directory[parent] == 1 and root in parent.parents:
                add_names(tiers[2], source, parent.name, parent.relative_to(root).as_posix())
            add_names(
                tiers[3],
                source,
                gguf.strip_quantization(stem),
                gguf.strip_quantization(relative_name),
            )
            add_names(tiers[4], source, *source.titles, *map(slugify, source.titles))
            add_names(tiers[5], source, source.architecture or "")
        return tiers


@functools.lru_cache(MAX_FILES)
def describe_version(path: Path, stamp: FileStamp) -> ModelSource:
    """Describe one version of a file or directory; all catalogs read it once."""
    source = describe_directory(path) if path.is_dir() else describe_gguf(path)
    return msgspec.structs.replace(source, real_path=os.path.realpath(path), stamp=stamp)


NOT_A_MODEL = "The file is not a complete model."
SAFETENSORS = "The file belongs to a safetensors model: name its directory."
NOT_UTF8 = "The path of the file is not UTF-8: rename it."


def describe_gguf(path: Path) -> ModelSource:
    """Describe a GGUF file from its header, or why it is broken."""
    _, changed, length = read_stamp(path)
    created = changed // 10**9
    name = os.fsencode(path.stem).decode(errors="replace")  # ids are sent as JSON
    broken = ModelSource(id=name, path=path, created=created, size=max(0, length))
    if os.fsencode(path) != str(path).encode(errors="replace"):
        return msgspec.structs.replace(broken, broken=NOT_UTF8)
    if path.suffix == ".safetensors":
        return msgspec.structs.replace(broken, broken=SAFETENSORS)
    try:
        files = gguf.list_split_files(path)
        header = gguf.read_header(path, arrays=False)
    except ModelBroken as error:
        return msgspec.structs.replace(broken, broken=error.message)
    if header.kind != "model":
        return msgspec.structs.replace(broken, broken=NOT_A_MODEL)
    size = sum(max(0, read_stamp(file)[2]) for file in files)
    is_default_model = normalize_name(path.name) == normalize_name(DEFAULT_FILE)
    source = ModelSource(
        id=DEFAULT_ALIASES[0] if is_default_model else path.stem,
        path=path,
        architecture=header.architecture,
        parameters=header.parameters,
        quantization=header.quantization,
        context=find_trained_context(header),
        size=size,
        shape=read_shape(header, size),
        created=created,
        titles=_collect_titles(header),
        aliases=DEFAULT_ALIASES[1:] if is_default_model else (),
    )
    return source if is_default_model else msgspec.structs.replace(source, id=_get_stem(source))


def _collect_titles(header: gguf.GgufHeader) -> tuple[str, ...]:
    basename, size, tune = (
        header.get_text(f"general.{key}") for key in ("basename", "size_label", "finetune")
    )
    joined = [
        "-".join(filter(None, parts))
        for parts in ((basename, size, tune), (basename, size), (basename,))
    ]
    title = header.get_text("general.name")
    return tuple(dict.fromkeys(filter(None, (title, *joined))))


def describe_directory(path: Path) -> ModelSource:
    """Describe a directory of safetensors, which other engines run."""
    source = ModelSource(
        id=path.name, path=path, kind="safetensors", created=read_stamp(path)[1] // 10**9
    )
    try:
        config = read_checkpoint_config(path)
        weights = [file.stat() for file in path.glob("*.safetensors")]
    except (OSError, ValueError, RecursionError) as error:
        log.warning("cannot read the model directory %s: %s", path, error)
        return msgspec.structs.replace(source, broken="The model's config.json cannot be read.")
    size = sum(file.st_size for file in weights)
    return msgspec.structs.replace(source, size=size, **msgspec.structs.asdict(config))


def describe_upstream(name: str, options: ModelOptions) -> ModelSource:
    """Describe a model that another server runs; one that could not be used is tried again."""
    place = f"{options.upstream}#{options.upstream_model or ''}"
    return ModelSource(
        id=name,
        kind="remote",
        options=options,
        real_path=f"upstream:{place}",
        stamp=_make_upstream_stamp(),
    )


def _make_upstream_stamp() -> FileStamp:
    return ("upstream", int(time.monotonic() / UPSTREAM_RETRY), 0)


def _describe_again(source: ModelSource) -> ModelSource:
    """Return a model that the operator added as it is now: its file may have changed."""
    if source.kind == "remote":
        return msgspec.structs.replace(source, stamp=_make_upstream_stamp())
    if source.path == Path():  # an engine without a file
        return source
    current = describe_version(source.path, read_stamp(source.path))
    return msgspec.structs.replace(
        current, id=source.id, aliases=source.aliases, options=source.options
    )


def _find_model_files(root: Path) -> Iterator[Path]:
    """Find GGUF files (only the first part of a split one) and directories of safetensors."""
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        parent = Path(directory)
        for name in files:
            if not name.lower().endswith(".gguf") or name.startswith("."):
                continue
            split = gguf.parse_split_name(name[: -len(".gguf")])
            if split is None or split[1] == 1:
                yield parent / name
        if (
            parent != root
            and "config.json" in files
            and any(name.endswith(".safetensors") for name in files)
        ):
            yield parent


def _get_stem(source: ModelSource) -> str:
    if source.kind == "safetensors":
        return source.path.name
    split = gguf.parse_split_name(source.path.stem)
    return split[0] if split else source.path.stem


def _get_relative_name(source: ModelSource, root: Path) -> str:
    """Return the path below the models directory, without the suffix."""
    return (source.path.parent.relative_to(root) / _get_stem(source)).as_posix()


def _make_distinct(sources: list[ModelSource], root: Path) -> list[ModelSource]:
    """Name the second of two files with the same name by its path below the root."""
    seen: set[str] = set()
    distinct = []
    for source in sources:
        if normalize_name(source.id) in seen:
            source = msgspec.structs.replace(
                source, id=_get_relative_name(source, root), aliases=()
            )
        seen.add(normalize_name(source.id))
        distinct.append(source)
    return distinct
