"""What a created model is made of, and the entry of models.yaml that it becomes.

A recipe has the parts of Ollama's Modelfile: a model to start from, and what is different for
requests: system prompt, sampling, messages, chat template, adapters, license. A model is also made
from a file that the client uploaded. Files are named by their digest, never by a path, so that a
client reads no other files of the server. The parts of the source stay, unless the recipe has
others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.engines.llamacpp import gguf
from dragoman.errors import BadRequest, DragomanError, InvalidValue, ModelBroken, NotFound
from dragoman.models.catalog import ModelSource
from dragoman.models.management.blobs import BlobStore, parse_digest
from dragoman.models.mapping import MappingError, parse_entries
from dragoman.presets import ExampleMessage
from dragoman.prompt.go_template import convert_go_template, is_go_template
from dragoman.prompt.renderer import PromptRenderer
from dragoman.types import Json

MAX_ENTRY = 256 << 10  # bytes of an entry in models.yaml
MAX_ADAPTERS = 16
Role: TypeAlias = Literal["system", "user", "assistant"]
# Ollama's names of options that decide how a model is loaded
LOAD_OPTIONS = {
    "num_ctx": "context",
    "num_thread": "threads",
    "num_batch": "batch",
    "num_gpu": "gpu_layers",
    "main_gpu": "main_gpu",
    "use_mmap": "mmap",
    "use_mlock": "mlock",
}
SAMPLING_NAMES = {"num_predict": "max_tokens"}  # all others have the same name in a request
# with which a parameter has no effect: they are the engine's own, or Ollama's random seed
UNSET_VALUES: dict[str, tuple[Json, ...]] = {
    "num_thread": (0,),
    "num_gpu": (-1,),
    "seed": (-1,),
    "num_predict": (-1, -2),
}
WITHOUT_EFFECT = (
    *("num_keep", "penalize_newline", "tfs_z", "numa", "low_vram", "f16_kv", "logits_all"),
    *("vocab_only", "embedding_only", "draft_num_predict"),
)
_ADAPTER_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


class Recipe(Struct, frozen=True, kw_only=True):
    """A model to create; None and empty values are those of its source."""

    name: str  # as `check_new_name` returns it
    source: str | None = None  # name of a model
    files: Mapping[str, str] = {}  # digests by file name
    adapters: Mapping[str, str] = {}  # digests by file name
    template: str | None = None  # in Go's language, or Jinja
    system: str | None = None
    parameters: Mapping[str, Json] = {}  # by Ollama's names
    messages: tuple[ExampleMessage, ...] = ()
    license: tuple[str, ...] = ()


def make_messages(pairs: Iterable[tuple[Role, str]]) -> tuple[ExampleMessage, ...]:
    """Return messages with these roles and texts."""
    return tuple(ExampleMessage(role, content) for role, content in pairs)


class RecipeWriter:
    """Turns recipes into entries of the models.yaml in a directory."""

    def __init__(self, directory: Path, blobs: BlobStore) -> None:
        self._directory = directory
        self._blobs = blobs

    def write(
        self, recipe: Recipe, base: Mapping[str, Json], source: ModelSource | None
    ) -> tuple[dict[str, Json], list[str]]:
        """Return the entry of a recipe, and warnings.

        `base` is the entry of its source; both are empty for a model that is made from a file.
        """
        entry = dict(base)
        architecture = None if source is None else source.architecture
        if recipe.source is not None:
            entry["parent"] = recipe.source
        if recipe.files:
            path, architecture = self._choose_model_file(recipe.files)
            entry["path"] = self._relate(path)
        if recipe.adapters:
            adapters = self._find_adapters(recipe.adapters, architecture)
            entry["lora"] = adapters
            entry["default_lora"] = list(adapters)
        if recipe.template:
            check_template(recipe.template)
            entry["chat_template"] = self._relate(self._blobs.add(recipe.template.encode()))
        if recipe.system:
            entry["system"] = recipe.system
        if recipe.messages:
            entry["messages"] = msgspec.to_builtins(recipe.messages)
        if recipe.license:
            entry["license"] = "\n".join(recipe.license)
        warnings = _add_parameters(entry, recipe.parameters)
        entry = msgspec.json.decode(msgspec.json.encode(entry))  # without tuples, as YAML has it
        self._check(recipe.name, entry)
        return entry, warnings

    def _choose_model_file(self, files: Mapping[str, str]) -> tuple[Path, str]:
        """Return the one file that is a model, and its architecture."""
        if len(files) != 1:
            raise BadRequest("`files` must be one GGUF file.", param="files")
        [(name, digest)] = files.items()
        path, header = self._open_blob(name, digest, "files")
        if header.kind != "model" or not header.tensors.count:
            raise BadRequest(f"`files`: `{name}` is not a model.", param="files")
        if gguf.parse_split_name(PurePosixPath(name).stem) is not None:
            raise BadRequest("`files`: a model in several files must be merged.", param="files")
        return path, header.architecture

    def _find_adapters(self, adapters: Mapping[str, str], architecture: str | None) -> Json:
        if len(adapters) > MAX_ADAPTERS:
            raise BadRequest(f"There may be at most {MAX_ADAPTERS} `adapters`.", param="adapters")
        found: dict[str, str] = {}
        for name, digest in adapters.items():
            path, header = self._open_blob(name, digest, "adapters")
            if header.kind != "adapter":
                raise BadRequest(f"`adapters`: `{name}` is not an adapter.", param="adapters")
            if architecture not in (None, header.architecture):
                raise BadRequest(
                    f"`adapters`: `{name}` is for the architecture {header.architecture}, and the "
                    f"model is {architecture}.",
                    param="adapters",
                )
            stem = _ADAPTER_NAME.sub("-", PurePosixPath(name).stem).strip("-.") or "adapter"
            key = stem if stem not in found else f"{stem}-{len(found)}"
            found[key] = self._relate(path)
        return found

    def _open_blob(self, name: str, digest: str, param: str) -> tuple[Path, gguf.GgufHeader]:
        """Return the path and the header of a GGUF file that was uploaded."""
        path = self._blobs.find(parse_digest(digest, param))
        if path is None:
            raise NotFound(f"`{param}`: there is no blob {digest}; upload it first.", param=param)
        try:
            return path, gguf.read_header(path, arrays=False)
        except ModelBroken as error:
            raise BadRequest(
                f"`{param}`: `{name}` is not a GGUF file that can be read. {error.message}",
                param=param,
            ) from None

    def _relate(self, path: Path) -> str:
        return relate_path(path, self._directory)

    def _check(self, name: str, entry: dict[str, Json]) -> None:
        """Raise an error if models.yaml would not be valid with this entry."""
        if len(msgspec.json.encode(entry)) > MAX_ENTRY:
            raise InvalidValue(
                "`system`, `messages` and `license` are too long: all together may have "
                f"{MAX_ENTRY:,} bytes."
            )
        try:
            parse_entries({name: entry}, self._directory, lambda *_: "")
        except MappingError as error:
            problem = str(error).removeprefix(": ")
            end = "" if problem.endswith((".", "?")) else "."
            raise InvalidValue(problem + end) from None


def relate_path(path: Path, directory: Path) -> str:
    """Return a path as an entry has it: relative, if it is below the directory of models.yaml."""
    absolute, parent = os.path.abspath(path), os.path.abspath(directory)
    is_below = os.path.commonpath([absolute, parent]) == parent
    return os.path.relpath(absolute, parent) if is_below else absolute


def check_template(template: str) -> None:
    """Raise an error if a text is not a template for chats."""
    if is_go_template(template):
        template = convert_go_template(template)
    try:
        PromptRenderer(template, None)
    except DragomanError as error:
        raise InvalidValue(f"`template`: {error.message}", param="template") from None


def _add_parameters(entry: dict[str, Json], parameters: Mapping[str, Json]) -> list[str]:
    """Add parameters to an entry, and return a warning for each that has no effect."""
    sampling: dict[str, Json] = dict(entry.get("sampling") or {})
    warnings = []
    for name, value in parameters.items():
        if value is None or value in UNSET_VALUES.get(name, ()):
            continue
        if name in WITHOUT_EFFECT:
            warnings.append(f"`{name}` has no effect.")
        elif name == "stop":
            entry["stop"] = value
        elif name in LOAD_OPTIONS:
            entry[LOAD_OPTIONS[name]] = value
        else:
            sampling[SAMPLING_NAMES.get(name, name)] = value
    if sampling:
        entry["sampling"] = sampling
    return warnings
