"""Sampling fields, under the names that clients of several servers use.

Each field has one canonical name, that of `Sampling`, and aliases from llama-server, TabbyAPI,
text-generation-webui, KoboldCpp, vLLM and SGLang. All spellings of a field have the same range, so
an error names the field as the client wrote it. Two spellings with different values are rejected.

Some samplers exist in no engine. Their fields are accepted with the value that turns the sampler
off, which many clients always send, and rejected otherwise. docs/sampling.md is the reference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest, InvalidValue, Unsupported
from dragoman.options import suggest
from dragoman.protocols.shared.openai import Count, Penalty, TokenId, Unit
from dragoman.types import BannedString, Json, Sampling
from dragoman.types.sampling import FORBIDDING_BIAS

Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]
TopK: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Sigma: TypeAlias = Annotated[float, Meta(ge=-1, le=1000)]
Repetition: TypeAlias = Annotated[float, Meta(gt=0, le=10)]
Window: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1000)]
DryBase: TypeAlias = Annotated[float, Meta(ge=1, le=1000)]
Mirostat: TypeAlias = Annotated[int, Meta(ge=0, le=2)]
AdaptiveTarget: TypeAlias = Annotated[float, Meta(ge=-1, le=1)]
AdaptiveDecay: TypeAlias = Annotated[float, Meta(ge=0, le=0.99)]
Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)] | bool
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Texts: TypeAlias = Annotated[list[Text], Meta(max_length=256)]
MAX_BREAKERS = 32  # an engine compares each of them with its whole vocabulary
BreakerList: TypeAlias = Annotated[list[Text], Meta(min_length=1, max_length=MAX_BREAKERS)]
Breakers: TypeAlias = BreakerList | Annotated[str, Meta(max_length=4096)]
SamplerNames: TypeAlias = (
    Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)]
    | Annotated[str, Meta(max_length=256)]
)
BiasPairs: TypeAlias = Annotated[list[tuple[TokenId | Text, Bias]], Meta(max_length=4096)]

ALIASES: dict[str, tuple[str, ...]] = {
    "temperature": ("temp",),
    "typical_p": ("typical", "typ_p"),
    "top_n_sigma": ("nsigma",),
    "dynatemp_exponent": ("temp_exponent",),
    "mirostat": ("mirostat_mode",),
    "repetition_penalty": ("repeat_penalty", "rep_pen"),
    "repeat_last_n": (
        "penalty_range",
        "repetition_penalty_range",
        "repetition_range",
        "rep_pen_range",
    ),
    "dry_penalty_last_n": ("dry_range",),
    "seed": ("sampling_seed", "sampler_seed"),
    "min_tokens": ("min_new_tokens",),
    "ignore_eos": ("ban_eos_token",),
}
# the names that engines know, and other spellings of them
NARROWING_SAMPLERS = ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc")
SAMPLERS = ("penalties", "dry", *NARROWING_SAMPLERS, "temperature", "adaptive_p", "infill")
SAMPLER_ALIASES = {
    "typ_p": "typical_p",
    "typical": "typical_p",
    "temp": "temperature",
    "nsigma": "top_n_sigma",
    "repetition_penalty": "penalties",
}
LETTERS = dict(zip("edskypmxtai", SAMPLERS, strict=True))
# fields of samplers that no engine has, and the values with which they change nothing
OFF_VALUES: dict[str, Json] = {
    "top_a": 0,
    "tfs": 1,
    "tfs_z": 1,
    "skew": 0,
    "smoothing_factor": 0,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "penalty_alpha": 0,
    "repetition_decay": 0,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "cfg_scale": 1,
    "guidance_scale": 1,
    "negative_prompt": "",
    "num_beams": 1,
    "use_beam_search": False,
    "token_healing": False,
    "allowed_tokens": [],
    "allowed_token_ids": [],
}
get_unsupported = attrgetter(*OFF_VALUES)


class SamplerFields(Struct, kw_only=True):
    """How to pick tokens. Absent and null mean the model's default."""

    temperature: Temperature | None = None
    temp: Temperature | None = None
    top_p: Unit | None = None
    top_k: TopK | None = None
    min_p: Unit | None = None
    typical_p: Unit | None = None
    typical: Unit | None = None
    typ_p: Unit | None = None
    top_n_sigma: Sigma | None = None
    nsigma: Sigma | None = None
    xtc_probability: Unit | None = None
    xtc_threshold: Unit | None = None
    dynatemp_range: Temperature | None = None
    dynatemp_exponent: Amount | None = None
    temp_exponent: Amount | None = None
    min_temp: Temperature | None = None
    dynatemp_low: Temperature | None = None
    max_temp: Temperature | None = None
    dynatemp_high: Temperature | None = None
    dynamic_temperature: bool | None = None
    mirostat: Mirostat | None = None
    mirostat_mode: Mirostat | None = None
    mirostat_tau: Amount | None = None
    mirostat_eta: Unit | None = None
    adaptive_target: AdaptiveTarget | None = None
    adaptive_decay: AdaptiveDecay | None = None
    samplers: SamplerNames | None = None
    min_keep: Count | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition | None = None
    rep_pen: Repetition | None = None
    repeat_last_n: Window | None = None
    penalty_range: Window | None = None
    repetition_penalty_range: Window | None = None
    repetition_range: Window | None = None
    rep_pen_range: Window | None = None
    dry_multiplier: Amount | None = None
    dry_base: DryBase | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Window | None = None
    dry_range: Window | None = None
    dry_sequence_breakers: Breakers | None = None
    seed: Seed | None = None
    sampling_seed: Seed | None = None
    sampler_seed: Seed | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=4096)] | BiasPairs | None = None
    banned_tokens: Annotated[list[TokenId], Meta(max_length=4096)] | None = None
    custom_token_bans: Annotated[str, Meta(max_length=65536)] | None = None
    banned_strings: Texts | None = None
    bad_words: Texts | None = None
    min_tokens: Count | None = None
    min_new_tokens: Count | None = None
    ignore_eos: bool | None = None
    ban_eos_token: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    # accepted with the values that turn them off
    top_a: float | None = None
    tfs: float | None = None
    tfs_z: float | None = None
    skew: float | None = None
    smoothing_factor: float | None = None
    smoothing_curve: float | None = None  # has a meaning with `smoothing_factor` only
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    penalty_alpha: float | None = None
    repetition_decay: float | None = None
    encoder_repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    cfg_scale: float | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    num_beams: int | None = None
    use_beam_search: bool | None = None
    token_healing: bool | None = None
    allowed_tokens: list[int] | None = None
    allowed_token_ids: list[int] | None = None


