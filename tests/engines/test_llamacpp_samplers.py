"""Each sampler that llama.cpp has changes what the default model writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.llama_engine import STORY, EngineRunner

pytestmark = pytest.mark.real_model

LOOP = "one two one two one two one two one two"
WARM: dict[str, Any] = {"temperature": 1.0, "seed": 7, "cache_prompt": False}


@pytest.fixture(scope="module")
def runner(default_model: Path) -> Iterator[EngineRunner]:
    runner = EngineRunner(path=str(default_model), context=256, slots=1, threads=1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def write(runner: EngineRunner) -> Callable[..., str]:
    """Return a function that generates a few tokens; answers to the same fields are cached."""
    known: dict[str, str] = {}

    def generate(prompt: str = STORY, **fields: Any) -> str:
        key = repr((prompt, fields))
        if key not in known:
            known[key] = runner.generate(prompt, **{"max_tokens": 10, **fields}).get_text()
        return known[key]

    return generate


Write = Callable[..., str]


def test_dry_ends_a_loop_within_its_window_and_between_its_breakers(write: Write) -> None:
    plain = write(LOOP)
    dry = write(LOOP, dry_multiplier=5.0)
    assert dry != plain
    for neutral in (
        {"dry_penalty_last_n": 0},
        {"dry_allowed_length": 20},
    ):
        assert write(LOOP, dry_multiplier=5.0, **neutral) == plain
    assert write(LOOP, dry_multiplier=5.0, dry_penalty_last_n=-1) == dry
    assert write(LOOP, dry_multiplier=5.0, dry_sequence_breakers=(" two",)) != dry
    assert write(LOOP, dry_multiplier=0.05, dry_base=1.0) != write(LOOP, dry_multiplier=5.0)


def test_xtc_excludes_the_most_likely_tokens(write: Write) -> None:
    plain = write()
    assert write(xtc_probability=1.0, xtc_threshold=0.01) != plain
    assert write(xtc_probability=1.0, xtc_threshold=0.6) == plain  # never two tokens that likely
    assert write(xtc_probability=0.0, xtc_threshold=0.01) == plain


def test_xtc_never_picks_a_token_that_is_forbidden(write: Write) -> None:
    grammar = "%llguidance {}\nstart: /[a-z ]+/"
    fields = {"xtc_probability": 1.0, "xtc_threshold": 0.0}
    assert set(write(**WARM, **fields, grammar=grammar)) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_a_small_sigma_leaves_only_the_most_likely_token(write: Write) -> None:
    assert write(**WARM) != write()
    assert write(**WARM, top_n_sigma=0.001) == write()
    assert write(**WARM, top_n_sigma=0.0) == write(**WARM)
    assert write(**WARM, top_n_sigma=-1.0) == write(**WARM)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_aims_at_a_surprise(write: Write, version: int) -> None:
    low = {"mirostat": version, "mirostat_tau": 0.01, "mirostat_eta": 1.0}
    assert write(**WARM, mirostat=version) != write(**WARM)
    assert write(**WARM, **low) != write(**WARM, mirostat=version)
    assert write(**WARM, mirostat=version, top_k=1) == write(**WARM, mirostat=version)


def test_dynamic_temperature(write: Write) -> None:
    wide = write(**WARM, dynatemp_range=0.9)
    assert wide != write(**WARM)
    assert write(**WARM, dynatemp_range=0.9, dynatemp_exponent=5.0) == write()  # nearly cold
    assert write(**WARM, dynatemp_range=0.0, dynatemp_exponent=5.0) == write(**WARM)


def test_adaptive_p_picks_tokens_near_its_target(write: Write) -> None:
    unlikely = write(**WARM, min_p=0.01, adaptive_target=0.02)
    likely = write(**WARM, min_p=0.01, adaptive_target=0.9, adaptive_decay=0.0)
    assert len({unlikely, likely, write(**WARM, min_p=0.01)}) == 3
    off = write(**WARM, min_p=0.01, adaptive_target=-1.0)
    assert off == write(**WARM, min_p=0.01)
    # where the order does not name it, it is not used
    order = ("min_p", "temperature")
    assert write(**WARM, min_p=0.01, adaptive_target=0.02, samplers=order) == write(
        **WARM, min_p=0.01, samplers=order
    )


def test_only_the_listed_samplers_are_used(write: Write) -> None:
    assert write(**WARM, top_k=1) == write()
    assert write(**WARM, top_k=1, samplers=("temperature",)) == write(**WARM)
    assert write(**WARM, top_k=1, samplers=("top_k", "temperature")) == write()
    assert write(temperature=0.0, seed=7, cache_prompt=False, samplers=()) == write(**WARM)
    assert write(**WARM, typical_p=0.01, samplers=("typical_p",)) != write(**WARM)


def test_the_order_of_samplers_matters(write: Write) -> None:
    """At a high temperature, `min_p` cuts more of the tail before the temperature than after."""
    hot = WARM | {"temperature": 2.0, "min_p": 0.3}
    before = write(**hot, samplers=("min_p", "temperature"))
    assert write(**hot, samplers=("temperature", "min_p")) != before


def test_min_keep_leaves_more_tokens(write: Write) -> None:
    assert write(**WARM, min_p=0.9) == write()
    assert write(**WARM, min_p=0.9, min_keep=50) != write()
