"""What `/set` and `--set` set: sampling fields, and a few names of its own.

The sampling fields are those of `types.Sampling`, with their types, so a new field can be set
without a change here. They are sent with each request, and the server checks them. `think`,
`format`, `verbose`, `reasoning` and `system` have functions of their own.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.conversation.conversation import ChatOptions
from dragoman.options import suggest
from dragoman.types import Json, Sampling

DEFAULT = "default"  # as a value: the model's own default
# Names in Ollama and in OpenAI's API.
ALIASES = {
    "num_predict": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "typical": "typical_p",
}
EFFORTS = {"on": "medium", "true": "medium", "off": "none", "false": "none"} | {
    name: name for name in ("none", "minimal", "low", "medium", "high", "xhigh", "max")
}
LOAD_TIME = {"num_ctx": "context", "num_gpu": "gpu-layers", "num_thread": "threads"}
HELP = {
    "think": "on, off, low, medium or high: how much the model reasons",
    "format": "json, or a file with a JSON schema that answers must match",
    "verbose": "on or off: show statistics after every answer",
    "reasoning": "on or off: show the reasoning of the model",
}


def list_parameters() -> dict[str, object]:
    """Return the types of the sampling parameters by name."""
    return {name: _strip_none(hint) for name, hint in get_type_hints(Sampling).items()} | {
        "stop": tuple[str, ...]
    }


def list_names() -> list[str]:
    return sorted([*list_parameters(), *HELP])


def set_option(options: ChatOptions, words: str) -> None:
    """Set what `NAME VALUE` says. A wrong name or value is a `CommandFailed` that says why."""
    name, _, value = words.strip().partition(" ")
    name, value = name.lower().replace("-", "_"), value.strip()
    if name == "parameter":  # Ollama's spelling
        return set_option(options, value)
    if name.startswith("no") and name[2:] in HELP:
        name, value = name[2:], "off"
    setter = _SETTERS.get(name)
    if setter is not None:
        return setter(options, value)
    return _set_parameter(options, ALIASES.get(name, name), value)


def _set_parameter(options: ChatOptions, name: str, text: str) -> None:
    kinds = list_parameters()
    if name in LOAD_TIME:
        raise CommandFailed(f"`{name}` applies when a model is loaded: use --{LOAD_TIME[name]}.")
    if name not in kinds:
        raise CommandFailed(f"There is no parameter `{name}`.{suggest(name, list_names())}")
    if text.lower() == DEFAULT:
        options.parameters.pop(name, None)
        return
    options.parameters[name] = parse_parameter(name, text, kinds[name])


def parse_parameter(name: str, text: str, kind: Any) -> Json:
    """Parse the value of a parameter; a list is written as words or as JSON."""
    value: Json = text
    if get_origin(kind) in (tuple, list):
        value = _parse_list(text)
    elif get_origin(kind) is dict:
        value = _parse_json(name, text)
    try:
        return msgspec.to_builtins(msgspec.convert(value, kind, strict=False))
    except msgspec.ValidationError:
        raise CommandFailed(f"`{name}` takes {_describe_kind(kind)}, not {text!r}.") from None


def _parse_list(text: str) -> list[Json]:
    if text.startswith("["):
        try:
            return list(json.loads(text))
        except ValueError:
            pass
    try:
        return list(shlex.split(text))
    except ValueError:
        raise CommandFailed(f"A quote is not closed in {text!r}.") from None


def _parse_json(name: str, text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        raise CommandFailed(f'`{name}` takes JSON, like {{"1": -100}}.') from None


def _describe_kind(kind: object) -> str:
    if get_origin(kind) in (tuple, list):
        return "a list"
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    return names.get(kind, "another value") if isinstance(kind, type) else "another value"


def _strip_none(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    others = [item for item in get_args(hint) if item is not NoneType]
    return others[0] if len(others) == 1 else hint


def _set_think(options: ChatOptions, value: str) -> None:
    level = value.lower() or "on"
    if level == DEFAULT:
        options.parameters.pop("reasoning_effort", None)
    elif level in EFFORTS:
        options.parameters["reasoning_effort"] = EFFORTS[level]
    else:
        raise CommandFailed(f"`think` takes on, off, low, medium or high, not {value!r}.")


def _set_format(options: ChatOptions, value: str) -> None:
    if value.lower() in ("off", DEFAULT):
        options.parameters.pop("response_format", None)
    elif value.lower() in ("json", ""):
        options.parameters["response_format"] = {"type": "json_object"}
    else:
        path = Path(os.path.expanduser(strip_quotes(value)))
        schema = {"name": path.stem or "answer", "schema": _read_schema(path)}
        options.parameters["response_format"] = {"type": "json_schema", "json_schema": schema}


def _read_schema(path: Path) -> Json:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"Cannot read the schema {path}: {error.strerror}.") from None
    except ValueError:
        raise CommandFailed(f"The schema {path} is not JSON.") from None


def _parse_switch(name: str, value: str, default: bool) -> bool:
    if value.lower() == DEFAULT:
        return default
    if value.lower() not in ("", "on", "off", "true", "false"):
        raise CommandFailed(f"`{name}` takes on or off, not {value!r}.")
    return value.lower() in ("", "on", "true")


def _set_verbose(options: ChatOptions, value: str) -> None:
    options.is_verbose = _parse_switch("verbose", value, default=False)


def _set_quiet(options: ChatOptions, value: str) -> None:
    options.is_verbose = not _parse_switch("quiet", value, default=True)


def _set_reasoning(options: ChatOptions, value: str) -> None:
    options.shows_reasoning = _parse_switch("reasoning", value, default=True)


def _set_system(options: ChatOptions, value: str) -> None:
    options.system = None if value.lower() == DEFAULT else strip_quotes(value) or None


def strip_quotes(text: str) -> str:
    """Remove the quotes around a text."""
    text = text.strip()
    for quote in ('"""', '"'):
        if len(text) >= 2 * len(quote) and text.startswith(quote) and text.endswith(quote):
            return text[len(quote) : -len(quote)]
    return text


_SETTERS: dict[str, Callable[[ChatOptions, str], None]] = {
    "think": _set_think,
    "format": _set_format,
    "verbose": _set_verbose,
    "quiet": _set_quiet,
    "reasoning": _set_reasoning,
    "system": _set_system,
}


def describe_options(options: ChatOptions) -> Iterable[tuple[str, str]]:
    """Yield what is set, for `/set` without a name."""
    yield "system", options.system or "not set"
    for name, value in options.parameters.items():
        yield name, json.dumps(value, ensure_ascii=False)
    yield "verbose", "on" if options.is_verbose else "off"
    yield "reasoning", "on" if options.shows_reasoning else "off"
