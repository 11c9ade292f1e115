"""Options to run a model, which the server sets for all models and an entry of a model for itself.

Names and values are those of llama-server's flags. `None` is "not set": the engine then decides by
the model and the machine. Settings of the server, options of a model and settings of an engine
inherit from `EngineOptions`, so that each option is declared once.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
SplitMode = Literal["none", "layer", "row", "tensor"]
RopeScaling = Literal["none", "linear", "yarn"]
NumaStrategy = Literal["distribute", "isolate", "numactl"]
SpeculationType = Literal[
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
]
Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How an engine runs a model."""

    context: CountOrZero | None = None  # tokens; 0: as trained, as far as memory allows
    slots: Count | None = None  # choices that are generated at the same time
    threads: CountOrZero | None = None  # 0: all cores
    threads_batch: CountOrZero | None = None  # for prompts; 0: as `threads`
    batch: Count | None = None  # tokens of prompts that are processed at once
    ubatch: Count | None = None  # of those, tokens that are computed at once
    gpu_layers: Annotated[int, Meta(ge=-1)] | None = None  # -1: as many as fit
    split_mode: SplitMode | None = None  # how several GPUs share the model
    tensor_split: tuple[Annotated[float, Meta(ge=0)], ...] | None = None  # share of each GPU
    main_gpu: CountOrZero | None = None
    cache_type_k: CacheType | None = None
    cache_type_v: CacheType | None = None
    flash_attn: Literal["on", "off", "auto"] | None = None
    exact: bool | None = None  # same seed, same tokens, whatever else runs
    cache_ram: CountOrZero | None = None  # MiB for prompts that are no longer in a slot
    cache_reuse: CountOrZero | None = None  # tokens of a chunk that is moved in the cache
    context_shift: bool | None = None
    swa_full: bool | None = None
    mlock: bool | None = None
    mmap: bool | None = None
    numa: NumaStrategy | None = None
    rope_scaling: RopeScaling | None = None
    rope_scale: Positive | None = None  # times the trained context
    rope_freq_base: Positive | None = None
    rope_freq_scale: Positive | None = None
    yarn_orig_ctx: Count | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None
    draft_model: str | None = None  # name or path of a small model that drafts tokens
    draft_max: Count | None = None
    draft_min: CountOrZero | None = None
    draft_p_min: Probability | None = None
    draft_gpu_layers: Annotated[int, Meta(ge=-1)] | None = None
    spec_type: SpeculationType | None = None
