"""Where the value of each setting comes from: flags over the environment over the default."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from dragoman.config.settings import Settings
from dragoman.options import InvalidValue, OptionField, list_fields, parse_value, suggest

PREFIX = "DRAGOMAN_"


class SettingsError(ValueError):
    """A setting does not exist, or cannot have that value."""


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
    """Load the settings: flags override the environment, which overrides the defaults."""
    fields = list_settings()
    values: dict[str, object] = {}
    for name, field in fields.items():
        text = environment.get(name_variable(field))
        if text is not None:
            values[name] = _parse(field, text, name_variable(field))
    for name, value in flags.items():
        if value is None:
            continue
        if name not in fields:
            raise SettingsError(f"There is no setting `{name}`.{suggest(name, fields)}")
        values[name] = _parse(fields[name], value, name_flag(fields[name]))
    return msgspec.convert(values, Settings)


def _parse(field: OptionField, value: object, where: str) -> object:
    try:
        return parse_value(field, value)
    except InvalidValue as error:
        raise SettingsError(f"{where}: {error}") from None
