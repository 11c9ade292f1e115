"""The declaration of an option, and the fields of a Struct with their declarations."""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import replace

from dragoman.options.units import format_bytes, format_seconds

Unit: TypeAlias = Literal["", "bytes", "seconds", "tokens"]
METAVARS = {"bytes": "SIZE", "seconds": "DURATION", "tokens": "TOKENS"}
TYPE_METAVARS = {int: "COUNT", float: "NUMBER"}


class Setting(Struct, frozen=True, kw_only=True):
    """What is known of an option besides its name, type and default."""

    help: str  # one phrase without a full stop; the default is added to it
    group: str = ""  # of `--help` and the documentation; see `config.settings.GROUPS`
    metavar: str = ""  # what a value looks like in `--help`; "" is derived; NAME=X takes a mapping
    unit: Unit = ""  # `bytes`, `seconds` and `tokens` read values such as 4GB, 5m and 8k
    minimum: float | None = None
    smallest: int | None = None  # the least that is not 0, where 0 has a meaning of its own
    maximum: float | None = None
    above: float | None = None  # the value must be greater
    can_be_forever: bool = False  # a duration that may be -1 or `forever`
    choices: tuple[str, ...] = ()  # the only texts allowed; upper and lower case are equal
    schemes: tuple[str, ...] = ()  # of a URL, such as `http`
    default: str = ""  # the default in words, where the value itself says too little
    is_secret: bool = False  # never shown
    is_path: bool = False  # a file or directory; relative to the YAML file that names it
    aliases: tuple[str, ...] = ()  # other spellings of the flag, such as `--ctx-size`
    key: str = ""  # in its section of dragoman.yaml; "" is the name without `<section>_`
    is_file_only: bool = False  # has no flag and no environment variable
    is_in_file: bool = True  # may be set in dragoman.yaml
    is_live: bool = False  # a running server takes a new value when it reads its settings again


class OptionField(Struct, frozen=True, kw_only=True):
    """One field of a Struct, with its declaration."""

    name: str
    kind: object  # the type, without `Annotated` and `None`; that of elements for a list
    default: object
    setting: Setting
    is_list: bool = False

    @property
    def is_mapping(self) -> bool:
        return get_origin(self.kind) is dict

    @property
    def is_repeatable(self) -> bool:
        """Whether the flag may be given more than once."""
        is_text_list = self.is_list and self.kind is str
        return is_text_list or self.is_mapping or list[str] in get_args(self.kind)

    @property
    def takes_pairs(self) -> bool:
        """Whether each element is NAME=VALUE."""
        return self.is_mapping or (self.is_list and "=" in self.setting.metavar)

    @property
    def metavar(self) -> str:
        if self.setting.choices:
            return self.setting.metavar or "{" + ",".join(self.setting.choices) + "}"
        derived = METAVARS.get(self.setting.unit, "")
        if not derived and isinstance(self.kind, type):
            derived = TYPE_METAVARS.get(self.kind, "")
        return self.setting.metavar or derived or self.name.upper()

    @property
    def default_text(self) -> str:
        """The default as a user reads it; "" if there is none."""
        return self.setting.default or self.format_value(self.default)

    def format_value(self, value: object) -> str:
        """Write a value as a user would."""
        if value is None or value in ("", (), {}):
            return ""
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.setting.unit == "bytes" and isinstance(value, int):
            return format_bytes(value)
        if self.setting.unit == "seconds" and isinstance(value, int | float):
            return format_seconds(value)
        if isinstance(value, float):
            return f"{value:g}"
        if isinstance(value, dict):
            return ", ".join(f"{name}={_format_part(part)}" for name, part in value.items())
        return ", ".join(map(str, value)) if isinstance(value, tuple) else _format_part(value)


def _format_part(value: object) -> str:
    """Write a value inside another: texts as they are, everything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@cache
def list_fields(struct: type[Struct]) -> dict[str, OptionField]:
    """Return the fields of a Struct by name, also those that it inherits."""
    hints = get_type_hints(struct, include_extras=True)
    fields = {}
    for field in msgspec.structs.fields(struct):
        kind, setting = _split_annotation(hints[field.name], Setting(help=""))
        is_list = get_origin(kind) is tuple
        if is_list:
            kind, setting = _split_annotation(get_args(kind)[0], setting)
        if field.default is not NODEFAULT:
            default = field.default
        else:
            factory = field.default_factory
            default = None if factory is NODEFAULT else factory()
        fields[field.name] = OptionField(
            name=field.name, kind=kind, default=default, setting=setting, is_list=is_list
        )
    return fields


def _split_annotation(hint: object, setting: Setting) -> tuple[object, Setting]:
    """Return the type without `Annotated`, `None` and `Literal`, and the declaration in it."""
    limits: dict[str, Any] = {}
    while True:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            for item in arguments[1:]:
                if isinstance(item, Setting):
                    setting = item
                elif isinstance(item, Meta):
                    limits |= {"minimum": item.ge, "maximum": item.le, "above": item.gt}
            hint = arguments[0]
        elif origin in (Union, UnionType) and len(set(arguments) - {NoneType}) == 1:
            hint = next(item for item in arguments if item is not NoneType)
        else:
            break
    if origin is Literal:
        hint, limits["choices"] = str, arguments
    limits = {name: value for name, value in limits.items() if value is not None}
    return hint, replace(setting, **limits) if limits else setting
