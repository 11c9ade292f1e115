"""GGUF models, run by the native server of `xllamacpp`.

This module and `gguf` import neither `xllamacpp` nor numpy, so that model files can be read and
settings checked without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.engines.llamacpp.engine import LlamaCppEngine

SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
        "dynatemp_range",
        "dynatemp_exponent",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_target",
        "adaptive_decay",
        "samplers",
        "min_keep",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
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


def create(**settings: object) -> LlamaCppEngine:
    """Load a model; `settings` are the fields of `server.LlamaCppSettings`."""
    from dragoman.engines.llamacpp.engine import create as create_engine

    return create_engine(**settings)
