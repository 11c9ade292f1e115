"""A preset: the values that an operator sets for the requests of one model, and their rules.

`parse_preset` turns the options of a model, and the preset file that they name, into a `Preset`. It
separates values that are forced from those that are defaults, so that nothing has to look at rules
while a request is served (`apply`). A mistake is a `PresetError`, at start-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec
import yaml
from msgspec import Struct

from dragoman.presets.options import DEFAULT_MAX_TOOL_CALLS, PresetValue, SharedOptions
from dragoman.presets.sampling import NO_VALUES, PresetSampling, decode_sampling
from dragoman.types import Json, Sampling

MAX_FILE_SIZE = 1 << 20
STOP, SYSTEM = "stop", "system"
OptionsT = TypeVar("OptionsT", bound=SharedOptions)
Rule: TypeAlias = Literal["default", "force", "add"]


class PresetError(ValueError):
    """An option of a preset is not valid. The message is one clause for the operator."""


class ExampleMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message before those of every conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Preset(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operator's values for the requests of one model."""

    system: str | None = None
    system_rule: Rule = "default"  # both other rules put it before the client's
    stop: tuple[str, ...] | None = None
    stop_rule: Rule = "default"
    variables: dict[str, Json] = {}  # of the chat template
    forced_variables: dict[str, Json] = {}
    sampling: PresetSampling = PresetSampling()
    forced_sampling: PresetSampling = PresetSampling()
    max_tool_calls: int = DEFAULT_MAX_TOOL_CALLS
    lenient_tools: bool = False  # tool results may answer no call
    additive: frozenset[str] = frozenset()  # fields of `sampling` to which the client's are added
    messages: tuple[ExampleMessage, ...] = ()  # before those of the client, after its system prompt
    lora: tuple[str, ...] = ()  # adapters of requests that name none

    @property
    def changes_sampling(self) -> bool:
        """Whether requests get sampling fields, stop strings or adapters from here."""
        no_values = self.sampling == self.forced_sampling == NO_VALUES
        return not no_values or self.stop is not None or bool(self.lora)

    @property
    def changes_chats(self) -> bool:
        """Whether chats get messages or template variables from here."""
        return bool(self.system or self.messages or self.variables or self.forced_variables)

    def get_sampling(self, defaults: Sampling) -> Sampling:
        """Return the sampling of a request that asks for nothing, with the model's defaults."""
        return self.forced_sampling.sampling.with_defaults(
            self.sampling.sampling.with_defaults(defaults)
        )


def expand_preset(options: OptionsT) -> OptionsT:
    """Return the options with the fields of the preset file among the others, which win."""
    if options.sampling_preset is None:
        return options
    values = _read_file(options.sampling_preset)
    stop = values.pop(STOP, None) if options.stop is None else options.stop
    values.pop(STOP, None)
    sampling = values | options.sampling
    return msgspec.structs.replace(options, sampling=sampling, stop=stop, sampling_preset=None)


def parse_preset(options: SharedOptions) -> Preset:
    """Return what the options come to, or raise `PresetError`."""
    options = expand_preset(options)
    values = {name: _to_value(value, name) for name, value in options.sampling.items()}
    variables = {name: _to_value(value, name) for name, value in options.template_vars.items()}
    system, stop = _to_value(options.system, SYSTEM), _to_value(options.stop, STOP)
    forced = set(options.force)
    _check_forced(forced, {SYSTEM: system, STOP: stop, **variables, **values})
    return _parse_sampling(
        Preset(
            system=_parse_system(system.override),
            system_rule=_get_rule(system, SYSTEM, forced),
            stop=_parse_stop(stop.override),
            stop_rule=_get_rule(stop, STOP, forced),
            variables=_select(variables, forced, force=False),
            forced_variables=_select(variables, forced, force=True),
            lenient_tools=bool(options.lenient_tools),
            max_tool_calls=options.max_tool_calls or DEFAULT_MAX_TOOL_CALLS,
        ),
        values,
        forced,
    )


def _parse_sampling(preset: Preset, values: dict[str, PresetValue], forced: set[str]) -> Preset:
    """Add the sampling fields to a preset."""
    added = {name: value for name, value in values.items() if value.additive}
    try:
        return msgspec.structs.replace(
            preset,
            sampling=decode_sampling(_select(values, forced, force=False)),
            forced_sampling=decode_sampling(_select(values, forced, force=True)),
            additive=frozenset(decode_sampling(_select(added, forced, force=False)).names),
        )
    except ValueError as error:
        raise PresetError(str(error)) from None


def _read_file(file: str) -> dict[str, Json]:
    """Return the fields of a preset file."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as stream:
            content = yaml.safe_load(stream.read(MAX_FILE_SIZE))
    except OSError as error:
        raise PresetError(f"cannot read the sampling preset {file}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise PresetError(f"the sampling preset {file} is not valid YAML") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise PresetError(f"the sampling preset {file} is not a mapping of sampling fields")
    return content


def _to_value(value: Json, name: str) -> PresetValue:
    """Return a value with its rule; a plain value is a default."""
    if isinstance(value, PresetValue):
        return value
    if not isinstance(value, Mapping) or "override" not in value:
        return PresetValue(override=value)
    try:
        return msgspec.convert(value, PresetValue)
    except msgspec.ValidationError:
        raise PresetError(
            f"`{name}` takes a value, or a mapping of `override`, `force` and `additive`"
        ) from None


def _check_forced(forced: set[str], values: Mapping[str, PresetValue]) -> None:
    """Reject names to force that have no value."""
    for name in sorted(forced):
        if values.get(name, PresetValue()).override is None:
            raise PresetError(f"`force` names `{name}`, which has no value")


def _get_rule(value: PresetValue, name: str, forced: set[str]) -> Rule:
    if value.force or name in forced:
        return "force"
    return "add" if value.additive else "default"


def _select(values: Mapping[str, PresetValue], forced: set[str], *, force: bool) -> dict[str, Json]:
    """Return the values that are forced, or those that are not."""
    return {
        name: value.override
        for name, value in values.items()
        if value.override is not None and (_get_rule(value, name, forced) == "force") == force
    }


def _parse_system(text: Json) -> str | None:
    if text is not None and not isinstance(text, str):
        raise PresetError("`system` must be text")
    return text


def _parse_stop(stop: Json) -> tuple[str, ...] | None:
    texts = [stop] if isinstance(stop, str) else stop
    if texts is None:
        return None
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise PresetError("`stop` must be text or a list of texts")
    return tuple(text for text in texts if text)
