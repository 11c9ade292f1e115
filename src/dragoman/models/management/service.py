"""Changes the models on disk, for Ollama's API and for the command line alike.

A name that is given to a model, and a model that is created from another one, is an entry of
models.yaml; the files of a model are those of the models directory. Changes happen one at a time,
also if several processes make them: the models directory is locked meanwhile. After each change the
catalog is read again, and `on_change` gets one line for the audit log.

A change may be limited to some models (`AllowsModel`): others do not exist for it, and it does not
replace their names.

Everything here blocks, so a server calls it in threads. Nothing is loaded or unloaded: a server
asks its registry to unload what is no longer in the catalog.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, InvalidValue, ModelNotFound, Unsupported
from dragoman.models.catalog import ModelCatalog, ModelSource, list_names
from dragoman.models.downloads.hub import translate_hub_name
from dragoman.models.downloads.pip import DownloadListener
from dragoman.models.management.blobs import DIRECTORY, BlobStore, report_disk_errors
from dragoman.models.management.deletion import is_inside, list_files, remove_empty_directories
from dragoman.models.management.manifest import ManifestDigests
from dragoman.models.management.mapping_file import (
    NESTED,
    add_entry,
    read_entries,
    remove_entry,
    replace_entry,
)
from dragoman.models.management.model_name import strip_default_parts
from dragoman.models.management.recipe import Recipe, RecipeWriter, relate_path
from dragoman.models.name_index import list_spellings, normalize_name
from dragoman.models.names import sanitize_name
from dragoman.models.pull import DEFAULT_ALIASES, check_downloadable, pull
from dragoman.types import Json

DEFAULT_BLOB_LIMIT = 64 << 30
# records a change: what happened, and the names of the models
RecordChange = Callable[[str, Mapping[str, Json]], None]
# whether the one who makes a change may use a model
AllowsModel = Callable[[ModelSource], bool]


class Deletion(Struct, frozen=True, kw_only=True):
    """What is deleted with a name: an entry of models.yaml, or files and all their names."""

    source: ModelSource
    entry: str | None = None  # the key of models.yaml; then files stay
    files: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()  # entries that would be left without a file

    @property
    def size(self) -> int:
        return sum(file.lstat().st_size for file in self.files)


def ignore_change(event: str, fields: Mapping[str, Json]) -> None:
    """Record nothing."""


def allow_every_model(source: ModelSource) -> bool:
    """Allow what the operator does."""
    return True


class ModelManager:
    """Manages the models of one catalog."""

    def __init__(
        self,
        catalog: ModelCatalog,
        *,
        blob_limit: int = DEFAULT_BLOB_LIMIT,
        make_pip_environment: Callable[[], Mapping[str, str] | None] = lambda: None,
    ) -> None:
        self.catalog = catalog
        self.digests = ManifestDigests()
        self.on_change: RecordChange = ignore_change
        self._blob_limit = blob_limit
        self._make_pip_environment = make_pip_environment
        self._lock = threading.Lock()

    # Names

    def find(self, name: str) -> ModelSource | None:
        """Find a model to change; unlike in a request, an unknown tag is an unknown model."""
        return self.catalog.find(strip_default_parts(name), any_tag=False)

    def require(
        self, name: str, param: str = "model", allows: AllowsModel = allow_every_model
    ) -> ModelSource:
        source = self.find(name)
        if source is None or not allows(source):
            shown = sanitize_name(name)
            raise ModelNotFound(f"The model `{shown}` does not exist.", param=param)
        return source

    def find_entry(self, name: str) -> str | None:
        """Return the key of models.yaml that is this name."""
        wanted = {normalize_name(name), normalize_name(strip_default_parts(name))}
        keys = [key for key in self._read_entries() if isinstance(key, str)]
        return next((key for key in keys if normalize_name(key) in wanted), None)

    def check_changeable(self) -> None:
        """Raise an error if there is no place for other models."""
        if self.catalog.root is None or self.catalog.mapping is None:
            raise Unsupported("This server has no models directory: its models cannot be changed.")

    @property
    def mapping(self) -> Path:
        """The file with the names of models."""
        self.check_changeable()
        return self.catalog.mapping or Path()

    @property
    def root(self) -> Path:
        self.check_changeable()
        return self.catalog.root or Path()

    @property
    def blobs(self) -> BlobStore:
        return BlobStore(self.root / DIRECTORY, self._blob_limit)

    # Changes

    def find_download(self, name: str, allows: AllowsModel = allow_every_model) -> str:
        """Return the name that `pull` downloads for a name of Ollama's, or raise `NotFound`."""
        if self.find(name) is not None:
            self.require(name, allows=allows)
        short = translate_hub_name(strip_default_parts(name))
        spellings = list(list_spellings(normalize_name(short), any_tag=False))
        default = next((spelling for spelling in spellings if spelling in DEFAULT_ALIASES), short)
        check_downloadable(default)
        return default

    def pull(self, name: str, listener: DownloadListener | None = None) -> Path:
        """Download a model, unless it is installed."""
        wanted = self.find_download(name)
        with report_disk_errors():
            path = pull(wanted, self.root, listener, self._make_pip_environment())
        self.catalog.refresh()
        self.on_change("model_pulled", {"model": name})
        return path

    def copy(
        self,
        source: str,
        destination: str,
        *,
        overwrite: bool = False,
        found: ModelSource | None = None,
        allows: AllowsModel = allow_every_model,
    ) -> None:
        """Give a model another name. Nothing is copied on disk.

        `found` is the model where `source` is the path of its file.
        """
        with self._change():
            found = found or self.require(source, "source", allows)
            check_loadable(found, "source")
            self._check_name(destination, "destination", allows)
            entry = self._make_entry(found, source)
            self._write_entry(destination, entry, "destination", overwrite=overwrite)
        self.on_change("model_copied", {"source": source, "model": destination})

    def create(self, recipe: Recipe, allows: AllowsModel = allow_every_model) -> list[str]:
        """Create a model, or replace one that was created, and return warnings."""
        with self._change():
            self._check_name(recipe.name, "model", allows)
            base: dict[str, Json] = {}
            source = None
            if recipe.source is not None:
                source = self.require(recipe.source, "from", allows)
                check_loadable(source, "from")
                entry = self._make_entry(source, recipe.source)
                base = dict(entry) if isinstance(entry, dict) else {"path": entry}
            writer = RecipeWriter(self.mapping.parent, self.blobs)
            entry, warnings = writer.write(recipe, base, source)
            self._write_entry(recipe.name, entry, "model", overwrite=True)
            self._remove_unused_blobs()
        self.on_change("model_created", {"model": recipe.name, "source": recipe.source})
        return warnings

    def plan_deletion(self, name: str, allows: AllowsModel = allow_every_model) -> Deletion:
        """Find out what is deleted with a name, or why it cannot be."""
        source = self.require(name, allows=allows)
        entry = self.find_entry(name)
        if entry is not None:
            return Deletion(source=source, entry=entry)
        for configured, (path, _) in self.catalog.configured.items():
            if os.path.realpath(path) == source.real_path:
                raise BadRequest(
                    f"`{configured}` is in the server's configuration file: remove it there first."
                )
        if self.catalog.root is None or not is_inside(source.path, self.root):
            raise BadRequest(
                f"The files of `{source.id}` are not in the models directory: delete them yourself."
            )
        files = tuple(list_files(source))
        return Deletion(source=source, files=files, names=tuple(self._find_names(source)))

    def delete(
        self, name: str, *, with_names: bool = False, allows: AllowsModel = allow_every_model
    ) -> Deletion:
        """Delete a name of models.yaml, or the files of a model.

        Files that have other names are deleted only `with_names`, which are deleted, too.
        """
        with self._change():
            deletion = self.plan_deletion(name, allows)
            if deletion.names and not with_names:
                raise self._make_used_error(deletion.names, allows)
            for key in (deletion.entry, *deletion.names):
                if key is not None:
                    remove_entry(self.mapping, key)
            for file in deletion.files:
                file.unlink(missing_ok=True)
            source = deletion.source
            if deletion.files:
                folder = source.path if source.kind == "safetensors" else source.path.parent
                remove_empty_directories(folder, self.root)
                added = [item for item in self.catalog.added if item.real_path != source.real_path]
                self.catalog.added[:] = added
            self._remove_unused_blobs(deletion)
        self.on_change("model_deleted", {"model": name})
        return deletion

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock for a change, and read the catalog before and after it."""
        root = self.root
        with self._lock, report_disk_errors():
            root.mkdir(parents=True, exist_ok=True)
            directory = os.open(root, os.O_RDONLY)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX)  # until the directory is closed
                self.catalog.refresh()
                yield
                self.catalog.refresh()
            finally:
                os.close(directory)

    def _make_used_error(self, names: Sequence[str], allows: AllowsModel) -> BadRequest:
        """Return the error about files that have other names; it lists only the allowed ones."""
        known = [name for name in names if (source := self.find(name)) and allows(source)]
        others = [*known, *(["other models"] if len(known) < len(names) else [])]
        pronoun = "it" if known and len(others) == 1 else "them"
        return BadRequest(
            f"The files of this model are also used by {', '.join(others)}: delete {pronoun} first."
        )

    def _check_name(self, name: str, param: str, allows: AllowsModel) -> None:
        """Raise an error if a name is that of a model which must not be replaced."""
        source = self.find(name)
        if source is not None and not allows(source):
            raise make_name_error(name, param)

    def _write_entry(self, name: str, entry: Json, param: str, *, overwrite: bool) -> None:
        """Add an entry, or replace one; the name of a file cannot be replaced."""
        if name == NESTED:
            raise InvalidValue(
                f"`{NESTED}` is a key of models.yaml: choose another name.", param=param
            )
        key = self.find_entry(name)
        if key is not None and overwrite:
            replace_entry(self.mapping, key, name, entry)
        elif key is None and not self._is_taken(name):
            add_entry(self.mapping, name, entry)
        else:
            raise make_name_error(name, param)

    def _is_taken(self, name: str) -> bool:
        names = (other for source in self.catalog.list_sources() for other in list_names(source))
        return normalize_name(name) in map(normalize_name, names)

    def _make_entry(self, source: ModelSource, name: str) -> Json:
        """Return the entry of a model: as its own is written, else its path and its options."""
        key = self.find_entry(name)
        if key is not None:
            return self._read_entries()[key]
        for configured, (file, options) in self.catalog.configured.items():
            if normalize_name(configured) == normalize_name(source.id):
                own = msgspec.json.decode(msgspec.json.encode(options))
                return {"path": os.path.abspath(file), **own}
        return relate_path(source.path, self.mapping.parent)

    def _find_names(self, source: ModelSource) -> Iterator[str]:
        """List the entries that would be left without a file."""
        for key, value in self._read_entries().items():
            path = value.get("path") if isinstance(value, dict) else value
            if isinstance(key, str) and self._resolve(path) == source.real_path:
                yield key

    def _read_entries(self) -> dict[Json, Json]:
        return {} if self.catalog.mapping is None else read_entries(self.mapping)

    def _resolve(self, path: Json) -> str | None:
        if not isinstance(path, str):
            return None
        return os.path.realpath(self.mapping.parent / Path(path).expanduser())

    def _remove_unused_blobs(self, deletion: Deletion | None = None) -> None:
        """Remove the blobs that no entry names: those of a deleted model now, others by age."""
        used: set[str] = set()
        for value in self._read_entries().values():
            fields = value if isinstance(value, dict) else {"path": value}
            lora = fields.get("lora")
            adapters = lora.values() if isinstance(lora, dict) else ()
            paths = (fields.get("path"), fields.get("chat_template"), *adapters)
            used |= {path for item in paths if (path := self._resolve(item)) is not None}
        if deletion is not None:
            options = deletion.source.options
            own = (str(deletion.source.path), options.chat_template, *options.lora.values())
            unused = {os.path.realpath(path) for path in own if path} - used
            for path in unused:
                self.blobs.remove(Path(path))
        self.blobs.remove_unused(used)


def check_loadable(source: ModelSource, param: str) -> None:
    """Raise an error if a model is broken: its other names would be, too."""
    if source.broken is not None:
        raise BadRequest(f"{source.id} cannot be loaded: {source.broken}", param=param)


def make_name_error(name: str, param: str) -> BadRequest:
    return BadRequest(f"There is a model `{name}` already.", param=param)