class DecodedSampling(Struct, kw_only=True):
    """The sampling of a request, and what needs the model's tokenizer or grammar to be applied."""

    sampling: Sampling
    client_field_names: dict[str, str]  # our name -> the name that the client used
    text_biases: tuple[tuple[str, float], ...] = ()
    banned_strings: tuple[BannedString, ...] = ()
    warnings: tuple[str, ...] = ()


def decode_samplers(fields: SamplerFields, max_tokens: int | None = None) -> DecodedSampling:
    """Return the sampling fields of a request; those that are absent stay unset."""
    if get_all(fields) == UNSET:
        return DecodedSampling(sampling=Sampling(max_tokens=max_tokens), client_field_names={})
    _reject_unsupported(fields)
    values, names = _merge_aliases(SPELLINGS, get_values(fields))
    warnings = _apply_temperature_bounds(fields, values, names)
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if "samplers" in values:
        values["samplers"] = _decode_sampler_names(values["samplers"])
    if "dry_sequence_breakers" in values:
        values["dry_sequence_breakers"] = _decode_breakers(values["dry_sequence_breakers"])
    if "stop_token_ids" in values:
        values["stop_token_ids"] = tuple(values["stop_token_ids"])
    biases, texts = _decode_logit_bias(fields.logit_bias)
    for name, ids in _decode_token_bans(fields).items():
        biases |= dict.fromkeys(ids, FORBIDDING_BIAS)
        names.setdefault("logit_bias", name)
    if fields.logit_bias is not None:
        names["logit_bias"] = "logit_bias"
    values["logit_bias"] = biases if "logit_bias" in names else None
    banned_strings = _decode_banned_strings(fields, names)
    return DecodedSampling(
        sampling=Sampling(**values, max_tokens=max_tokens),
        client_field_names={ours: name for ours, name in names.items() if ours != name},
        text_biases=texts,
        banned_strings=banned_strings,
        warnings=warnings,
    )


