"""The mapping file `models.yaml`: names that an operator gives to models, and options to run them.

    smollm2: smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
    writer: {path: big.gguf, context: 16384, lora: {poet: poet.gguf}, sampling: {temperature: 0.3}}
    qwen3: {upstream: "http://gpu-box:8000"}  # a model that another server runs

The same may be under a key `models:`, and in `models:` of dragoman.yaml. Relative paths start at
the file. A mistake is an error at start-up; a running server that reads the file again logs it and
keeps the models as they were.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from dragoman.engines.llamacpp.loading.settings import check_options
from dragoman.engines.llamacpp.media.projector import NONE
from dragoman.engines.options import EngineOptions
from dragoman.engines.remote.options import SHARED_FIELDS
from dragoman.models.output_format import check_names
from dragoman.options import Setting, parse_options
from dragoman.options.yaml_file import (
    YamlFile,
    YamlFileError,
    describe_wrong_name,
    read_yaml_file,
)
from dragoman.presets import ExampleMessage, SharedOptions, expand_preset, parse_preset
from dragoman.types import Json

log = logging.getLogger("dragoman.catalog")

URL = re.compile(r"https?://", re.IGNORECASE)

COMBINED = ("lora", "engine_arg", "template_vars", "sampling")  # options whose entries are combined


class ModelOptions(
    SharedOptions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The operator's options for a model; None is "not set"."""

    engine: Annotated[str | None, Setting(help="engine for the model")] = None
    engine_arg: Annotated[
        dict[str, Json], Setting(help="arguments of vLLM, under its own names")
    ] = msgspec.field(default_factory=dict)
    lora: Annotated[dict[str, str], Setting(help="LoRA adapters: a mapping of names to files")] = (
        msgspec.field(default_factory=dict)
    )
    chat_template: Annotated[
        str | None, Setting(help="Jinja file to use instead of the model's own chat template")
    ] = None
    format: Annotated[
        str | None, Setting(help="tool call format, if the detected one is wrong")
    ] = None
    reasoning_format: Annotated[
        str | None, Setting(help="reasoning format, if the detected one is wrong")
    ] = None
    keep_alive: Annotated[
        float | None,
        Setting(
            help="how long the idle model stays loaded",
            unit="seconds",
            minimum=0,
            can_be_forever=True,
        ),
    ] = None
    embeddings: Annotated[
        bool | None,
        Setting(help="serve embeddings, even if the file does not say that the model embeds"),
    ] = None
    pin: Annotated[bool | None, Setting(help="never unload the model to make room")] = None
    default_lora: Annotated[
        tuple[str, ...], Setting(help="LoRA adapters of requests that name none")
    ] = ()
    messages: Annotated[
        tuple[ExampleMessage, ...],
        Setting(help="messages (`role`, `content`) before those of each conversation"),
    ] = ()
    license: Annotated[str | None, Setting(help="text of the license, as /api/show returns it")] = (
        None
    )
    parent: Annotated[str | None, Setting(help="model that it was created from")] = None

    def restrict_to(self, kind: str) -> ModelOptions:
        """Return the server's options for a model of a kind, without what is for other kinds.

        llama.cpp runs GGUF files and takes adapters as files; vLLM takes directories for both.
        """
        if kind == "remote":  # another server has its own options
            local = dict.fromkeys(set(EngineOptions.__struct_fields__) - set(SHARED_FIELDS))
            return msgspec.structs.replace(self, engine=None, lora={}, engine_arg={}, **local)
        is_gguf = kind == "gguf"
        other_engine = "vllm" if is_gguf else "llamacpp"
        lora = {name: path for name, path in self.lora.items() if is_gguf != os.path.isdir(path)}
        engine = None if self.engine == other_engine else self.engine
        is_custom = engine is not None and ":" in engine
        return msgspec.structs.replace(
            self,
            engine=engine,
            lora=lora,
            engine_arg=self.engine_arg if not is_gguf or is_custom else {},
        )

    def with_defaults(self, defaults: ModelOptions) -> ModelOptions:
        """Return these options, with `defaults` for those that are not set."""
        values = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None and name not in COMBINED
        }
        for name in COMBINED:
            values[name] = getattr(defaults, name) | getattr(self, name)
        for name in ("force", "public_prompt"):
            values[name] = (*getattr(defaults, name), *getattr(self, name))
        return msgspec.structs.replace(defaults, **values)


ModelEntries: TypeAlias = dict[str, tuple[Path, ModelOptions]]  # path and options by name


class MappingError(ValueError):
    """An entry or the file is invalid. The message names file, line and key."""


class ModelMapping:
    """The entries of `models.yaml` and of `models:` in the configuration file, which win.

    The first `read` raises `MappingError` if the file has a mistake, so that the server does not
    start. Later ones, while the server runs, log it once and return the entries as they were.
    """

    def __init__(self, file: Path | None, configured: ModelEntries | None = None) -> None:
        self._file = file
        self._configured = configured or {}
        self._entries: ModelEntries | None = None
        self._parsed: tuple[object, YamlFile] | None = None  # a version of the file, its content
        self._logged = ""

    def read(self) -> ModelEntries:
        try:
            entries = {} if self._file is None else read_mapping(self._file, self._read_file)
        except MappingError as error:
            if self._entries is None:
                raise
            self._log_once(f"{error}. The models stay as they were.")
            return self._entries
        if both := sorted(entries.keys() & self._configured.keys()):
            self._log_once(
                f"{self._file}: `{both[0]}` is also in the configuration file, which wins"
            )
        # Those of the configuration file are listed first, and win.
        self._entries = self._configured | entries | self._configured
        return self._entries

    def _read_file(self, file: Path) -> YamlFile:
        """Read the file, unless it is the version that was read last: a large one takes long."""
        status = file.stat()
        version = status.st_ino, status.st_mtime_ns, status.st_size
        if self._parsed is None or self._parsed[0] != version:
            self._parsed = version, read_yaml_file(file)
        return self._parsed[1]

    def _log_once(self, message: str) -> None:
        if message != self._logged:
            log.warning("%s", message)
        self._logged = message


