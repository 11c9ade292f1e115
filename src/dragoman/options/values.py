"""Turns what a user wrote (text, or a value of YAML) into the value of an option.

A problem is an `InvalidOption`, whose text says what was expected. The caller, who knows where the
value comes from, says which option it is.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Struct

from dragoman.options.declaration import OptionField, list_fields
from dragoman.options.secrets import mask_password
from dragoman.options.type_names import describe_invalid_value
from dragoman.options.units import FOREVER, parse_bytes, parse_seconds, parse_tokens

TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
MAX_SHOWN = 80  # characters of a wrong value in a message
MAX_COUNT = 2**31 - 1  # what engines store in 32 bits
MAX_BYTES = 2**62
FEW_BYTES = 1024  # of which fewer are meant in another unit
TYPE_NAMES: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}
UNIT_NAMES = {
    "bytes": "a size such as 512MiB or 4GB",
    "seconds": "a duration such as 30s, 5m or 1h30m",
    "tokens": "a number of tokens such as 8192 or 8k",
}
UNIT_PARSERS: dict[str, Callable[[str], int | float]] = {
    "bytes": parse_bytes,
    "seconds": parse_seconds,
    "tokens": parse_tokens,
}
AnyStruct = TypeVar("AnyStruct", bound=Struct)


class InvalidOption(ValueError):
    """A value is not what the option takes, or there is no such option."""


def suggest(name: str, known: Iterable[str], min_similarity: float = 0.6) -> str:
    """Return a question that names the most similar known name, or ""."""
    names = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=min_similarity)
    return f" Did you mean `{names[close[0]]}`?" if close else ""


def parse_value(field: OptionField, value: object) -> object:
    """Return the value of an option, or raise `InvalidOption`."""
    try:
        parsed = _convert(field, value)
    except InvalidOption:
        raise
    except (ValueError, OverflowError):
        hint = suggest(value, field.setting.choices) if isinstance(value, str) else ""
        problem = f"expected {_describe(field)}{_show(field, value)}"
        raise InvalidOption(f"{problem}.{hint}" if hint else problem) from None
    for item in parsed if isinstance(parsed, tuple) else (parsed,):
        if isinstance(item, int | float) and not isinstance(item, bool):
            _check_range(field, item)
    return parsed


def parse_options(
    struct: type[AnyStruct], values: Mapping[object, object], others: Iterable[str] = ()
) -> AnyStruct:
    """Make a Struct from a mapping of YAML, or raise `InvalidOption` that names the key.

    `others` are keys that the caller read already; only a suggestion names them.
    """
    fields = list_fields(struct)
    parsed: dict[str, object] = {}
    for name, value in values.items():
        field = fields.get(name) if isinstance(name, str) else None
        if field is None:
            raise InvalidOption(
                f"there is no option `{name}`.{suggest(str(name), [*fields, *others])}"
            )
        if value is None:  # `context:` without a value
            continue
        try:
            parsed[field.name] = parse_value(field, value)
        except InvalidOption as error:
            raise InvalidOption(f"`{name}`: {error}") from None
    return msgspec.convert(parsed, struct)


def _describe(field: OptionField) -> str:
    """Say what an option takes."""
    setting = field.setting
    if setting.choices:
        *first, last = setting.choices
        return f"{', '.join(first)} or {last}" if first else last
    if setting.schemes:
        return "a URL that begins with " + " or ".join(f"{name}://" for name in setting.schemes)
    if setting.unit:
        return UNIT_NAMES[setting.unit] + (", or forever" if setting.can_be_forever else "")
    if field.takes_pairs:
        return f"{setting.metavar}, or a mapping of these"
    name = TYPE_NAMES.get(field.kind, "another type of value")
    return f"{name}, or a list of these" if field.is_list else name


def _show(field: OptionField, value: object) -> str:
    """Show a wrong value, unless it is secret."""
    text = "a number" if field.setting.is_secret else mask_password(repr(value))
    if field.kind is str and isinstance(value, int | float):
        return f", got {text}; put it in quotes"
    if field.setting.is_secret:
        return ""
    return f", got {text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + '…'}"


def _check_range(field: OptionField, number: float) -> None:
    setting = field.setting
    if setting.can_be_forever and number == FOREVER:
        return
    low, high = setting.minimum, setting.maximum
    if high is None and field.kind is int:
        high = MAX_BYTES if setting.unit == "bytes" else MAX_COUNT
    if setting.above is not None and number <= setting.above:
        rule = f"more than {setting.above:g}"
    elif low is not None and number < low:
        rule = f"at least {field.format_value(low if field.kind is float else int(low))}"
        if low == 0:
            rule = "0 or more"
    elif setting.smallest is not None and 0 < number < setting.smallest:
        rule = f"at least {field.format_value(setting.smallest)}"
    elif high is not None and number > high:
        rule = f"at most {field.format_value(high if field.kind is float else int(high))}"
    else:
        return
    more = ", or forever" if setting.can_be_forever else ""
    raise InvalidOption(f"must be {rule}{more}, got {number:.15g}{_explain_unit(field, number)}")


def _explain_unit(field: OptionField, number: float) -> str:
    """Say how to write a size that is so small that its unit is probably missing."""
    if field.setting.unit != "bytes" or not 0 < number < FEW_BYTES:
        return ""
    return f" bytes; write the unit, as in {number:g}MiB or {number:g}GiB"


def _convert(field: OptionField, value: object) -> object:
    """Convert a value to the type of the option, or raise `ValueError`."""
    return _convert_list(field, value) if field.is_list else _convert_item(field, value)


def _convert_item(field: OptionField, value: object) -> object:
    if field.is_mapping:
        value = _convert_pairs(field, value)
    if field.kind is bool:
        return _convert_bool(value)
    if field.kind in (int, float):
        return _convert_number(field, value)
    if field.kind is str:
        return _convert_text(field, value)
    kind: Any = field.kind
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidOption(describe_invalid_value(str(error))) from None


def _convert_text(field: OptionField, value: object) -> str:
    if isinstance(value, bool) and field.setting.choices:  # YAML reads `on` as true
        value = "on" if value else "off"
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    schemes = field.setting.schemes
    if schemes and value and not value.lower().startswith(tuple(f"{name}://" for name in schemes)):
        raise ValueError
    if not field.setting.choices:
        return value
    choices = {choice.lower(): choice for choice in field.setting.choices}
    if value.strip().lower() not in choices:
        raise ValueError
    return choices[value.strip().lower()]


def _convert_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else None
    if text not in (*TRUE, *FALSE):
        raise ValueError
    return text in TRUE


def _convert_number(field: OptionField, value: object) -> int | float:
    is_whole = field.kind is int
    if isinstance(value, str):
        default: Callable[[str], int | float] = int if is_whole else float
        value = UNIT_PARSERS.get(field.setting.unit, default)(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    if not math.isfinite(value) or (is_whole and value != int(value)):
        raise ValueError
    return int(value) if is_whole else float(value)


def _convert_pairs(field: OptionField, value: object) -> Mapping[object, object]:
    """Convert texts of the form NAME=VALUE to a mapping; values are read like those of YAML."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str):
        is_object = value.lstrip().startswith("{")
        value = [value] if is_object else [part for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple):
        raise ValueError
    keeps_text = get_args(field.kind) == (str, str)
    pairs: dict[object, object] = {}
    for item in value:
        if isinstance(item, str) and item.lstrip().startswith("{"):  # an object of JSON
            pairs |= dict(_convert_pairs(field, _read_yaml(item)))
            continue
        name, equals, text = item.partition("=") if isinstance(item, str) else ("", "", "")
        if not (name.strip() and equals):
            raise ValueError
        pairs[name.strip()] = text if keeps_text else _read_yaml(text)
    return pairs


def _read_yaml(text: str) -> object:
    """Read a value as YAML; text that is not YAML is itself."""
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _convert_list(field: OptionField, value: object) -> tuple[object, ...]:
    """Convert a list, a comma-separated text, or a mapping where elements are NAME=VALUE."""
    if isinstance(value, Mapping) and field.takes_pairs:
        pairs = list(value.items())
        if not all(isinstance(item, str) for pair in pairs for item in pair):
            raise ValueError
        return tuple(f"{name}={item}" for name, item in pairs)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    elif not isinstance(value, list | tuple):
        value = [value]
    if any(isinstance(item, str) and not item.strip() for item in value):
        raise InvalidOption("must not be empty")
    return tuple(_convert_item(field, item) for item in value)
