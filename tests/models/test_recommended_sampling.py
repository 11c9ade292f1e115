"""The sampling defaults of a model: its author's recommendation, else ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.models.recommended_sampling import (
    FALLBACK,
    RecommendedSampling,
    find_recommended_sampling,
)
from dragoman.types import Sampling

METADATA = "GGUF metadata"
CONFIG = "generation_config.json"


@pytest.mark.parametrize(
    ("metadata", "config", "expected", "source"),
    [
        ({}, None, FALLBACK, "dragoman"),
        ({}, {"eos_token_id": 2, "do_sample": True}, FALLBACK, "dragoman"),
        ({"temp": 0.6}, None, Sampling(temperature=0.6), METADATA),
        ({"temp": 0.0}, None, Sampling(temperature=0), METADATA),
        ({"top_p": 0.949999988079071}, None, Sampling(top_p=0.95), METADATA),
        (
            {"top_k": 64, "min_p": 0.01, "penalty_repeat": 1.1, "penalty_last_n": 128},
            None,
            Sampling(top_k=64, min_p=0.01, repetition_penalty=1.1, repeat_last_n=128),
            METADATA,
        ),
        (
            {"xtc_probability": 0.5, "xtc_threshold": 0.1, "typ_p": 0.9},
            None,
            Sampling(xtc_probability=0.5, xtc_threshold=0.1, typical_p=0.9),
            METADATA,
        ),
        (
            {"penalty_freq": 0.5, "penalty_present": 1.5},
            None,
            Sampling(frequency_penalty=0.5, presence_penalty=1.5),
            METADATA,
        ),
        (
            {"mirostat": 2, "mirostat_tau": 5.0, "mirostat_eta": 0.1},
            None,
            Sampling(mirostat=2, mirostat_tau=5, mirostat_eta=0.1),
            METADATA,
        ),
        (
            {"sequence": "top_k;temperature"},
            None,
            Sampling(samplers=("top_k", "temperature")),
            METADATA,
        ),
        ({"min_p": "x", "temp": float("nan"), "top_p": 7.0}, None, FALLBACK, "dragoman"),
        (
            {},
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            Sampling(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
            CONFIG,
        ),
        ({}, {"min_p": 0.1, "typical_p": 0.9}, Sampling(min_p=0.1, typical_p=0.9), CONFIG),
        ({}, {"temperature": "hot", "top_k": -5}, FALLBACK, "dragoman"),
        (
            {"temp": 0.1, "top_k": 9},
            {"temperature": 0.7},
            Sampling(temperature=0.7, top_k=9),
            f"{CONFIG} and {METADATA}",
        ),
    ],
)
def test_recommendation_of_the_author_is_used_as_a_whole(
    metadata: dict[str, Any], config: Any, expected: Sampling, source: str, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / CONFIG).write_text(json.dumps(config))
    keys = {f"general.sampling.{name}": value for name, value in metadata.items()}
    found = find_recommended_sampling(tmp_path, keys)
    greedy = Sampling() if expected is FALLBACK else expected
    assert found == RecommendedSampling(expected, source, greedy)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"temperature": NaN}', "\x00", "[" * 100_000])
def test_invalid_generation_config_is_ignored(content: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(content)
    assert find_recommended_sampling(tmp_path, {}) == RecommendedSampling()
