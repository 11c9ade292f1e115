"""Where the value of each setting comes from: flag, environment, dragoman.yaml or default.

The file is the one of `--config`, else of `DRAGOMAN_CONFIG`. The command line also searches for
`./dragoman.yaml` and then `~/.config/dragoman/dragoman.yaml`; a program that embeds the server
(`dragoman.app`) does not.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.config.file import ConfigFileError, find_file, read_config_file
from dragoman.config.settings import Settings
from dragoman.options import InvalidOption, OptionField, list_fields, parse_value, suggest

log = logging.getLogger("dragoman.config")
PREFIX = "DRAGOMAN_"
# Variables that are not meant as settings: those of our own tests, the one that a server passes to
# its successor, and those that Kubernetes sets for a service named `dragoman`, which include
# DRAGOMAN_PORT=tcp://HOST:PORT.
OTHER_VARIABLE = re.compile(rf"{PREFIX}(TEST_\w+|HANDOVER|SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
OriginKind: TypeAlias = Literal["flag", "environment", "file", "default"]


class SettingsError(ValueError):
    """A setting does not exist, or cannot have that value."""


class Origin(Struct, frozen=True):
    """Where a value comes from."""

    kind: OriginKind
    name: str = ""  # the flag, the variable, or file and line


class Configuration(Struct, frozen=True):
    """The settings, and where each comes from."""

    settings: Settings
    origins: dict[str, Origin]
    warnings: tuple[str, ...] = ()
    # Reads the same file again, with the same flags and environment.
    load_again: Callable[[], Configuration] | None = None

    def list_exposed_secrets(self) -> list[str]:
        """Return the flags whose values are secret, and which every user of the machine can see."""
        return [
            name_flag(field)
            for name, field in list_settings().items()
            if field.setting.is_secret and self.origins[name].kind == "flag"
        ]

    def reload(self) -> Settings:
        """Return the settings as they are now, or raise `SettingsError`."""
        return self.settings if self.load_again is None else self.load_again().settings


def list_settings() -> dict[str, OptionField]:
    """Return the declarations of all settings by name."""
    return list_fields(Settings)


def name_flag(field: OptionField) -> str:
    """Return the flag of a setting."""
    return "--" + field.name.replace("_", "-")


def name_variable(field: OptionField) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + field.name.upper()


def load(flags: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Settings:
    """Load the settings of a program that embeds the server, and log the warnings."""
    configuration = load_configuration(flags, environment)
    log_warnings(configuration)
    return configuration.settings


def log_warnings(configuration: Configuration) -> None:
    for warning in configuration.warnings:
        log.warning("%s", warning)


def load_configuration(
    flags: Mapping[str, object],
    environment: Mapping[str, str] = os.environ,
    *,
    search: bool = False,
) -> Configuration:
    """Load the settings and where each comes from; with `search`, look for a file, too."""
    given, origins = _read_variables(environment)
    for name, value in _read_flags(flags).items():
        given[name], origins[name] = value, Origin("flag", name_flag(list_settings()[name]))
    values: dict[str, object] = {}
    try:
        file = Path(str(given["config"])) if given.get("config") else None
        if file is None and search:
            file = find_file(environment)
        entries = {} if file is None else read_config_file(file)
    except ConfigFileError as error:
        raise SettingsError(str(error)) from None
    if file is not None:
        for name, (value, where) in entries.items():
            values[name] = value
            origins.setdefault(name, Origin("file", where))
        given["config"] = str(file)
        origins.setdefault("config", Origin("default", "found"))
    for name in list_settings():
        origins.setdefault(name, Origin("default"))
    try:
        settings = msgspec.convert(values | given, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(str(error)) from None
    return Configuration(
        settings,
        origins,
        tuple(_list_unknown_variables(environment)),
        lambda: load_configuration({**flags, "config": given.get("config")}, environment),
    )


def _read_flags(flags: Mapping[str, object]) -> dict[str, object]:
    fields = list_settings()
    values: dict[str, object] = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in fields:
            raise SettingsError(f"There is no setting `{name}`.{suggest(name, fields)}")
        values[name] = _parse(fields[name], value, name_flag(fields[name]))
    return values


def _read_variables(
    environment: Mapping[str, str],
) -> tuple[dict[str, object], dict[str, Origin]]:
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    for name, field in list_settings().items():
        variable = name_variable(field)
        text = environment.get(variable)
        if not text or field.setting.is_file_only:  # empty: not set
            continue
        if name != "port" or not SERVICE_ADDRESS.match(text):
            values[name] = _parse(field, text, variable)
            origins[name] = Origin("environment", variable)
    return values, origins


def _list_unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Say which variables look like settings and are none."""
    known = {name_variable(f) for f in list_settings().values() if not f.setting.is_file_only}
    return [
        f"{name} has no effect: there is no such setting.{suggest(name, known)}"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known and not OTHER_VARIABLE.fullmatch(name)
    ]


def _parse(field: OptionField, value: object, where: str) -> object:
    try:
        parsed = parse_value(field, value)
    except InvalidOption as error:
        raise SettingsError(f"{where}: {error}") from None
    if field.setting.is_path and isinstance(parsed, str) and parsed.startswith("~"):
        return str(Path(parsed).expanduser())
    return parsed
