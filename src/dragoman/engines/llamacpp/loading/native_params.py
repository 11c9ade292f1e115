"""Turns settings into the parameters of the native library."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.engines.llamacpp.gguf import GgufHeader
from dragoman.engines.llamacpp.loading.memory_plan import (
    MemoryPlan,
    get_batches,
    get_cache_types,
    get_rope_scale,
)
from dragoman.engines.llamacpp.loading.model_shape import ModelShape
from dragoman.engines.llamacpp.loading.settings import LlamaCppSettings
from dragoman.engines.llamacpp.media.projector import Projector
from dragoman.engines.llamacpp.pooling.batches import MAX_INPUTS
from dragoman.engines.llamacpp.pooling.head import NO_POOLING, RANK_POOLING, read_head

# `xllamacpp` has no type stubs
CommonParams: TypeAlias = Any

# settings that are one parameter each, and the names of these parameters
PLAIN_FIELDS = {
    "rope_freq_base": "rope_freq_base",
    "yarn_orig_ctx": "yarn_orig_ctx",
    "yarn_ext_factor": "yarn_ext_factor",
    "yarn_attn_factor": "yarn_attn_factor",
    "yarn_beta_slow": "yarn_beta_slow",
    "yarn_beta_fast": "yarn_beta_fast",
    "main_gpu": "main_gpu",
    "swa_full": "swa_full",
    "context_shift": "ctx_shift",
    "cache_reuse": "n_cache_reuse",
}
DRAFT_FIELDS = {
    "draft_max": "n_max",
    "draft_min": "n_min",
    "draft_p_min": "p_min",
    "draft_gpu_layers": "n_gpu_layers",
}


class LoadPlan(Struct, frozen=True, kw_only=True):
    """Everything that decides how a model is loaded."""

    settings: LlamaCppSettings
    header: GgufHeader
    shape: ModelShape
    memory: MemoryPlan
    threads: int
    on_gpu: bool
    projector: Projector | None = None  # with which it reads pictures or sound


def build_params(lib: ModuleType, plan: LoadPlan) -> CommonParams:
    """Return the parameters of the server that generates."""
    settings, params = plan.settings, _build_base(lib, plan)
    params.n_parallel = plan.memory.slots
    params.n_ctx = plan.memory.context * plan.memory.slots
    params.n_batch, params.n_ubatch = get_batches(settings, plan.on_gpu)
    _set_cache(lib, params, plan)
    _set_adapters(lib, params, settings)
    _set_speculation(lib, params, settings)
    if plan.projector is not None:
        params.mmproj.path = str(plan.projector.path)
        params.mmproj_use_gpu = plan.on_gpu
        params.chat_template = "chatml"  # only used to count the tokens of media
    return params


def build_embedding_params(lib: ModuleType, plan: LoadPlan) -> CommonParams:
    """Return the parameters of the server that embeds or scores.

    Its slots share one KV cache: with one for each, inputs of different lengths would be cut, and
    only a part of a longer one averaged.
    """
    head, params = read_head(plan.header), _build_base(lib, plan)
    context = get_pooling_context(plan)
    params.ctx_shift = False
    params.embedding = True
    params.n_parallel = count_pooling_slots(plan)
    params.kv_unified = True
    params.n_ctx = context
    params.n_batch = params.n_ubatch = context  # an input is averaged over one batch
    params.cache_ram_mib = 0
    params.embd_normalize = 2
    types = lib.llama_pooling_type
    if head.kind is None or head.kind == NO_POOLING:
        params.pooling_type = types.LLAMA_POOLING_TYPE_MEAN
    elif head.kind == RANK_POOLING:  # the server does not read it from the file
        params.pooling_type = types.LLAMA_POOLING_TYPE_RANK
    return params


def get_pooling_context(plan: LoadPlan) -> int:
    """Return how many tokens an input to embed or score may have."""
    context = min(plan.memory.context, plan.settings.embed_context)
    if read_head(plan.header).is_encoder:  # its positions are a table of the trained length
        return min(context, plan.memory.trained_context)
    return context


def count_pooling_slots(plan: LoadPlan) -> int:
    """Return how many inputs one batch may have; each needs a state of recurrent layers."""
    return 1 if plan.shape.state else MAX_INPUTS


def _build_base(lib: ModuleType, plan: LoadPlan) -> CommonParams:
    settings, params = plan.settings, lib.CommonParams()
    params.model.path = settings.path
    params.cpuparams.n_threads = plan.threads
    params.cpuparams_batch.n_threads = settings.threads_batch or plan.threads
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.cors_origins = ""
    params.verbosity = 0
    params.warmup = False
    params.kv_unified = False
    params.cache_idle_slots = False
    params.fit_params = plan.on_gpu
    for name, parameter in PLAIN_FIELDS.items():
        value = getattr(settings, name)
        if value is not None:
            setattr(params, parameter, value)
    _set_devices(lib, params, plan)
    _set_rope(lib, params, plan)
    params.load_mode = _find_load_mode(lib, settings)
    if settings.numa is not None:
        params.numa = _get_member(lib.ggml_numa_strategy, "GGML_NUMA_STRATEGY", settings.numa)
    return params


def _set_devices(lib: ModuleType, params: CommonParams, plan: LoadPlan) -> None:
    settings = plan.settings
    layers = settings.gpu_layers
    if layers is None or layers < 0:
        layers = -1 if plan.on_gpu else 0
    params.n_gpu_layers = layers
    if settings.split_mode is not None:
        params.split_mode = _get_member(
            lib.llama_split_mode, "LLAMA_SPLIT_MODE", settings.split_mode
        )
    if settings.tensor_split is not None:
        shares = list(params.tensor_split)
        shares[: len(settings.tensor_split)] = settings.tensor_split
        params.tensor_split = shares


def _set_rope(lib: ModuleType, params: CommonParams, plan: LoadPlan) -> None:
    settings = plan.settings
    if settings.rope_scaling is not None:
        params.rope_scaling_type = _get_member(
            lib.llama_rope_scaling_type, "LLAMA_ROPE_SCALING_TYPE", settings.rope_scaling
        )
    scale = get_rope_scale(plan.shape, settings)
    if scale is not None:
        params.rope_freq_scale = 1 / scale


def _find_load_mode(lib: ModuleType, settings: LlamaCppSettings) -> Any:
    modes = lib.llama_load_mode
    if settings.mmap is False:
        return modes.LLAMA_LOAD_MODE_MLOCK if settings.mlock else modes.LLAMA_LOAD_MODE_NONE
    if settings.mlock:
        return modes.LLAMA_LOAD_MODE_MMAP_MLOCK
    return modes.LLAMA_LOAD_MODE_MMAP if settings.mmap else modes.LLAMA_LOAD_MODE_AUTO


def _set_cache(lib: ModuleType, params: CommonParams, plan: LoadPlan) -> None:
    """Set the types of the KV cache, and turn the server's prompt cache off (see `slots`).

    Attention over a 16-bit cache uses one of three kernels, depending on how many tokens share a
    batch, and their results differ in the last digits: a seeded answer may depend on what else is
    running and on what was cached. For an 8-bit cache there is only one kernel. It needs half the
    memory, and processes long prompts half as fast. `exact` chooses it.
    """
    settings = plan.settings
    keys, values = get_cache_types(settings)
    params.cache_type_k = _get_member(lib.ggml_type, "GGML_TYPE", keys)
    params.cache_type_v = _get_member(lib.ggml_type, "GGML_TYPE", values)
    flash = settings.flash_attn or ("on" if settings.exact else "auto")
    kinds = lib.llama_flash_attn_type
    params.flash_attn_type = {
        "on": kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        "off": kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        "auto": kinds.LLAMA_FLASH_ATTN_TYPE_AUTO,
    }[flash]
    # the server looks prompts up by their tokens alone, not by owner or adapters
    params.cache_ram_mib = 0


def _set_adapters(lib: ModuleType, params: CommonParams, settings: LlamaCppSettings) -> None:
    adapters = []
    for path in settings.lora.values():
        adapter = lib.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = path, 0.0
        adapters.append(adapter)
    params.lora_adapters = adapters
    params.lora_init_without_apply = True


def _set_speculation(lib: ModuleType, params: CommonParams, settings: LlamaCppSettings) -> None:
    kind = settings.speculation
    if kind is None:
        return
    speculative = params.speculative
    speculative.types = [
        _get_member(lib.common_speculative_type, "COMMON_SPECULATIVE_TYPE", kind.replace("-", "_"))
    ]
    draft = speculative.draft
    if settings.draft_model is not None:
        draft.mparams.path = settings.draft_model
        draft.n_gpu_layers = params.n_gpu_layers
    for name, parameter in DRAFT_FIELDS.items():
        value = getattr(settings, name)
        if value is not None:
            setattr(draft, parameter, value)
    _set_ngram(speculative, settings)


def _set_ngram(speculative: Any, settings: LlamaCppSettings) -> None:
    """Set the lengths of n-grams: how many tokens must match and how many are drafted."""
    maps = (speculative.ngram_simple, speculative.ngram_map_k, speculative.ngram_map_k4v)
    if settings.spec_ngram is not None:
        speculative.ngram_mod.n_match = settings.spec_ngram
        for ngram in maps:
            ngram.size_n = settings.spec_ngram
    if settings.draft_min is not None:
        speculative.ngram_mod.n_min = settings.draft_min
    if settings.draft_max is not None:
        speculative.ngram_mod.n_max = settings.draft_max
        speculative.ngram_mod.n_min = min(speculative.ngram_mod.n_min, settings.draft_max)
        for ngram in maps:
            ngram.size_m = settings.draft_max


def _get_member(enum: Any, prefix: str, name: str) -> Any:
    """Return the library's constant for the value of a setting."""
    return getattr(enum, f"{prefix}_{name.upper()}")
