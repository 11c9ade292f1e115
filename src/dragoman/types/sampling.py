"""How tokens are picked: the fields, and which values turn them off.

Clients send many fields with the value that turns them off; such a field is accepted by every
engine. Import the types from `dragoman.types`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.types.computed_once import ComputedOnce

FORBIDDING_BIAS = -100.0  # a bias of this or less forbids the token
MIN_LOGPROB = -9999.0  # what the wire APIs send for a token of probability 0
MIN_XTC_THRESHOLD = 1e-9  # at 0 it could pick a token that a grammar or a bias forbids
# the values with which fields change nothing
OFF_VALUES: dict[str, object] = {
    "temperature": 1,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "typical_p": 1,
    "xtc_probability": 0,
    "dynatemp_range": 0,
    "mirostat": 0,
    "min_keep": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "dry_multiplier": 0,
    "logit_bias": {},
    "min_tokens": 0,
    "ignore_eos": False,
    "stop_token_ids": (),
}
# fields without a meaning while another one is off or unset
MAIN_FIELDS = {
    "xtc_threshold": "xtc_probability",
    "dynatemp_exponent": "dynatemp_range",
    "mirostat_tau": "mirostat",
    "mirostat_eta": "mirostat",
    "adaptive_decay": "adaptive_target",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_penalty_last_n": "dry_multiplier",
    "dry_sequence_breakers": "dry_multiplier",
}
# the sampler of each field, as `samplers` names it
SAMPLER_NAMES = {
    "temperature": "temperature",
    "dynatemp_range": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "top_n_sigma": "top_n_sigma",
    "xtc_probability": "xtc",
    "adaptive_target": "adaptive_p",
    "presence_penalty": "penalties",
    "frequency_penalty": "penalties",
    "repetition_penalty": "penalties",
    "dry_multiplier": "dry",
}


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """How to pick tokens. `None` means "not set"; `with_defaults` combines several of these."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 is off
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None  # 0 and less are off
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None  # on both sides of `temperature`
    dynatemp_exponent: float | None = None
    mirostat: int | None = None  # version 1 or 2; 0 is off
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None  # below 0 is off
    adaptive_decay: float | None = None
    samplers: tuple[str, ...] | None = None  # in this order; those that are missing are off
    min_keep: int | None = None  # tokens that every sampler leaves
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None  # -1 is the whole context
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None  # -1 is the whole context
    dry_sequence_breakers: tuple[str, ...] | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: tuple[int, ...] | None = None

    def with_defaults(self, defaults: Sampling) -> Sampling:
        """Return these fields, with `defaults` for those that are not set; 0 counts as set."""
        if defaults == NO_SAMPLING:
            return self
        if self == NO_SAMPLING:
            return defaults
        return msgspec.structs.replace(defaults, **self.set_fields)

    @ComputedOnce
    def set_fields(self) -> Mapping[str, Any]:
        """The fields that are set, in the order of their declaration."""
        if self == NO_SAMPLING:
            return {}
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the most likely one that the other samplers leave."""
        if self.mirostat:
            return self.temperature == 0
        is_zero = self.temperature == 0 and not self.dynatemp_range
        return (is_zero and self.uses_sampler("temperature")) or (
            self.top_k == 1 and self.uses_sampler("top_k")
        )

    def uses_sampler(self, name: str) -> bool:
        return self.samplers is None or name in self.samplers

    def is_off(self, name: str) -> bool:
        """Whether a field that is set changes nothing."""
        value = getattr(self, name)
        main = MAIN_FIELDS.get(name)
        if main is not None:
            return getattr(self, main) is None or self.is_off(main)
        if name == "top_n_sigma":
            return bool(value <= 0)
        if name == "adaptive_target":
            return bool(value < 0)
        return name in OFF_VALUES and value == OFF_VALUES[name]


NO_SAMPLING = Sampling()
DEFAULT_SAMPLING = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    typical_p=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    repeat_last_n=64,
    min_tokens=0,
    ignore_eos=False,
    stop_token_ids=(),
)


class BannedString(Struct, frozen=True):
    """A text that the answer must not contain."""

    text: str
    ignore_case: bool = False
