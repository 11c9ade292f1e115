"""Options to run a model, which the server sets for all models and an entry of a model for itself.

Names and values are those of llama-server's flags. `None` is "not set": the engine then decides by
the model and the machine. Settings of the server, options of a model and settings of an engine
inherit from `EngineOptions`, so that each option is declared once.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from dragoman.options import Setting

CacheType: TypeAlias = Literal[
    "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"
]
SplitMode: TypeAlias = Literal["none", "layer", "row", "tensor"]
Switch: TypeAlias = Literal["on", "off", "auto"]
RopeScaling: TypeAlias = Literal["none", "linear", "yarn"]
NumaStrategy: TypeAlias = Literal["distribute", "isolate", "numactl"]
SpeculationType: TypeAlias = Literal[
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
Count: TypeAlias = Annotated[int, Meta(ge=1)]
CountOrZero: TypeAlias = Annotated[int, Meta(ge=0)]
ThreadCount: TypeAlias = Annotated[int, Meta(ge=0, le=512)]  # GGML_MAX_N_THREADS
Layers: TypeAlias = Annotated[int, Meta(ge=-1)]
Share: TypeAlias = Annotated[float, Meta(ge=0)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]

# groups of `--help` and the documentation
ENGINE, GPU, MEMORY = "engine", "GPU", "engine memory"
ROPE, SPECULATION = "context extension (RoPE)", "speculative decoding"


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How an engine runs a model."""

    context: Annotated[
        CountOrZero | None,
        Setting(
            help="context size of each slot in tokens; 0 is the default",
            group=ENGINE,
            unit="tokens",
            default="what the model was trained for, or what fits in memory",
            aliases=("-c", "--ctx-size"),
        ),
    ] = None
    slots: Annotated[
        Count | None,
        Setting(
            help="choices generated at the same time, each with a full context of its own",
            group=ENGINE,
            default="4, or fewer if they need more than half of the memory",
            aliases=("-np", "--parallel"),
        ),
    ] = None
    threads: Annotated[
        ThreadCount | None,
        Setting(
            help="CPU threads to generate with",
            group=ENGINE,
            default="all physical cores",
            aliases=("-t",),
        ),
    ] = None
    threads_batch: Annotated[
        ThreadCount | None,
        Setting(
            help="CPU threads to process prompts with",
            group=ENGINE,
            default="the same as --threads",
            aliases=("-tb",),
        ),
    ] = None
    batch: Annotated[
        Count | None,
        Setting(
            help="prompt tokens in a batch; between batches, cancelled requests are dropped",
            group=ENGINE,
            default="128, or 2048 with a GPU",
            aliases=("-b", "--batch-size"),
        ),
    ] = None
    ubatch: Annotated[
        Count | None,
        Setting(
            help="prompt tokens that are computed at once",
            group=ENGINE,
            default="--batch, at most 512",
            aliases=("-ub", "--ubatch-size"),
        ),
    ] = None
    mmproj: Annotated[
        str | None,
        Setting(
            help="projector file with which the model reads pictures or sound; or none",
            group=ENGINE,
            metavar="PATH",
            default="the one beside the model",
            aliases=("-mm",),
        ),
    ] = None
    exact: Annotated[
        bool | None,
        Setting(
            help="make seeded answers independent of other requests; prompts take twice as long",
            group=ENGINE,
            default="off",
        ),
    ] = None
    numa: Annotated[
        NumaStrategy | None, Setting(help="placement of threads on NUMA nodes", group=ENGINE)
    ] = None
    cache_type_k: Annotated[
        CacheType | None,
        Setting(
            help="type of the keys in the KV cache",
            group=MEMORY,
            metavar="TYPE",
            default="f16, with --exact q8_0",
            aliases=("-ctk",),
        ),
    ] = None
    cache_type_v: Annotated[
        CacheType | None,
        Setting(
            help="type of the values in the KV cache",
            group=MEMORY,
            metavar="TYPE",
            default="f16, with --exact q8_0",
            aliases=("-ctv",),
        ),
    ] = None
    flash_attn: Annotated[
        Switch | None,
        Setting(help="flash attention", group=MEMORY, default="auto", aliases=("-fa",)),
    ] = None
    cache_ram: Annotated[
        CountOrZero | None,
        Setting(
            help="memory in MiB for cached prompts whose slot another request has taken",
            group=MEMORY,
            metavar="MIB",
            default="512, but at most an eighth of the memory",
            aliases=("-cram",),
        ),
    ] = None
    cache_reuse: Annotated[
        CountOrZero | None,
        Setting(
            help="smallest part of a cached prompt, in tokens, that is reused at another position; "
            "answers may differ from those of a new prompt",
            group=MEMORY,
            metavar="TOKENS",
            default="0, which turns this off",
        ),
    ] = None
    shared_cache: Annotated[
        bool | None,
        Setting(
            help="share cached prompts among all API keys; a key can then find out what others"
            " have sent",
            group=MEMORY,
            default="off",
        ),
    ] = None
    context_shift: Annotated[
        bool | None,
        Setting(
            help="drop the oldest tokens of a full context instead of ending the answer",
            group=MEMORY,
            default="off",
        ),
    ] = None
    swa_full: Annotated[
        bool | None,
        Setting(
            help="keep the full context of layers with a sliding window, so that more of a "
            "cached prompt can be reused",
            group=MEMORY,
            default="off",
        ),
    ] = None
    mmap: Annotated[
        bool | None,
        Setting(help="map the model file instead of reading it", group=MEMORY, default="on"),
    ] = None
    mlock: Annotated[
        bool | None,
        Setting(help="keep the model in memory, never in swap", group=MEMORY, default="off"),
    ] = None
    gpu_layers: Annotated[
        Layers | None,
        Setting(
            help="layers to run on the GPU; -1 is as many as fit",
            group=GPU,
            default="as many as fit, where there is a GPU",
            aliases=("-ngl", "--n-gpu-layers"),
        ),
    ] = None
    split_mode: Annotated[
        SplitMode | None,
        Setting(
            help="how several GPUs share the model",
            group=GPU,
            metavar="MODE",
            default="layer",
            aliases=("-sm",),
        ),
    ] = None
    tensor_split: Annotated[
        tuple[Share, ...] | None,
        Setting(
            help="share of the model on each GPU, such as 3,1",
            group=GPU,
            metavar="N,N,…",
            aliases=("-ts",),
        ),
    ] = None
    main_gpu: Annotated[
        CountOrZero | None,
        Setting(
            help="GPU to use with --split-mode none",
            group=GPU,
            metavar="INDEX",
            default="0",
            aliases=("-mg",),
        ),
    ] = None
    rope_scaling: Annotated[
        RopeScaling | None,
        Setting(
            help="RoPE scaling; yarn allows a larger context than the model was trained for",
            group=ROPE,
            metavar="METHOD",
            default="the model's own",
        ),
    ] = None
    rope_scale: Annotated[
        Positive | None,
        Setting(
            help="factor of the larger context",
            group=ROPE,
            default="with yarn, --context divided by the trained context",
        ),
    ] = None
    rope_freq_base: Annotated[
        Positive | None,
        Setting(help="base frequency of RoPE", group=ROPE, default="the model's own"),
    ] = None
    rope_freq_scale: Annotated[
        Positive | None,
        Setting(help="frequency scaling of RoPE; 1 / --rope-scale", group=ROPE),
    ] = None
    yarn_orig_ctx: Annotated[
        Count | None,
        Setting(
            help="context that the model was trained for before YaRN",
            group=ROPE,
            metavar="TOKENS",
            default="the model's own",
        ),
    ] = None
    yarn_ext_factor: Annotated[
        float | None, Setting(help="extrapolation mix factor of YaRN", group=ROPE)
    ] = None
    yarn_attn_factor: Annotated[
        float | None, Setting(help="attention magnitude of YaRN", group=ROPE)
    ] = None
    yarn_beta_slow: Annotated[
        float | None, Setting(help="high correction dimension of YaRN", group=ROPE)
    ] = None
    yarn_beta_fast: Annotated[
        float | None, Setting(help="low correction dimension of YaRN", group=ROPE)
    ] = None
    draft_model: Annotated[
        str | None,
        Setting(
            help="name or path of a smaller model with the same vocabulary that drafts tokens",
            group=SPECULATION,
            metavar="MODEL",
            aliases=("-md", "--model-draft"),
        ),
    ] = None
    spec_type: Annotated[
        SpeculationType | None,
        Setting(
            help="how tokens are drafted",
            group=SPECULATION,
            metavar="TYPE",
            default="draft-simple with --draft-model, else none",
        ),
    ] = None
    draft_max: Annotated[
        Count | None,
        Setting(
            help="maximum number of tokens to draft at a time",
            group=SPECULATION,
            default="the engine's own",
            aliases=("--draft", "--draft-n", "--spec-draft-n-max"),
        ),
    ] = None
    draft_min: Annotated[
        CountOrZero | None,
        Setting(
            help="minimum number of tokens to draft at a time",
            group=SPECULATION,
            default="the engine's own",
            aliases=("--draft-n-min", "--spec-draft-n-min"),
        ),
    ] = None
    draft_p_min: Annotated[
        Probability | None,
        Setting(
            help="minimum probability of a token that the draft model drafts",
            group=SPECULATION,
            metavar="P",
            default="0",
            aliases=("--spec-draft-p-min",),
        ),
    ] = None
    draft_gpu_layers: Annotated[
        Layers | None,
        Setting(
            help="layers of the draft model to run on the GPU",
            group=SPECULATION,
            default="as many as fit, where there is a GPU",
            aliases=("-ngld", "--gpu-layers-draft"),
        ),
    ] = None
    spec_ngram: Annotated[
        Count | None,
        Setting(
            help="tokens that must match for an n-gram type to draft",
            group=SPECULATION,
            metavar="TOKENS",
            default="12, or 24 with ngram-mod",
            aliases=("--spec-ngram-size-n",),
        ),
    ] = None
