"""`dragoman config`: print the settings in effect, and where each comes from."""

from __future__ import annotations

import argparse
import json

from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import add_flags, add_usage
from dragoman.config import GROUPS, Configuration, Origin, Settings, list_settings
from dragoman.options import HIDDEN, OptionField, mask_password


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS]",
        examples=("dragoman config", "dragoman config --config ./other.yaml --json"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    configuration: Configuration = arguments.configuration
    check_settings(settings)
    if arguments.json:
        print(json.dumps(build_report(configuration), ensure_ascii=False, indent=2))
    else:
        print(format_report(configuration))


def check_settings(settings: Settings) -> None:
    """Check what no single setting shows: the options of models and the entries of keys."""
    from dragoman.models.mapping import MappingError, read_mapping
    from dragoman.runtime import (
        build_key_store,
        find_models_file,
        make_model_options,
        parse_configured_models,
    )

    without_files = replace(settings, api_key_file="")  # which others may not be able to read
    build_key_store(without_files, lambda: without_files)
    make_model_options(settings)
    try:
        parse_configured_models(settings)
        read_mapping(find_models_file(settings))
    except MappingError as error:
        raise CommandFailed(str(error)) from None


def build_report(configuration: Configuration) -> dict[str, object]:
    """Return value and origin of every setting, as JSON has it."""
    return {
        name: {
            "value": to_builtins(mask(field, getattr(configuration.settings, name))),
            "from": configuration.origins[name].kind,
            "at": configuration.origins[name].name or None,
        }
        for name, field in list_settings().items()
    }


def format_report(configuration: Configuration) -> str:
    """Write the settings in their groups, those that are not set by anyone included."""
    settings = configuration.settings
    lines = [f"file: {settings.config or 'none'}"]
    for group in GROUPS:
        fields = [field for field in list_settings().values() if field.setting.group == group]
        rows = [
            (
                field.name,
                _format(field, settings),
                _format_origin(configuration.origins[field.name]),
            )
            for field in fields
            if field.name != "config"
        ]
        if rows:
            lines += ["", f"{group}:", *_align(rows)]
    return "\n".join(lines)


def mask(field: OptionField, value: object) -> object:
    """Hide a secret: a key, or the password in a URL."""
    if field.setting.is_secret and value:
        return [HIDDEN for _ in value] if isinstance(value, tuple) else HIDDEN
    if isinstance(value, tuple):
        return [mask_password(str(item)) if isinstance(item, str) else item for item in value]
    return mask_password(value) if isinstance(value, str) else value


def _format(field: OptionField, settings: Settings) -> str:
    value = mask(field, getattr(settings, field.name))
    if isinstance(value, dict) and field.setting.is_file_only:  # names of models
        return ", ".join(map(str, value)) or "-"
    text = field.format_value(tuple(value) if isinstance(value, list) else value)
    return text or field.setting.default or "-"


def _format_origin(origin: Origin) -> str:
    return origin.name or origin.kind


def _align(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"  {name:<{widths[0]}}  {text:<{widths[1]}}  {origin}" for name, text, origin in rows]
