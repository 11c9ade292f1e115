"""Opens the catalog of the models that the settings and the command line name.

The settings of the server become the options that every model has by default. The model of the
command line (a name, a path, a directory, or what `--upstream` serves) is put before all others, so
that it is the default model. Mistakes are a `StartupError`, before anything is loaded.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from dragoman import config
from dragoman.config import Settings
from dragoman.engines.llamacpp.loading.settings import check_options
from dragoman.engines.options import EngineOptions
from dragoman.engines.remote.options import OWN_FIELDS, UPSTREAM_FIELDS
from dragoman.errors import DragomanError, StartupError, Unavailable
from dragoman.models.catalog import ModelCatalog, ModelSource, list_names
from dragoman.models.downloads.hub import format_hub_name, is_hub_name, translate_hub_name
from dragoman.models.loaders.loader import check_engine_name
from dragoman.models.mapping import (
    MappingError,
    ModelEntries,
    ModelOptions,
    parse_entries,
    resolve_engine_paths,
)
from dragoman.models.name_index import normalize_name
from dragoman.models.output_format import FormatOverrides, check_names
from dragoman.models.upstream.sources import open_upstream
from dragoman.options import InvalidOption
from dragoman.options.pairs import read_paths, read_values
from dragoman.presets import PresetError, expand_preset, parse_preset
from dragoman.presets.options import PRESET_FIELDS

log = logging.getLogger("dragoman.runtime")

WINDOWS_PATH = re.compile(r"([A-Za-z]):[\\/]")


def open_catalog(
    settings: Settings, model: str | None = None, *, may_wait: bool = False
) -> ModelCatalog:
    """Read the catalog of models; the model named on the command line comes first.

    With `may_wait`, a server of `--upstream` that is not up yet sets `listing_error`.
    """
    root = settings.models_path
    _check_models_directory(root)
    file = find_models_file(settings)
    try:
        catalog = ModelCatalog(
            root, file, make_model_options(settings), parse_configured_models(settings)
        )
        catalog.refresh()
    except MappingError as error:
        raise StartupError(str(error)) from None
    sources: list[ModelSource] = []
    if settings.upstream:
        sources = open_upstream_models(catalog, settings, model, may_wait=may_wait)
    elif model is not None:
        first, *others = open_models(catalog, model, settings.default_model)
        if first.kind != "remote":  # what does not fit the model is an error
            first = replace(first, options=first.options.with_defaults(catalog.base))
        sources = [first, *others]
    add_models(catalog, settings, sources)
    return catalog


def add_models(catalog: ModelCatalog, settings: Settings, sources: Sequence[ModelSource]) -> None:
    """Put models ahead of those of the catalog; the first is the default one."""
    for source in sources:
        catalog.add(source, settings.served_name if source is sources[0] else ())
    catalog.refresh()


def open_upstream_models(
    catalog: ModelCatalog, settings: Settings, model: str | None, *, may_wait: bool = False
) -> list[ModelSource]:
    """Return the models of the server of `--upstream`; without a model, none if it is down."""
    try:
        return ask_for_models(catalog, settings, model or "")
    except DragomanError as error:
        if may_wait and isinstance(error, Unavailable):
            catalog.listing_error = error
            return []
        if model is not None:
            raise StartupError(f"--upstream {settings.upstream}: {error.message}") from None
        log.warning("--upstream %s: %s", settings.upstream, error.message)
        return []


def ask_for_models(catalog: ModelCatalog, settings: Settings, model: str) -> list[ModelSource]:
    """Return the models of the server of `--upstream`, or raise a `DragomanError`."""
    options = ModelOptions(**{name: getattr(settings, name) for name in UPSTREAM_FIELDS})
    return open_upstream(catalog, options, model, settings.upstream_key)


def find_models_file(settings: Settings) -> Path:
    """Return where the names of models are; the file may be missing unless it is set."""
    if not settings.models_file:
        return settings.models_path / "models.yaml"
    file = Path(settings.models_file)
    if not file.exists():
        raise StartupError(f"--models-file: there is no file {str(file)!r}.")
    return file


def parse_configured_models(settings: Settings) -> ModelEntries:
    """Parse `models:` of the configuration file."""
    file = Path(settings.config)
    return parse_entries(
        settings.models, file.parent, lambda *keys: config.locate_key(file, "models", *keys)
    )


def open_models(catalog: ModelCatalog, name: str, default: str = "") -> list[ModelSource]:
    """Find the model with a name or path; a directory of GGUF files is all models in it.

    The first is the default model: the one named `default`, if it is in the directory, else the
    first that can be loaded.
    """
    if catalog.find(name) is None and os.path.isdir(name) and not is_model_directory(name):
        sources = catalog.scan(Path(name))
        if not sources:
            raise StartupError(
                f"There is no GGUF file in the directory {name!r}, and no config.json of a "
                "safetensors model. Name the file or the directory of a model."
            )
        first = normalize_name(default)
        return sorted(
            sources,
            key=lambda source: (
                first not in map(normalize_name, list_names(source)),
                source.broken is not None,
            ),
        )
    source = catalog.resolve(name, paths=True)
    if source is None:
        raise make_unknown_model_error(catalog, name)
    return [source]


def is_model_directory(name: str) -> bool:
    """Whether a directory is a model of safetensors, not one of GGUF files."""
    try:
        return "config.json" in os.listdir(name)
    except OSError as error:
        raise StartupError(f"The directory {name!r} cannot be read: {error.strerror}.") from None


def make_unknown_model_error(catalog: ModelCatalog, name: str) -> StartupError:
    kind = "model"
    try:
        os.stat(os.path.expanduser(name))
    except (FileNotFoundError, ValueError):
        if name.endswith(".gguf") or name.startswith(("/", "./", "../", "~")):
            kind = "file"
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            return StartupError(f"The model {name!r} cannot be read: {error.strerror}.")
    if is_hub_name(name := translate_hub_name(name)):
        return StartupError(
            f"{name!r} is not installed. Download it from Hugging Face with "
            f"`dragoman pull {format_hub_name(name)}`, or add --pull to `dragoman serve`."
        )
    hint = catalog.suggest(name)
    if drive := WINDOWS_PATH.match(name):
        path = name[drive.end() :].replace("\\", "/")
        hint = f" In WSL, it is /mnt/{drive[1].lower()}/{path}."
    return StartupError(
        f"There is no {kind} {name!r}.{hint} "
        "`dragoman list` lists the installed models, `dragoman pull` downloads others."
    )


def _check_models_directory(root: Path) -> None:
    """Raise `StartupError` for a path that is or leads to no directory; it need not exist yet."""
    try:
        is_directory = stat.S_ISDIR(root.stat().st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartupError(f"--models-dir: cannot read {str(root)!r}: {error.strerror}.") from None
    if not is_directory:
        raise StartupError(f"--models-dir: {str(root)!r} is not a directory.")


def make_model_options(settings: Settings) -> ModelOptions:
    """Return the options that models have where they set none of their own."""
    try:
        check_engine_name(settings.engine)
        adapters = read_paths("--lora", settings.lora)
        arguments = read_values("--engine-arg", settings.engine_arg)
    except ValueError as error:
        raise StartupError(f"{str(error).removesuffix('.')}.") from None
    try:
        check_options(settings)
    except InvalidOption as error:
        raise StartupError(f"Settings contradict each other: {error}.") from None
    tools, reasoning = get_format_overrides(settings)
    with report_preset_errors():
        expanded = expand_preset(settings)
        parse_preset(expanded)
    options = ModelOptions(
        **{name: getattr(expanded, name) for name in PRESET_FIELDS},
        **{name: getattr(settings, name) for name in EngineOptions.__struct_fields__},
        **{name: getattr(settings, name) for name in UPSTREAM_FIELDS if name not in OWN_FIELDS},
        engine=settings.engine,
        engine_arg=arguments,
        chat_template=os.path.realpath(settings.chat_template) if settings.chat_template else None,
        format=tools,
        reasoning_format=reasoning,
        lora=adapters,
    )
    return resolve_engine_paths(options, Path())


@contextmanager
def report_preset_errors() -> Iterator[None]:
    """Turn an invalid option of a preset into a `StartupError`."""
    try:
        yield
    except PresetError as error:
        message = str(error)
        end = "" if message.endswith(("?", ".")) else "."
        raise StartupError(f"{message[0].upper()}{message[1:]}{end}") from None


def get_format_overrides(settings: Settings) -> FormatOverrides:
    """Return the formats that the operator chose; an unknown name is a `StartupError`."""
    overrides = settings.format or None, settings.reasoning_format or None
    try:
        check_names(*overrides)
    except ValueError as error:
        raise StartupError(str(error)) from None
    return overrides
