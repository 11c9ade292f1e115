"""The settings of this engine, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.engines.llamacpp.loading.memory_plan import get_cache_types
from dragoman.engines.options import EngineOptions
from dragoman.errors import ModelBroken
from dragoman.options import InvalidOption, parse_options

DEFAULT_EMBED_CONTEXT = 2048
QUANTIZED_TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
NEED_DRAFT_MODEL = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
# types whose drafts depend on what other requests have sent
SHARING_TYPES = ("ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
DRAFT_OPTIONS = ("draft_max", "draft_min", "draft_p_min", "draft_gpu_layers")


class LlamaCppSettings(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to run a model. A setting that is None is determined by the model or the machine."""

    path: str
    memory: int = 0  # bytes that the model may use; 0 is what is available
    lora: dict[str, str] = msgspec.field(default_factory=dict)  # name -> adapter file
    embeddings: bool = True
    embed_context: int = DEFAULT_EMBED_CONTEXT  # tokens of an input to embed; memory grows with it

    @property
    def speculation(self) -> str | None:
        """How tokens are drafted; None is not at all."""
        return self.spec_type or ("draft-simple" if self.draft_model else None)


def can_save_states(settings: LlamaCppSettings) -> bool:
    """Whether the state of a slot can be saved.

    It has neither the KV cache of a draft model nor the adapters it was computed with.
    """
    drafts_by_model = (settings.speculation or "").startswith("draft")
    return not drafts_by_model and not settings.lora


def parse_settings(values: Mapping[str, object]) -> LlamaCppSettings:
    """Return the settings, or raise a `ModelBroken` that names the wrong one."""
    try:
        settings = parse_options(LlamaCppSettings, dict[object, object](values.items()))
        check_options(settings)
    except (InvalidOption, msgspec.ValidationError) as error:
        raise ModelBroken(f"Invalid engine settings: {error}") from None
    return settings


def check_options(options: EngineOptions) -> None:
    """Raise `InvalidOption` for options that contradict each other."""
    if options.flash_attn == "off" and get_cache_types(options)[1] in QUANTIZED_TYPES:
        raise InvalidOption(
            f"`cache_type_v` {get_cache_types(options)[1]} needs flash attention; set `flash_attn` "
            "to on or auto"
        )
    if options.exact and get_cache_types(options) != ("q8_0", "q8_0"):
        raise InvalidOption(
            "`exact` needs the KV cache type q8_0; leave out `cache_type_k` and `cache_type_v`"
        )
    if options.exact and options.cache_reuse:
        raise InvalidOption("`exact` and `cache_reuse` exclude each other")
    if options.rope_scale is not None and options.rope_freq_scale is not None:
        raise InvalidOption("`rope_scale` and `rope_freq_scale` mean the same; set one of them")
    if options.ubatch is not None and options.batch is not None and options.ubatch > options.batch:
        raise InvalidOption("`ubatch` must not be greater than `batch`")
    _check_speculation(options)


def _check_speculation(options: EngineOptions) -> None:
    kind = options.spec_type
    drafts = options.draft_model is not None
    if kind is None and not drafts:
        for name in (*DRAFT_OPTIONS, "spec_ngram"):
            if getattr(options, name) is not None:
                raise InvalidOption(f"`{name}` needs `draft_model` or `spec_type`")
    if kind is not None and kind.startswith("ngram") and drafts:
        raise InvalidOption(f"`spec_type` {kind} drafts without a `draft_model`; set one of them")
    if kind is not None and kind in NEED_DRAFT_MODEL and not drafts:
        raise InvalidOption(f"`spec_type` {kind} needs a `draft_model`")
    if options.spec_ngram is not None and not (kind or "").startswith("ngram"):
        raise InvalidOption("`spec_ngram` needs an n-gram `spec_type` such as ngram-simple")
    if kind in SHARING_TYPES and not options.shared_cache:
        raise InvalidOption(
            f"`spec_type` {kind} drafts from the prompts of all API keys; set `shared_cache` to "
            "allow that, or use ngram-simple"
        )
    low, high = options.draft_min, options.draft_max
    if low is not None and high is not None and low > high:
        raise InvalidOption("`draft_min` must not be greater than `draft_max`")