def read_mapping(
    file: Path, read_file: Callable[[Path], YamlFile] = read_yaml_file
) -> ModelEntries:
    """Return path and options by name, or raise `MappingError`. A missing file maps nothing."""
    if not file.exists():
        return {}
    try:
        content = read_file(file)
    except YamlFileError as error:
        raise MappingError(str(error)) from None
    except FileNotFoundError:  # deleted meanwhile
        return {}
    models = content.content
    section = models.get("models", "")
    if section is None:  # `models:` without a value
        section = {}
    prefix = ("models",) if isinstance(section, dict) else ()
    if isinstance(section, dict):
        others = [str(name) for name in models if name != "models"]
        if others:
            raise MappingError(
                f"{content.locate(others[0])}: `{others[0]}` is beside `models:`; "
                "move it under `models:`, or write all models without that key"
            )
        models = section
    return parse_entries(models, file.parent, lambda *keys: content.locate(*prefix, *keys))


def parse_entries(
    models: Mapping[object, object] | Mapping[str, object],
    directory: Path,
    locate: Callable[..., str],
) -> ModelEntries:
    """Parse the entries of models; `locate` returns file and line of a key."""
    entries: ModelEntries = {}
    for name, value in models.items():
        problem = describe_wrong_name(name)
        if problem or not isinstance(name, str):
            raise MappingError(f"{locate(str(name))}: {problem}")
        try:
            entries[name.strip()] = _parse_entry(value, directory)
        except (ValueError, RuntimeError) as error:
            key = str(error).partition("`")[2].partition("`")[0]
            raise MappingError(f"{locate(name, key)}: model `{name}`: {error}") from None
    return entries


def _parse_entry(value: object, directory: Path) -> tuple[Path, ModelOptions]:
    """Return path and options of one entry, or raise `ValueError` with the problem."""
    if isinstance(value, str):
        if URL.match(value):
            return Path(), parse_options(ModelOptions, {"upstream": value})
        return _parse_path(value, directory), ModelOptions()
    if not isinstance(value, dict):
        raise ValueError("expected a path or a mapping of options")
    fields = dict(value)
    if "upstream" in fields and "path" in fields:
        raise ValueError("`path` and `upstream` exclude each other")
    value = fields.pop("path", None)
    if "defaults" in fields:  # an older name
        fields["sampling"] = fields.pop("defaults")
    options = parse_options(ModelOptions, fields, others=("path",))
    path = Path() if "upstream" in fields else _parse_path(value, directory)
    check_names(options.format, options.reasoning_format)
    check_options(options)
    options = resolve_engine_paths(options, directory)
    lora = {
        name: os.path.realpath(_parse_path(file, directory, f"lora.{name}"))
        for name, file in options.lora.items()
    }
    template, preset = options.chat_template, options.sampling_preset
    if preset is not None:
        options = msgspec.structs.replace(
            options, sampling_preset=str(_parse_path(preset, directory, "sampling_preset"))
        )
    options = expand_preset(options)
    parse_preset(msgspec.structs.replace(options, force=()))  # the values may be the server's
    if template is not None:
        template = os.path.realpath(_parse_path(template, directory, "chat_template"))
    return path, msgspec.structs.replace(
        options, lora=lora, chat_template=template, **_resolve_upstream_paths(options, directory)
    )


def resolve_engine_paths(options: ModelOptions, directory: Path) -> ModelOptions:
    """Return the options with the full paths of the draft model and the projector."""
    draft, projector = options.draft_model, options.mmproj
    if draft is not None and (draft.endswith(".gguf") or "/" in draft):  # otherwise it is a name
        draft = os.path.realpath(_parse_path(draft, directory, "draft_model"))
    if projector is not None and projector != NONE:
        projector = os.path.realpath(_parse_path(projector, directory, "mmproj"))
    return msgspec.structs.replace(options, draft_model=draft, mmproj=projector)


def _resolve_upstream_paths(options: ModelOptions, directory: Path) -> dict[str, str | None]:
    """Return the paths of an upstream, relative to the file; a tokenizer may be a name instead."""
    paths = {
        name: None if value is None else str(_parse_path(value, directory, name))
        for name in ("upstream_key_file", "upstream_ca")
        for value in (getattr(options, name),)
    }
    local = None if options.tokenizer is None else _parse_path(options.tokenizer, directory)
    is_local = local is not None and local.exists()
    return paths | {"tokenizer": str(local) if is_local else options.tokenizer}


def _parse_path(value: object, directory: Path, key: str = "path") -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"`{key}`: the path is missing or not text")
    return directory / Path(value.strip()).expanduser()
