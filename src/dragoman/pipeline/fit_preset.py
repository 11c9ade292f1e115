"""Checks a preset against what an engine can do, when the server starts."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.pipeline.sampling import is_off
from dragoman.presets import Preset, PresetError
from dragoman.presets.sampling import PresetSampling
from dragoman.types import Capabilities


def fit_preset(preset: Preset, capabilities: Capabilities) -> Preset:
    """Return a preset without fields that are off and that the engine does not have.

    A field that is on must be supported, else this raises `PresetError`.
    """
    supported = capabilities.sampling
    return replace(
        preset,
        sampling=_fit(preset.sampling, supported),
        forced_sampling=_fit(preset.forced_sampling, supported),
    )


def _fit(values: PresetSampling, supported: frozenset[str]) -> PresetSampling:
    sampling, dropped = values.sampling, {}
    for name in sampling.__struct_fields__:
        if name in supported or getattr(sampling, name) is None:
            continue
        if not is_off(sampling, name) or (name == "logit_bias" and values.text_biases):
            raise PresetError(f"this engine does not support the sampling field `{name}`")
        dropped[name] = None
    return replace(values, sampling=replace(sampling, **dropped))
