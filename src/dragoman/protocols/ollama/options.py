"""The `options` of a request: how to sample, and how Ollama would load the model.

Options have the names of our own sampling fields and their aliases (`repeat_penalty`), and a few
that only Ollama has. Ollama ignores options that it does not know, and so do we, with a warning for
each: also for samplers that no engine has, and for options that only matter when a model is loaded.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.protocols.shared import samplers
from dragoman.protocols.shared.generation import decode_stops
from dragoman.protocols.shared.openai import StopText
from dragoman.types import BannedString, Json, Sampling

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
RANDOM_SEED = -1
# options that the operator sets when a model is loaded
LOAD_OPTIONS = (
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "draft_num_predict",
)


class OllamaOptions(samplers.SamplerFields, kw_only=True):
    """How to pick tokens, and when to stop."""

    num_predict: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None  # below 0: no limit
    stop: StopText | Annotated[list[StopText], Meta(max_length=64)] | None = None
    # Accepted and without effect here, as the warnings say.
    num_keep: Integer | None = None
    num_ctx: Integer | None = None
    num_batch: Integer | None = None
    num_gpu: Integer | None = None
    main_gpu: Integer | None = None
    num_thread: Integer | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    draft_num_predict: Integer | None = None


class DecodedOptions(Struct, kw_only=True):
    """The options of a request, by our names."""

    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    client_field_names: dict[str, str] = {}
    text_biases: tuple[tuple[str, float], ...] = ()
    banned_strings: tuple[BannedString, ...] = ()
    prefill_only: bool = False  # `num_predict` is 0
    warnings: tuple[str, ...] = ()


def decode_options(options: OllamaOptions | None, strict: bool) -> DecodedOptions:
    if options is None:
        return DecodedOptions()
    options, warnings = _drop_unsupported(options)
    limit = options.num_predict
    max_tokens = limit if limit is not None and limit > 0 else None
    try:
        decoded = samplers.decode_samplers(options, max_tokens)
        stop = decode_stops(options.stop, strict)
    except BadRequest as error:
        error.param = f"options.{error.param}"
        raise
    names = {name: name for name in decoded.sampling.set_fields}
    names |= {"max_tokens": "num_predict", "stop": "stop"} | decoded.client_field_names
    return DecodedOptions(
        sampling=decoded.sampling,
        stop=stop,
        client_field_names={ours: f"options.{name}" for ours, name in names.items()},
        text_biases=decoded.text_biases,
        banned_strings=decoded.banned_strings,
        prefill_only=limit == 0,
        warnings=(*warnings, *decoded.warnings),
    )


def _drop_unsupported(options: OllamaOptions) -> tuple[OllamaOptions, list[str]]:
    """Return the options that have an effect, and a warning for each of the others."""
    changes: dict[str, Json] = {}
    warnings = []
    for name, off in samplers.OFF_VALUES.items():
        value = getattr(options, name)
        if value is not None and value != off:
            changes[name] = None
            warnings.append(_make_warning(name, "no engine has this sampler"))
    warnings += [
        _make_warning(name, "the operator sets it when the model is loaded")
        for name in LOAD_OPTIONS
        if getattr(options, name) is not None
    ]
    if options.num_keep is not None:
        warnings.append(_make_warning("num_keep", "the engine decides what a full context keeps"))
    if options.seed == RANDOM_SEED:
        changes["seed"] = None
    return (replace(options, **changes) if changes else options), warnings


def _make_warning(name: str, reason: str) -> str:
    return f"`options.{name}` has no effect: {reason}."
