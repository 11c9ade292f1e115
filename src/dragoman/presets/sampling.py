"""Sampling fields as an operator writes them: the names, aliases and ranges of a request's fields.

The values are decoded by the decoder of requests, so that an operator's value means exactly what
it would mean in a request. TabbyAPI's preset files list every field they know; those that do not
exist here are accepted as long as they are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.options import suggest
from dragoman.protocols.shared import samplers
from dragoman.protocols.shared.json_body import convert_value
from dragoman.types import BannedString, Json, Sampling

# TabbyAPI's fields that requests do not have, with the values that change nothing.
TABBY_OFF_VALUES: dict[str, tuple[Json, ...]] = {
    "add_bos_token": (True,),
    "generate_window": (),
    "skip_special_tokens": (True,),
    "speculative_ngram": (False,),
    "temperature_last": (False, True),  # the order in which engines sample anyway
}


class PresetFields(samplers.SamplerFields, kw_only=True):
    """The fields that a preset may set, besides `stop`."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class PresetSampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling fields of a preset; None and () are not set."""

    sampling: Sampling = Sampling()
    text_biases: tuple[tuple[str, float], ...] = ()
    banned_strings: tuple[BannedString, ...] | None = None

    @property
    def names(self) -> list[str]:
        """The fields that are set, by our names."""
        names = list(self.sampling.set_fields)
        return [*names, "banned_strings"] if self.banned_strings is not None else names


NO_VALUES = PresetSampling()


def decode_sampling(values: Mapping[str, Json]) -> PresetSampling:
    """Return sampling fields by their names in a request, or raise `ValueError`."""
    known = PresetFields.__struct_fields__
    for name, value in values.items():
        if name in TABBY_OFF_VALUES and value not in TABBY_OFF_VALUES[name]:
            raise ValueError(f"`{name}` is not supported")
        if name not in TABBY_OFF_VALUES and name not in known:
            raise ValueError(f"there is no sampling field `{name}`.{suggest(name, known)}")
    plain = {name: _to_json(value) for name, value in values.items() if name in known}
    try:
        fields: PresetFields = convert_value(plain, PresetFields, "")
        decoded = samplers.decode_samplers(fields, fields.max_tokens)
    except BadRequest as error:
        raise ValueError(error.message.rstrip(".")) from None
    bans_strings = fields.banned_strings is not None or fields.bad_words is not None
    return PresetSampling(
        sampling=decoded.sampling,
        text_biases=decoded.text_biases,
        banned_strings=decoded.banned_strings if bans_strings else None,
    )


def _to_json(value: Json) -> Json:
    """Return a value of YAML as JSON has it: keys of objects are strings."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    return [_to_json(item) for item in value] if isinstance(value, list | tuple) else value


def add_values(ours: Json, theirs: Json) -> Json:
    """Add a client's list or mapping to the operator's; of anything else, return the client's."""
    if isinstance(ours, dict):
        return ours | theirs
    return tuple(dict.fromkeys((*ours, *theirs))) if isinstance(ours, tuple) else theirs


def combine(
    values: PresetSampling, defaults: PresetSampling, additive: frozenset[str]
) -> PresetSampling:
    """Return `values`, with `defaults` for fields that are not set.

    In the fields of `additive`, values are added to the defaults.
    """
    if defaults == NO_VALUES:
        return values
    sampling = values.sampling.with_defaults(defaults.sampling)
    texts, strings = values.text_biases, values.banned_strings
    for name in additive.intersection(values.names, defaults.names) - {"banned_strings"}:
        value = add_values(getattr(defaults.sampling, name), getattr(values.sampling, name))
        sampling = msgspec.structs.replace(sampling, **{name: value})
    if "logit_bias" in additive or (values.sampling.logit_bias is None and not texts):
        texts = add_values(defaults.text_biases, texts)
    if strings is None:
        strings = defaults.banned_strings
    elif "banned_strings" in additive:
        strings = add_values(defaults.banned_strings or (), strings)
    return PresetSampling(sampling=sampling, text_biases=texts, banned_strings=strings)