def _reject_unsupported(fields: SamplerFields) -> None:
    for (name, off), value in zip(OFF_VALUES.items(), get_unsupported(fields), strict=True):
        if value is not None and value != off:
            shown = msgspec.json.encode(off).decode()
            raise Unsupported(
                f"`{name}` is not supported: leave it out, or send {shown}.", param=name
            )


# every spelling of a field with the field's own name, and a fast way to get the values of all
SPELLINGS = {
    name: ours
    for ours in Sampling.__struct_fields__
    if ours in SamplerFields.__struct_fields__ and ours != "logit_bias"
    for name in (ours, *ALIASES.get(ours, ()))
}
BOUNDS = {"min_temp": "low", "dynatemp_low": "low", "max_temp": "high", "dynatemp_high": "high"}
get_all = attrgetter(*SamplerFields.__struct_fields__)
UNSET = (None,) * len(SamplerFields.__struct_fields__)
get_values = attrgetter(*SPELLINGS)
get_bounds = attrgetter(*BOUNDS)


def _merge_aliases(
    spellings: Mapping[str, str], sent: Iterable[Json]
) -> tuple[dict[str, Json], dict[str, str]]:
    """Return the values that are set by our names, and the names that the client used."""
    values: dict[str, Json] = {}
    names: dict[str, str] = {}
    for (name, ours), value in zip(spellings.items(), sent, strict=True):
        if value is None:
            continue
        if ours in values and values[ours] != value:
            raise BadRequest(
                f"`{name}` and `{names[ours]}` mean the same: send one of them.", param=name
            )
        values[ours] = value
        names.setdefault(ours, name)
    return values, names


def _apply_temperature_bounds(
    fields: SamplerFields, values: dict[str, Json], names: dict[str, str]
) -> tuple[str, ...]:
    """Convert the two temperatures between which others choose to a centre and a range."""
    bounds, used = _merge_aliases(BOUNDS, get_bounds(fields))
    if not bounds and fields.dynamic_temperature and "dynatemp_range" not in values:
        return ("`dynamic_temperature` has no effect without `min_temp` and `max_temp`.",)
    if not bounds or fields.dynamic_temperature is False:
        return ()
    if len(bounds) < 2:
        [name] = used.values()
        other = {"min_temp": "max_temp", "dynatemp_low": "dynatemp_high"}
        other |= {high: low for low, high in other.items()}
        raise BadRequest(f"`{name}` needs `{other[name]}`.", param=name)
    low, high = bounds["low"], bounds["high"]
    if low > high:
        message = f"`{used['low']}` must not be more than `{used['high']}`."
        raise InvalidValue(message, param=used["low"])
    if low == high:  # off, as in the servers that have these fields
        return ()
    centre, spread = (low + high) / 2, (high - low) / 2
    if values.get("dynatemp_range", spread) != spread:
        raise BadRequest(
            f"`{used['high']}` and `dynatemp_range` cannot be combined.", param=used["high"]
        )
    is_replaced = values.get("temperature", centre) != centre
    name = names.get("temperature", "temperature")
    values |= {"temperature": centre, "dynatemp_range": spread}
    names |= {"dynatemp_range": used["high"]}
    if not is_replaced:
        return ()
    return (f"`{name}` has no effect: `{used['low']}` and `{used['high']}` replace it.",)


