"""The mapping file `models.yaml`: names an operator gives to models, and how to run them.

    smollm2: smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
    writer: {path: big.gguf, context: 16384, lora: {poet: poet.gguf}, defaults: {temperature: 0.3}}

The same may stand under a key `models:`. Relative paths start at the file. What cannot be
understood is left out with a line in the log that says why, and never stops the server.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from dragoman.models.output_format import check_names
from dragoman.types import Sampling

log = logging.getLogger("dragoman.catalog")

MAX_BYTES = 4 << 20


class ModelOptions(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What an operator chose for a model; None is "not said"."""

    engine: str | None = None
    context: int | None = None
    slots: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    lora: dict[str, str] = {}  # adapter -> file
    chat_template: str | None = None  # a file with a template
    format: str | None = None  # how tool calls are written, where that is not found by itself
    reasoning_format: str | None = None  # how thoughts are written, likewise
    keep_alive: float | None = None  # seconds; -1 is for ever
    defaults: Sampling = Sampling()
    embeddings: bool | None = None
    pin: bool | None = None

    def with_defaults(self, defaults: ModelOptions) -> ModelOptions:
        """This layer on top of another."""
        said = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None and name not in ("lora", "defaults")
        }
        said["lora"] = defaults.lora | self.lora
        said["defaults"] = self.defaults.with_defaults(defaults.defaults)
        return msgspec.structs.replace(defaults, **said)


_warned: dict[Path, tuple[int, set[str]]] = {}


def _warn_once(file: Path, what: str) -> None:
    """Say what is wrong with a file once, until it changes."""
    stamp = file.stat().st_mtime_ns
    known, said = _warned.get(file, (stamp, set()))
    if known != stamp:
        said = set()
    if what not in said:
        log.warning("%s: %s", file.name, what)
    _warned[file] = (stamp, said | {what})


def read_mapping(file: Path) -> dict[str, tuple[Path, ModelOptions]]:
    """Name -> path and settings. A file that is not there or not valid maps nothing."""
    models = _load_yaml(file)
    mapping: dict[str, tuple[Path, ModelOptions]] = {}
    for name, value in models.items():
        if not isinstance(name, str) or not name.strip():
            _warn_once(file, f"{name!r} is not a name, left out")
            continue
        try:
            mapping[name.strip()] = _parse_entry(value, file.parent)
        except (ValueError, RuntimeError) as error:
            _warn_once(file, f"`{name}` is left out: {error}")
    return mapping


def _load_yaml(file: Path) -> dict[Any, Any]:
    try:
        if not file.exists():
            return {}
        if file.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        content = yaml.safe_load(file.read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        log.warning("%s cannot be read, no names from it: %s", file.name, error)
        return {}
    if isinstance(content, dict) and isinstance(content.get("models"), dict):
        content = content["models"]
    if content is None:
        return {}
    if not isinstance(content, dict):
        log.warning("%s holds no names", file.name)
        return {}
    return content


def _parse_entry(value: Any, folder: Path) -> tuple[Path, ModelOptions]:
    """Path and settings of one entry, or `ValueError` with what is wrong."""
    if isinstance(value, str):
        return _parse_path(value, folder), ModelOptions()
    if not isinstance(value, dict):
        raise ValueError("it is neither a path nor a set of options")
    options = dict(value)
    path = _parse_path(options.pop("path", None), folder)
    chosen = msgspec.convert(options, ModelOptions)
    check_names(chosen.format, chosen.reasoning_format)
    lora = {name: str(_parse_path(file, folder)) for name, file in chosen.lora.items()}
    template = chosen.chat_template
    return path, msgspec.structs.replace(
        chosen,
        lora=lora,
        chat_template=str(_parse_path(template, folder)) if template is not None else None,
    )


def _parse_path(value: object, folder: Path) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("its path is missing or not a text")
    return folder / Path(value.strip()).expanduser()
