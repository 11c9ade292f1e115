"""Reads dragoman.yaml: settings in sections, and models.

    server: {port: 8080}
    models:
      writer: {path: models/writer.gguf, context: 16k}
    keys: {api: [secret], admin: [other-secret]}  # or `entries`, see `dragoman.keys`
    store: {url: "sqlite:///state.db", ttl: 7d}
    limits: {memory: 12GB, keep_alive: 5m}

The section of a setting is that of its group, and its key is its name without the prefix of the
section (`store_ttl` is `ttl` in `store`). Relative paths start at the file. A key that does not
exist is an error.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from dragoman.config.paths import get_config_dir
from dragoman.config.settings import GROUPS, Settings
from dragoman.options import InvalidOption, OptionField, list_fields, parse_value, suggest
from dragoman.options.yaml_file import (
    YamlFile,
    YamlFileError,
    describe_wrong_name,
    read_yaml_file,
)

FILE_NAME = "dragoman.yaml"
MODELS = "models"  # the section that holds no settings
Sections: TypeAlias = dict[str, dict[str, OptionField]]  # settings by section and key


class ConfigFileError(ValueError):
    """dragoman.yaml cannot be read, or has a key or a value that it must not have."""


def find_file(environment: Mapping[str, str]) -> Path | None:
    """Return the configuration file of this directory, else of the user, if there is one."""
    places = (Path(FILE_NAME), get_config_dir(environment) / FILE_NAME)
    return next((path for path in places if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # such as a directory on the way that may not be searched
        raise ConfigFileError(f"{path}: {error.strerror}") from None


def name_key(field: OptionField) -> tuple[str, str]:
    """Return section and key of a setting."""
    if field.name == MODELS:
        return (MODELS, "")
    section = GROUPS.get(field.setting.group, field.setting.group)
    return section, field.setting.key or field.name.removeprefix(f"{section}_")


def list_keys() -> Sections:
    """Return the settings that a file may have, by section and key."""
    sections: Sections = {section: {} for section in GROUPS.values()}
    for field in list_fields(Settings).values():
        if field.setting.is_in_file:
            section, key = name_key(field)
            sections.setdefault(section, {})[key] = field
    return sections


def read_config_file(path: Path) -> dict[str, tuple[object, str]]:
    """Return the values of a file by the name of the setting, each with its file and line."""
    try:
        file = read_yaml_file(path)
    except YamlFileError as error:
        raise ConfigFileError(str(error)) from None
    sections = list_keys()
    values: dict[str, tuple[object, str]] = {}
    for section, content in file.content.items():
        if section not in sections or not isinstance(section, str):
            raise ConfigFileError(
                f"{file.locate(str(section))}: {_explain_section(str(section), sections)}"
            )
        if content is None:  # `server:` without a value
            continue
        if not isinstance(content, Mapping):  # and may be a secret: `keys: KEY`, `store: URL`
            raise ConfigFileError(
                f"{file.locate(section)}: `{section}` must be a mapping of settings"
            )
        if section == MODELS:
            _check_model_names(file, content)
            values[MODELS] = dict(content), file.locate(section)
        else:
            values |= _read_section(file, section, content, sections)
    return values


def _check_model_names(file: YamlFile, models: Mapping[object, object]) -> None:
    for name in models:
        if problem := describe_wrong_name(name):
            raise ConfigFileError(f"{file.locate(MODELS, str(name))}: {problem}")


def make_locator(path: Path, *section: str) -> Callable[..., str]:
    """Return a function that finds file and line of a key below a section; it reads once."""

    @cache
    def read() -> YamlFile:
        return read_yaml_file(path)

    return lambda *keys: read().locate(*section, *keys)


def locate_key(path: Path, *keys: str) -> str:
    """Return file and line of a key in a file that was read before."""
    return read_yaml_file(path).locate(*keys)


def _read_section(
    file: YamlFile,
    section: str,
    content: Mapping[object, object],
    sections: Sections,
) -> dict[str, tuple[object, str]]:
    values: dict[str, tuple[object, str]] = {}
    for key, value in content.items():
        where = file.locate(section, str(key))
        field = sections[section].get(key) if isinstance(key, str) else None
        if field is None:
            raise ConfigFileError(f"{where}: {_explain_key(section, str(key), sections)}")
        if value is None:  # `port:` without a value
            continue
        try:
            parsed = parse_value(field, _unwrap_keys(field, value))
        except InvalidOption as error:
            raise ConfigFileError(f"{where}: `{section}.{key}`: {error}") from None
        values[field.name] = _resolve_paths(field, parsed, file.path.parent), where
    return values


def _unwrap_keys(field: OptionField, value: object) -> object:
    """Return the text of API keys, which may be written as `{key: TEXT}`."""
    if not (field.setting.is_secret and field.kind is str and isinstance(value, list)):
        return value
    return [
        item["key"] if isinstance(item, Mapping) and set(item) == {"key"} else item
        for item in value
    ]


def _resolve_paths(field: OptionField, value: object, directory: Path) -> object:
    """Resolve relative paths against the directory of the file."""
    if not field.setting.is_path or not value:
        return value
    if isinstance(value, tuple):
        pairs = [str(pair).partition("=") for pair in value]
        return tuple(
            f"{name}={_resolve(path, directory)}" if equals else name
            for name, equals, path in pairs
        )
    return _resolve(str(value), directory)


def _resolve(path: str, directory: Path) -> str:
    """Resolve a path, also that of `sqlite:///PATH`; other URLs stay as they are."""
    scheme, separator, rest = path.rpartition("://")
    if not separator:
        return str(directory / Path(path).expanduser())
    if scheme != "sqlite" or not rest.startswith("/") or rest.startswith(("//", "/:")):
        return path
    return f"sqlite:///{directory / Path(rest[1:]).expanduser()}"


def _explain_section(name: str, sections: Sections) -> str:
    """Say that there is no such section, and where a setting of this name belongs."""
    field = _find_setting(name, sections)
    if field is not None:
        section, key = name_key(field)
        return f"`{name}` is not a section. Write it as `{key}` under `{section}:`."
    close = suggest(name, sections) or f" Use {', '.join(sections)}."
    return f"there is no section `{name}`.{close}"


def _explain_key(section: str, key: str, sections: Sections) -> str:
    """Say that there is no such key, and which one is meant."""
    message = f"there is no setting `{key}` in `{section}`."
    field = _find_setting(key, sections)
    if field is None and (close := suggest(key, sections[section])):
        return message + close
    if field is None:
        names = [name for keys in sections.values() for name in keys if name]
        close = suggest(key, names, min_similarity=0.75)
        field = _find_setting(close.split("`")[1], sections) if close else None
    if field is None:
        return f"{message} It has {', '.join(sections[section])}."
    other, right_key = name_key(field)
    return f"{message} Did you mean `{right_key}` in `{other}`?"


def _find_setting(name: str, sections: Sections) -> OptionField | None:
    """Find the setting with this name, or with this key in any section."""
    field = list_fields(Settings).get(name)
    if field is not None and field.setting.is_in_file and field.name != MODELS:
        return field
    return next((keys[name] for keys in sections.values() if name and name in keys), None)
