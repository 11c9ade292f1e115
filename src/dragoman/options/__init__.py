"""How an option is declared and how its value is read, for settings and for options of models.

An option is a field of a Struct whose type is `Annotated[..., Setting(help="...")]`. That says
everything about the option: help text, group, unit, range. Flags, environment variables, YAML
files, `--help`, `dragoman config` and the documentation are derived from it, so nothing about an
option is written twice. This package imports nothing of ours.
"""

from dragoman.options.declaration import OptionField, Setting, list_fields
from dragoman.options.secrets import HIDDEN, mask_password
from dragoman.options.values import InvalidOption, parse_options, parse_value, suggest

__all__ = [
    "HIDDEN",
    "InvalidOption",
    "OptionField",
    "Setting",
    "list_fields",
    "mask_password",
    "parse_options",
    "parse_value",
    "suggest",
]
