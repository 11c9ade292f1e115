"""Settings of the GGUF engine: what is rejected, and what reaches the native library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp import create
from dragoman.engines.llamacpp.loading.load_plan import make_load_plan
from dragoman.engines.llamacpp.loading.native_params import build_embedding_params, build_params
from dragoman.engines.llamacpp.loading.settings import parse_settings
from dragoman.engines.llamacpp.pooling.batches import MAX_INPUTS
from dragoman.errors import ModelBroken
from tests.support.tokenizer_oracle import train_byte_level_vocabulary, write_tiny_model


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cache_type_k": "q8"}, "`cache_type_k`: expected f32, f16.*Did you mean `q8_0`"),
        ({"contxt": 1}, "no option `contxt`.*Did you mean `context`"),
        ({"context": -1}, "`context`: must be 0 or more"),
        ({"slots": 0}, "`slots`: must be at least 1"),
        ({"threads": 1.5}, "`threads`: expected a whole number"),
        ({"draft_p_min": 2}, "`draft_p_min`: must be at most 1"),
        ({"rope_scale": 0}, "`rope_scale`"),
        ({"split_mode": "rows"}, "`split_mode`.*Did you mean `row`"),
        (
            {"flash_attn": "off", "cache_type_v": "q4_0"},
            "`cache_type_v` q4_0 needs flash attention",
        ),
        ({"flash_attn": "off", "exact": True}, "needs flash attention"),
        ({"exact": True, "cache_type_k": "f16"}, "`exact` needs the KV cache type q8_0"),
        ({"exact": True, "cache_reuse": 64}, "`exact` and `cache_reuse` exclude each other"),
        ({"rope_scale": 2, "rope_freq_scale": 0.5}, "mean the same"),
        ({"batch": 64, "ubatch": 128}, "`ubatch` must not be greater"),
        ({"draft_max": 3}, "`draft_max` needs `draft_model` or `spec_type`"),
        ({"spec_ngram": 3}, "`spec_ngram` needs"),
        ({"spec_type": "draft-simple"}, "needs a `draft_model`"),
        ({"spec_type": "draft-eagle3"}, "needs a `draft_model`"),
        ({"spec_type": "ngram"}, "`spec_type`.*Did you mean `ngram-"),
        ({"spec_type": "ngram-mod", "draft_model": "x"}, "drafts without a `draft_model`"),
        ({"spec_type": "ngram-mod"}, "prompts of all API keys; set `shared_cache`"),
        ({"spec_type": "ngram-cache"}, "prompts of all API keys; set `shared_cache`"),
        ({"spec_type": "ngram-map-k"}, "prompts of all API keys; set `shared_cache`"),
        ({"draft_model": "x", "draft_min": 5, "draft_max": 3}, "`draft_min` must not be greater"),
        ({"draft_model": "x", "spec_ngram": 3}, "`spec_ngram` needs an n-gram"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_loaded(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelBroken, match=problem):
        create(path="/nowhere.gguf", **settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"context": 1024, "slots": 3}, {"n_ctx": 3072, "n_parallel": 3}),
        ({"threads": 3}, {"cpuparams.n_threads": 3, "cpuparams_batch.n_threads": 3}),
        ({"threads": 3, "threads_batch": 5}, {"cpuparams_batch.n_threads": 5}),
        ({}, {"n_batch": 128, "n_ubatch": 128, "ctx_shift": False, "swa_full": False}),
        ({"batch": 64}, {"n_batch": 64, "n_ubatch": 64}),
        ({"batch": 2048}, {"n_batch": 2048, "n_ubatch": 512}),
        ({"batch": 2048, "ubatch": 1024}, {"n_batch": 2048, "n_ubatch": 1024}),
        ({}, {"cache_type_k": "F16", "cache_type_v": "F16", "flash_attn_type": "AUTO"}),
        ({"cache_type_k": "Q8_0"}, {"cache_type_k": "Q8_0", "cache_type_v": "F16"}),
        ({"cache_type_v": "iq4_nl"}, {"cache_type_v": "IQ4_NL"}),
        ({"exact": True}, {"cache_type_k": "Q8_0", "cache_type_v": "Q8_0"}),
        ({"exact": True}, {"flash_attn_type": "ENABLED"}),
        ({"flash_attn": "off"}, {"flash_attn_type": "DISABLED"}),
        ({"flash_attn": "on"}, {"flash_attn_type": "ENABLED"}),
        ({"cache_ram": 7}, {"cache_ram_mib": 0}),
        ({"cache_reuse": 9}, {"n_cache_reuse": 9}),
        ({"context_shift": True}, {"ctx_shift": True}),
        ({"swa_full": True}, {"swa_full": True}),
        ({"mlock": True}, {"load_mode": "MMAP_MLOCK"}),
        ({"mlock": True, "mmap": False}, {"load_mode": "MODE_MLOCK"}),
        ({"mmap": False}, {"load_mode": "NONE"}),
        ({"mmap": True}, {"load_mode": "MMAP"}),
        ({"numa": "isolate"}, {"numa": "ISOLATE"}),
        ({"gpu_layers": 7}, {"n_gpu_layers": 7}),
        ({"gpu_layers": 0}, {"n_gpu_layers": 0}),
        ({"split_mode": "row", "main_gpu": 1}, {"split_mode": "ROW", "main_gpu": 1}),
        ({"tensor_split": (3, 1)}, {"tensor_split": [3.0, 1.0, 0.0]}),
        ({"rope_scaling": "yarn", "context": 16384}, {"rope_freq_scale": 0.5}),
        ({"rope_scaling": "linear", "rope_scale": 4}, {"rope_scaling_type": "LINEAR"}),
        ({"rope_scaling": "linear", "rope_scale": 4}, {"rope_freq_scale": 0.25}),
        ({"rope_freq_scale": 0.5, "rope_freq_base": 5e5}, {"rope_freq_base": 5e5}),
        ({"rope_scaling": "yarn", "yarn_orig_ctx": 4096}, {"yarn_orig_ctx": 4096}),
        ({"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}, {"yarn_beta_fast": 16.0}),
        ({"yarn_ext_factor": 0.5, "yarn_attn_factor": 1.5}, {"yarn_attn_factor": 1.5}),
        ({}, {"speculative.types": ["NONE"]}),
        (
            {"spec_type": "ngram-map-k4v", "shared_cache": True},
            {"speculative.types": ["NGRAM_MAP_K4V"]},
        ),
        (
            {"spec_type": "ngram-simple", "spec_ngram": 5, "draft_max": 7},
            {"speculative.ngram_simple.size_n": 5, "speculative.ngram_simple.size_m": 7},
        ),
        (
            {"spec_type": "ngram-mod", "spec_ngram": 5, "draft_max": 7, "draft_min": 2}
            | {"shared_cache": True},
            {"speculative.ngram_mod.n_match": 5, "speculative.ngram_mod.n_min": 2},
        ),
        (
            {"draft_model": "@", "draft_max": 5, "draft_min": 1, "draft_p_min": 0.5},
            {"speculative.draft.n_max": 5, "speculative.draft.p_min": 0.5},
        ),
        ({"draft_model": "@"}, {"speculative.types": ["DRAFT_SIMPLE"]}),
        ({"draft_model": "@", "draft_gpu_layers": 3}, {"speculative.draft.n_gpu_layers": 3}),
    ],
)
def test_settings_reach_the_native_library(
    default_model: Path, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    lib = pytest.importorskip("xllamacpp")
    path = str(default_model)
    if "draft_model" in settings:
        settings = settings | {"draft_model": path}
    params = build_params(lib, make_load_plan(parse_settings({"path": path, **settings})))
    for name, value in expected.items():
        found: Any = params
        for part in name.split("."):
            found = getattr(found, part)
        assert is_same(found, value), (name, found)


def is_same(found: Any, value: Any) -> bool:
    """Compare with a value, or with the end of the name of a constant."""
    if isinstance(value, list):
        return all(is_same(*pair) for pair in zip(found, value, strict=False))
    if isinstance(value, str):
        return str(getattr(found, "name", found)).endswith(f"_{value}")
    return bool(found == pytest.approx(value))


def test_a_draft_model_with_another_vocabulary_is_rejected(
    default_model: Path, tmp_path: Path
) -> None:
    vocabulary = train_byte_level_vocabulary(["hello world"], "qwen2")
    draft = write_tiny_model(tmp_path / "tiny.gguf", vocabulary)
    with pytest.raises(ModelBroken, match="draft model has another vocabulary"):
        create(path=str(default_model), draft_model=str(draft))


def test_the_server_for_embeddings_shares_one_context_and_has_no_prompt_cache(
    default_model: Path,
) -> None:
    lib = pytest.importorskip("xllamacpp")
    settings = parse_settings({"path": str(default_model), "context": 1024, "context_shift": True})
    params = build_embedding_params(lib, make_load_plan(settings))
    assert (params.n_ctx, params.n_parallel, params.cache_ram_mib) == (1024, MAX_INPUTS, 0)
    assert params.kv_unified  # with a context for each slot, longer inputs would be cut
    assert params.embedding
    assert not params.ctx_shift
