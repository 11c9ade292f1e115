"""The mapping file `models.yaml`: names that an operator gives to models, and options to run them.

    smollm2: smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
    writer: {path: big.gguf, context: 16384, lora: {poet: poet.gguf}, defaults: {temperature: 0.3}}

The same may be under a key `models:`. Relative paths start at the file. An invalid entry is skipped
with a log line that says why; it never stops the server.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import yaml

from dragoman.engines.options import EngineOptions
from dragoman.models.output_format import check_names
from dragoman.types import Sampling

log = logging.getLogger("dragoman.catalog")

MAX_BYTES = 4 << 20


class ModelOptions(
    EngineOptions, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The operator's options for a model; None is "not set"."""

    engine: str | None = None
    lora: dict[str, str] = msgspec.field(default_factory=dict)  # adapter -> file
    chat_template: str | None = None  # a file with a template
    format: str | None = None  # tool call format; None is detected
    reasoning_format: str | None = None  # reasoning format; None is detected
    keep_alive: float | None = None  # seconds; -1 is forever
    defaults: Sampling = Sampling()
    embeddings: bool | None = None
    pin: bool | None = None

    def with_defaults(self, defaults: ModelOptions) -> ModelOptions:
        """Return these options, with `defaults` for those that are not set."""
        values = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None and name not in ("lora", "defaults")
        }
        values["lora"] = defaults.lora | self.lora
        values["defaults"] = self.defaults.with_defaults(defaults.defaults)
        return msgspec.structs.replace(defaults, **values)


_warned: dict[Path, tuple[int, set[str]]] = {}


def _warn_once(file: Path, problem: str) -> None:
    """Log a problem of a file once, until the file changes."""
    stamp = file.stat().st_mtime_ns
    known_stamp, problems = _warned.get(file, (stamp, set()))
    if known_stamp != stamp:
        problems = set()
    if problem not in problems:
        log.warning("%s: %s", file.name, problem)
    _warned[file] = (stamp, problems | {problem})


def read_mapping(file: Path) -> dict[str, tuple[Path, ModelOptions]]:
    """Return path and options by name. A missing or invalid file maps nothing."""
    models = _load_yaml(file)
    mapping: dict[str, tuple[Path, ModelOptions]] = {}
    for name, value in models.items():
        if not isinstance(name, str) or not name.strip():
            _warn_once(file, f"skipped {name!r}: not a name")
            continue
        try:
            mapping[name.strip()] = _parse_entry(value, file.parent)
        except (ValueError, RuntimeError) as error:
            _warn_once(file, f"skipped `{name}`: {error}")
    return mapping


def _load_yaml(file: Path) -> dict[object, object]:
    try:
        if not file.exists():
            return {}
        if file.stat().st_size > MAX_BYTES:
            raise ValueError("the file is too large")
        content = yaml.safe_load(file.read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        log.warning("cannot read %s: %s", file.name, error)
        return {}
    if isinstance(content, dict) and isinstance(content.get("models"), dict):
        content = content["models"]
    if content is None:
        return {}
    if not isinstance(content, dict):
        log.warning("%s is not a mapping of names", file.name)
        return {}
    return content


def _parse_entry(value: object, directory: Path) -> tuple[Path, ModelOptions]:
    """Return path and options of one entry, or raise `ValueError` with the problem."""
    if isinstance(value, str):
        return _parse_path(value, directory), ModelOptions()
    if not isinstance(value, dict):
        raise ValueError("expected a path or a mapping of options")
    fields = dict(value)
    path = _parse_path(fields.pop("path", None), directory)
    options = msgspec.convert(fields, ModelOptions)
    check_names(options.format, options.reasoning_format)
    lora = {name: str(_parse_path(file, directory)) for name, file in options.lora.items()}
    template = options.chat_template
    return path, msgspec.structs.replace(
        options,
        lora=lora,
        chat_template=str(_parse_path(template, directory)) if template is not None else None,
    )


def _parse_path(value: object, directory: Path) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("the path is missing or not a string")
    return directory / Path(value.strip()).expanduser()
