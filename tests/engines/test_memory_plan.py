"""Context, slots and memory that are planned for many models on many machines."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.engines.llamacpp.gguf import GgufHeader, TensorSummary
from dragoman.engines.llamacpp.loading.memory_plan import (
    Machine,
    MemoryPlan,
    estimate_cache,
    make_plan,
)
from dragoman.engines.llamacpp.loading.model_shape import ModelShape, read_shape
from dragoman.engines.options import EngineOptions
from dragoman.errors import ModelBroken

GB = 10**9
# Llama 3.1 8B at 4 bits: 128 KiB for each token of context
LLAMA_8B = {
    "context_length": 131072,
    "block_count": 32,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "vocab_size": 128256,
}


def make_shape(
    values: dict[str, Any], architecture: str = "llama", size: int = 5 * GB
) -> ModelShape:
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    metadata["general.architecture"] = architecture
    return read_shape(GgufHeader(3, metadata, TensorSummary(), size))


def plan(shape: ModelShape, memory: float, **options: Any) -> MemoryPlan:
    return make_plan(shape, EngineOptions(**options), Machine(memory=int(memory * GB)))


SMALL = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}


@pytest.mark.parametrize(
    ("architecture", "values", "context", "numbers"),
    [
        # numbers that one slot stores, without checkpoints of windows and states
        ("llama", SMALL, 1024, 1024 * 4 * 2 * 64),
        ("llama", SMALL | {"attention.head_count_kv": 2}, 1024, 1024 * 4 * 2 * 32),
        ("llama", SMALL | {"attention.key_length": 100}, 256, 256 * 4 * 4 * (100 + 16)),
        (
            "granitehybrid",  # attention in one layer only
            SMALL | {"attention.head_count_kv": array("i", [0, 0, 4, 0])},
            1024,
            1024 * 2 * 64,
        ),
        ("qwen3next", SMALL | {"full_attention_interval": 4}, 1024, 1024 * 2 * 64),
        ("gemma3n", SMALL | {"attention.shared_kv_layers": 3}, 1024, 1024 * 2 * 64),
        (
            "deepseek2",  # compressed attention
            SMALL
            | {
                "attention.head_count_kv": 1,
                "attention.key_length": 576,
                "attention.value_length": 512,
            },
            256,
            256 * 4 * (576 + 512),
        ),
        ("mystery", SMALL | {"attention.sliding_window": 128}, 1024, 1024 * 4 * 2 * 64),
        ("damaged", {"block_count": -4, "attention.head_count": 0}, 1024, 0),
    ],
)
def test_the_kv_cache_follows_the_shape_of_the_model(
    architecture: str, values: dict[str, Any], context: int, numbers: int
) -> None:
    shape = make_shape(values, architecture)
    assert estimate_cache(shape, EngineOptions(), context) == 2 * numbers
    assert estimate_cache(
        shape, EngineOptions(cache_type_k="f32", cache_type_v="f32"), context
    ) == (4 * numbers)


@pytest.mark.parametrize(
    ("architecture", "pattern"),
    [
        ("gemma2", {}),
        ("olmo2", {"attention.sliding_window_pattern": array("B", [1, 0, 1, 0])}),
        ("any", {"attention.sliding_window_pattern": 2}),
    ],
)
def test_layers_with_a_window_store_only_that(architecture: str, pattern: dict[str, Any]) -> None:
    values = SMALL | {"attention.sliding_window": 512} | pattern
    shape = make_shape(values, architecture)
    assert (shape.full.keys, shape.windowed.keys) == (128, 128)
    whole = make_shape(SMALL)
    for options in (EngineOptions(), EngineOptions(swa_full=True)):
        long, longer = (estimate_cache(shape, options, n * 65536) for n in (1, 2))
        full_growth = estimate_cache(whole, options, 65536)
        # only half of the layers grows with the context, and a copy of the window every 8192 tokens
        assert (longer - long < full_growth * 0.7) is (options.swa_full is None)


def test_recurrent_layers_have_a_state_of_a_fixed_size() -> None:
    mamba = {"block_count": 2, "ssm.inner_size": 100, "ssm.state_size": 16, "ssm.conv_kernel": 4}
    shape = make_shape(mamba | {"attention.head_count": 0}, "mamba")
    assert shape.state == 4 * 2 * (100 * 16 + 3 * (100 + 2 * 16))
    small, large = (estimate_cache(shape, EngineOptions(), n) for n in (256, 4096))
    assert small == large > 0


@pytest.mark.parametrize(
    ("scaling", "trained"),
    [
        ({}, 4096),
        ({"factor": 4.0, "original_context_length": 4096}, 16384),
        ({"factor": 4.0}, 4096),  # unknown whether it is included
        ({"factor": 2.0, "original_context_length": 1024}, 4096),  # it is included
        ({"factor": "x", "original_context_length": 4096}, 4096),
        ({"factor": float("nan"), "original_context_length": 4096}, 4096),
    ],
)
def test_the_trained_context_includes_rope_scaling(scaling: dict[str, Any], trained: int) -> None:
    values = {f"rope.scaling.{key}": value for key, value in scaling.items()}
    assert make_shape({"context_length": 4096, **values}).trained_context == trained


@pytest.mark.parametrize(
    ("memory", "options", "context", "slots"),
    [
        (200, {}, 131072, 4),  # everything fits in half of the memory
        (100, {}, 131072, 2),  # two slots do
        (40, {}, 131072, 1),  # the context is whole as long as one slot has it
        (16, {}, None, 1),  # lowered to what fits
        (16, {"slots": 4}, None, 4),
        (16, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, None, 1),
        (40, {"context": 8192}, 8192, 4),
        (40, {"context": 8192, "slots": 1}, 8192, 1),
        (4, {}, 4096, 1),  # the weights alone do not fit: they are mapped
    ],
)
def test_context_and_slots_follow_the_memory(
    memory: float, options: dict[str, Any], context: int | None, slots: int
) -> None:
    shape = make_shape(LLAMA_8B)
    result = plan(shape, memory, **options)
    assert result.slots == slots
    if context is not None:
        assert result.context == context
    else:  # as much as fits, and not less
        assert result.is_lowered
        assert 4096 < result.context < 131072
        assert result.memory.total <= 0.9 * memory * GB
        more = plan(shape, 1000, **options | {"context": result.context + 1024, "slots": slots})
        growth = more.memory.prompts - result.memory.prompts
        assert more.memory.total - growth > 0.9 * memory * GB
    assert str(result.trained_context) in result.describe()


def test_a_smaller_cache_type_fits_a_larger_context() -> None:
    shape = make_shape(LLAMA_8B)
    contexts = [
        plan(shape, 16, cache_type_k=kind, cache_type_v=kind).context
        for kind in ("f32", "f16", "q8_0", "q4_0")
    ]
    assert contexts == sorted(set(contexts))


def test_gpu_memory_counts_where_the_model_fits_there() -> None:
    shape, options = make_shape(LLAMA_8B), EngineOptions()
    both = Machine(memory=112 * GB, gpu_memory=12 * GB)
    on_gpu = make_plan(shape, options, both)
    assert on_gpu.memory.total < 12 * GB
    assert on_gpu.slots == 1
    tiny_gpu = replace(both, gpu_memory=2 * GB)
    assert make_plan(shape, options, tiny_gpu).context == 131072
    few_layers = EngineOptions(gpu_layers=4)
    assert make_plan(shape, few_layers, both).context == 131072


@pytest.mark.parametrize(
    ("machine", "options"),
    [
        (Machine(memory=16 * GB), {"context": 131072}),
        (Machine(memory=6 * GB), {"context": 32768, "slots": 2}),
        (Machine(memory=6 * GB, is_limit=True), {"context": 16384, "slots": 1}),
        (Machine(memory=5 * GB, is_limit=True), {}),
        (Machine(memory=5 * GB), {"mlock": True}),
        (Machine(memory=5 * GB), {"mmap": False}),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_it_needs(
    machine: Machine, options: dict[str, Any]
) -> None:
    with pytest.raises(ModelBroken, match=r"It needs about .* GB .*KV cache .*Lower --context"):
        make_plan(make_shape(LLAMA_8B), EngineOptions(**options), machine)


def test_weights_beyond_the_memory_are_a_warning() -> None:
    (warning,) = plan(make_shape(LLAMA_8B), 4, context=4096, slots=1).warnings
    assert "more than the 4.0 GB that are available" in warning


@pytest.mark.parametrize(
    ("options", "context", "warning"),
    [
        ({"context": 200000}, 131072, "trained for; it is served with 131072"),
        ({"context": 200000, "rope_scaling": "linear", "rope_scale": 4}, 131072, "yarn extends"),
        ({"context": 200000, "rope_scaling": "yarn"}, 200000, None),
        ({"context": 200000, "rope_scaling": "yarn", "rope_freq_scale": 0.5}, 200000, None),
        ({"context": 600000, "rope_scaling": "yarn", "rope_scale": 2}, 262144, "262144"),
        ({"gpu_layers": 20}, 131072, "no GPU"),
        ({"gpu_layers": 0}, 131072, None),
        ({"gpu_layers": -1}, 131072, None),
    ],
)
def test_what_cannot_be_honoured_is_a_warning(
    options: dict[str, Any], context: int, warning: str | None
) -> None:
    result = plan(make_shape(LLAMA_8B), 1000, **options)
    assert result.context == context
    assert len(result.warnings) == (warning is not None)
    assert warning is None or warning in result.warnings[0]


def test_a_draft_model_needs_memory_too() -> None:
    shape, draft = make_shape(LLAMA_8B), make_shape(LLAMA_8B | {"block_count": 4}, size=GB // 2)
    machine = Machine(memory=40 * GB)
    alone = make_plan(shape, EngineOptions(context=8192, slots=2), machine)
    both = make_plan(shape, EngineOptions(context=8192, slots=2), machine, draft)
    assert both.memory.weights == alone.memory.weights + GB // 2
    assert both.memory.cache == alone.memory.cache * 36 // 32
