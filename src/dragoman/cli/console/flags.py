"""Adds the flags that set `config.Settings` to a parser, in the groups of their declarations."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from dragoman.config import GROUPS, list_settings, name_flag
from dragoman.options import OptionField

ALWAYS = ("config",)  # flags of every command that has settings
COMMON = ("models_dir", "models_file", "log_level")
CLIENT_TLS = ("ca_file", "client_cert", "client_key")
REMOTE = ("url", "api_key", "log_level", *CLIENT_TLS)  # of commands that use a server at a URL
CLIENT = (*REMOTE, "host", "port")  # of those that use one on this machine, too
ADMIN = (*CLIENT, "admin_key")  # of those that change what it has loaded
MODEL_SECTIONS = (
    "engine",
    "upstream",
    "formats",
)  # of the settings that a command needs to load a model


def add_usage(parser: argparse.ArgumentParser, usage: str, *, examples: tuple[str, ...]) -> None:
    """Let `--help` begin with the usage of the command and end with examples."""
    lines = "\n".join(f"  {example}" for example in examples)
    parser.usage = f"{parser.prog} {usage}"
    parser.epilog = f"examples:\n{lines}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def list_model_settings() -> tuple[str, ...]:
    """List the settings of commands that load a model."""
    fields = list_settings().values()
    return tuple(
        field.name for field in fields if GROUPS.get(field.setting.group) in MODEL_SECTIONS
    )


def list_server_settings() -> tuple[str, ...]:
    """List the settings of `serve`: all but those of clients."""
    fields = list_settings().values()
    return tuple(field.name for field in fields if field.setting.group != "client")


def add_flags(parser: argparse.ArgumentParser, settings: Collection[str] | None = None) -> None:
    """Add the flags of these settings, or of all settings, in their groups."""
    for group in GROUPS:
        fields = [
            field
            for name, field in list_settings().items()
            if field.setting.group == group
            and not field.setting.is_file_only
            and (settings is None or name in settings or name in ALWAYS)
        ]
        if fields:
            section = parser.add_argument_group(group)
            for field in fields:
                _add_flag(section, field)


def _add_flag(section: argparse._ArgumentGroup, field: OptionField) -> None:
    names = (name_flag(field), *field.setting.aliases)
    text = _make_help(field)
    if field.kind is bool:
        section.add_argument(
            *names, dest=field.name, action=argparse.BooleanOptionalAction, help=text
        )
    elif field.is_repeatable:
        section.add_argument(
            *names, dest=field.name, action="append", metavar=field.metavar, help=text
        )
    else:
        section.add_argument(*names, dest=field.name, metavar=field.metavar, help=text)


def _make_help(field: OptionField) -> str:
    setting = field.setting
    text = setting.help
    if setting.choices and setting.metavar:  # else the metavar shows them
        text += ": " + ", ".join(setting.choices)
    if field.is_repeatable:
        text += "; may be repeated"
    if field.default_text:
        text += f" (default: {field.default_text})"
    return text.replace("%", "%%")