def _decode_sampler_names(value: list[str] | str) -> tuple[str, ...]:
    """Return the samplers by our names; a string has one letter for each."""
    names: list[str] = []
    for item in value:
        name = item.strip().lower()
        name = LETTERS.get(name, SAMPLER_ALIASES.get(name, name))
        if name not in SAMPLERS:
            hint = suggest(name, SAMPLERS) or f" Known: {', '.join(SAMPLERS)}."
            raise InvalidValue(f"`samplers`: there is no sampler `{item}`.{hint}", param="samplers")
        if name in names:
            raise InvalidValue(f"`samplers` lists `{item}` twice.", param="samplers")
        names.append(name)
    return tuple(names)


def _decode_breakers(value: list[str] | str) -> tuple[str, ...]:
    """Return the strings at which repetitions end; some clients send a JSON list as a string."""
    if isinstance(value, list):
        return tuple(value)
    text = value.strip()
    text = text if text.startswith("[") else f"[{text}]"
    try:
        return tuple(msgspec.json.decode(text, type=BreakerList))
    except msgspec.DecodeError:
        raise InvalidValue(
            f"`dry_sequence_breakers` must be a list of 1 to {MAX_BREAKERS} strings.",
            param="dry_sequence_breakers",
        ) from None


def _decode_logit_bias(
    bias: Mapping[str, Bias] | list[tuple[int | str, Bias]] | None,
) -> tuple[dict[int, float], tuple[tuple[str, float], ...]]:
    """Return biases by token id, and by text. Keys of an object that are numbers are ids."""
    if bias is None:
        return {}, ()
    pairs = bias.items() if isinstance(bias, Mapping) else bias
    ids: dict[int, float] = {}
    texts: dict[str, float] = {}
    for key, value in pairs:
        if value is True:
            raise InvalidValue(
                "Values of `logit_bias` must be numbers, or false.", param="logit_bias"
            )
        amount = FORBIDDING_BIAS if value is False else float(value)
        is_id = isinstance(key, int) or (
            isinstance(bias, Mapping) and key.isascii() and key.isdigit()
        )
        if not is_id:
            texts[str(key)] = amount
        elif int(key) >= 2**31:
            raise InvalidValue("`logit_bias` has a token id that is too large.", param="logit_bias")
        else:
            ids[int(key)] = amount
    if "" in texts:
        raise InvalidValue("A key of `logit_bias` is empty.", param="logit_bias")
    return ids, tuple(texts.items())


def _decode_token_bans(fields: SamplerFields) -> dict[str, list[int]]:
    bans: dict[str, list[int]] = defaultdict(list)
    if fields.banned_tokens is not None:
        bans["banned_tokens"] = fields.banned_tokens
    name: Literal["custom_token_bans"] = "custom_token_bans"
    for item in (fields.custom_token_bans or "").split(","):
        word = item.strip()
        if word and not (word.isascii() and word.isdigit() and len(word) < 10):
            raise InvalidValue(f"`{name}` must be token ids with commas between them.", param=name)
        if word:
            bans[name].append(int(word))
    return bans


def _decode_banned_strings(
    fields: SamplerFields, names: dict[str, str]
) -> tuple[BannedString, ...]:
    """`banned_strings` ignores case, as in TabbyAPI and KoboldCpp; `bad_words` does not (vLLM)."""
    strings = [BannedString(text, ignore_case=True) for text in fields.banned_strings or ()]
    words = [BannedString(text) for text in fields.bad_words or ()]
    if strings or words:
        names["banned_strings"] = "banned_strings" if strings else "bad_words"
    return (*strings, *words)
