"""Engines: prompt in, tokens out.

Each engine is one package here, behind the small `Engine` protocol of `types`. To add an engine,
write its package and add one line to `FACTORIES`; nothing else names engines. The registry holds
import strings, so that no engine's libraries are imported before the engine is used.

An engine lists what it honours in its `Capabilities`. `Capabilities.sampling` holds the names of
the `Sampling` fields, written out: a field that is added to `Sampling` is rejected for every
engine that does not list it. A package's `SAMPLING_FIELDS` is that list.
"""

from __future__ import annotations

from dragoman.types import Capabilities, Engine

# engines that run models from files: name -> `module:function`
FACTORIES = {
    "llamacpp": "dragoman.engines.llamacpp:create",
    "vllm": "dragoman.engines.vllm:create",
}

# The fields that an engine without `capabilities` is assumed to honour: those that existed when
# such engines were first accepted. Do not add new fields, which those engines cannot know.
UNDECLARED_SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "repeat_last_n",
        "seed",
        "logit_bias",
        "max_tokens",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
    }
)


class EngineDied(Exception):
    """Raised by an engine that can run no other job. Its process ends, and another one starts."""


def is_import_string(name: str) -> bool:
    """Whether an engine is named as `module:function`."""
    module, colon, function = name.partition(":")
    parts = (*module.split("."), function)
    return bool(colon) and all(part.isidentifier() for part in parts)


def get_factory(name: str) -> str:
    """Return the import string of an engine's factory, or raise a `ValueError` with the choices."""
    if is_import_string(name):
        return name
    if name not in FACTORIES:
        raise ValueError(f"Unknown engine {name!r}. Engines: auto, {', '.join(FACTORIES)}.")
    return FACTORIES[name]


def get_capabilities(engine: Engine) -> Capabilities:
    """Return what the engine declares, or the defaults of an engine that declares nothing."""
    declared = getattr(engine, "capabilities", None)
    if isinstance(declared, Capabilities):
        return declared
    return Capabilities(sampling=UNDECLARED_SAMPLING_FIELDS)
