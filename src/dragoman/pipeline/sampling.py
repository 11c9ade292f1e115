"""Resolves and checks a request's sampling fields for its model.

A field that is off is accepted by every engine. A field that is on and has no effect, because
another one replaces its sampler or does not list it, causes a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dragoman.errors import Unsupported
from dragoman.models.model import Model
from dragoman.presets import Preset, PresetError
from dragoman.presets.sampling import PresetSampling
from dragoman.types import Capabilities, Prompt, Request, Sampling
from dragoman.types.sampling import MAIN_FIELDS, SAMPLER_NAMES

SAMPLER_FIELDS = frozenset({"samplers", *MAIN_FIELDS, *SAMPLER_NAMES})
# how many of the last tokens these fields consider
WINDOWS = {
    "presence_penalty": "repeat_last_n",
    "frequency_penalty": "repeat_last_n",
    "repetition_penalty": "repeat_last_n",
    "dry_multiplier": "dry_penalty_last_n",
}


def check_sampling(request: Request, model: Model) -> None:
    """Reject the sampling fields that this model's engine does not honour."""
    supported = model.capabilities.sampling
    sampling = request.sampling
    for name in sampling.set_fields:
        if name not in supported and not sampling.is_off(name):
            raise _make_error(request, name)
    if request.text_biases and "logit_bias" not in supported:
        raise _make_error(request, "logit_bias")


def _make_error(request: Request, name: str) -> Unsupported:
    client_name = request.client_field_names.get(name, name)
    return Unsupported(
        f"`{client_name}` is not supported by this model's engine.", param=client_name
    )


async def resolve_tokens(request: Request, model: Model) -> Request:
    """Return the request with the token ids that only the model's tokenizer knows."""
    if request.text_biases:
        request = await _resolve_text_biases(request, model)
    for prompt in request.prompts:
        if isinstance(prompt, Prompt) and prompt.infill:
            return _add_infill_stops(request, model)
    return request


def _add_infill_stops(request: Request, model: Model) -> Request:
    """End filled-in text at the tokens that begin another file."""
    tokens = getattr(model.tokenizer, "infill", None)
    if tokens is None or "stop_token_ids" not in model.capabilities.sampling:
        return request
    stops = (*(request.sampling.stop_token_ids or ()), *tokens.stop_ids)
    return replace(request, sampling=replace(request.sampling, stop_token_ids=stops))


async def _resolve_text_biases(request: Request, model: Model) -> Request:
    """Return the request with its biases of texts as biases of all tokens of these texts."""
    if model.tokenizer is None:
        raise Unsupported(
            "`logit_bias` takes token ids only: this model's tokenizer is unknown.",
            param="logit_bias",
        )
    biases: dict[int, float] = {}
    for text, bias in request.text_biases:
        biases |= dict.fromkeys(await model.tokenizer.encode(text), bias)
    biases |= request.sampling.logit_bias or {}
    sampling = replace(request.sampling, logit_bias=biases)
    return replace(request, sampling=sampling, text_biases=())


def warn_about_unused(request: Request, sampling: Sampling) -> tuple[str, ...]:
    """Return a warning for each field of the request that has no effect on its own sampling.

    `sampling` is complete: it includes the defaults of the model.
    """
    if SAMPLER_FIELDS.isdisjoint(request.sampling.set_fields):
        return ()
    names = request.client_field_names
    return tuple(
        f"`{names.get(name, name)}` has no effect: {reason}"
        for name, reason in _find_unused(request.sampling, sampling)
    )


def _find_unused(requested: Sampling, sampling: Sampling) -> Iterator[tuple[str, str]]:
    if sampling.mirostat and requested.samplers is not None:
        yield "samplers", "`mirostat` replaces all samplers but the temperature."
    for name in requested.set_fields:
        main = MAIN_FIELDS.get(name)
        if main is not None and getattr(sampling, main) is None:
            yield name, f"`{main}` is not set."
        if name not in SAMPLER_NAMES or sampling.is_off(name):
            continue
        if sampling.mirostat:
            if name != "temperature":
                yield name, "`mirostat` replaces all samplers but the temperature."
        elif not sampling.uses_sampler(SAMPLER_NAMES[name]):
            yield name, "`samplers` does not list its sampler."
        elif getattr(sampling, WINDOWS.get(name, ""), None) == 0:
            yield name, f"`{WINDOWS[name]}` is 0."


def add_stop_tokens(sampling: Sampling, stops: tuple[str, ...], model: Model) -> Sampling:
    """Add the stop strings that are special tokens: their text never appears in an answer."""
    if not stops or model.tokenizer is None or "stop_token_ids" not in model.capabilities.sampling:
        return sampling
    specials = model.tokenizer.specials
    ids = [specials[text] for text in stops if text in specials]
    if not ids:
        return sampling
    return replace(
        sampling, stop_token_ids=tuple(dict.fromkeys((*(sampling.stop_token_ids or ()), *ids)))
    )


def fit_preset(preset: Preset, capabilities: Capabilities) -> Preset:
    """Return a preset without the fields that are off and that the engine does not support.

    A field that is on must be supported, else this raises `PresetError`.
    """
    supported = capabilities.sampling
    bans = (preset.sampling.banned_strings, preset.forced_sampling.banned_strings)
    if any(bans) and not capabilities.grammars:
        raise PresetError("this engine does not support the sampling field `banned_strings`")
    return replace(
        preset,
        sampling=_drop_unsupported(preset.sampling, supported),
        forced_sampling=_drop_unsupported(preset.forced_sampling, supported),
    )


def _drop_unsupported(values: PresetSampling, supported: frozenset[str]) -> PresetSampling:
    sampling = values.sampling
    dropped: dict[str, None] = {}
    for name in sampling.__struct_fields__:
        if name in supported or getattr(sampling, name) is None:
            continue
        if not sampling.is_off(name) or (name == "logit_bias" and values.text_biases):
            raise PresetError(f"this engine does not support the sampling field `{name}`")
        dropped[name] = None
    return replace(values, sampling=replace(sampling, **dropped))
