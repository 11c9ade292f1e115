"""The preset of a loaded model: the operator's values, in the variables of its chat template."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec.structs import replace

from dragoman.models.mapping import ModelOptions
from dragoman.presets import Preset, PresetError, SharedOptions, parse_preset
from dragoman.prompt.renderer import PromptRenderer
from dragoman.types import Capabilities, Json

log = logging.getLogger("dragoman.models")


def make_preset(options: SharedOptions, renderer: PromptRenderer, name: str) -> Preset:
    """Return the preset of a model, or raise `PresetError`.

    Variables that its template does not read are dropped: the server may set them for others.
    """
    preset = parse_preset(options)
    if isinstance(options, ModelOptions):
        preset = replace(preset, messages=options.messages, lora=options.default_lora)
    return replace(
        preset,
        variables=_resolve(preset.variables, renderer, name),
        forced_variables=_resolve(preset.forced_variables, renderer, name),
    )


def check_public_prompts(options: SharedOptions, capabilities: Capabilities) -> None:
    """Raise `PresetError` if prompts are to be public and the engine cannot share them."""
    if options.public_prompt and not capabilities.public_prefixes:
        raise PresetError(
            "`public_prompt` has no effect with this engine; llama.cpp needs `cache_ram` above 0, "
            "and neither a draft model nor LoRA adapters"
        )


def _resolve(variables: Mapping[str, Json], renderer: PromptRenderer, name: str) -> dict[str, Json]:
    resolved: dict[str, Json] = {}
    for variable, value in variables.items():
        result = renderer.resolve_variable(variable, value)
        if isinstance(result, str):
            log.warning("%s: `%s` has no effect: %s", name, variable, result)
        else:
            resolved |= result
    return resolved
