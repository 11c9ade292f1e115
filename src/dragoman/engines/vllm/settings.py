"""The settings of this engine, and the arguments of vLLM that they become.

A few of our options mean the same for every engine: context, slots, threads, adapters. All others
are given under vLLM's own names (`engine_arg`) and are passed on as they are, after their names
have been checked against the arguments that the installed version has.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.engines.vllm.adapters import find_max_rank
from dragoman.errors import ModelBroken
from dragoman.types import Json

# arguments that are ours to set -> what to use instead
OWN_ARGUMENTS = {
    "model": "name the model on the command line or in models.yaml",
    "served_model_name": "use --served-name",
    "enable_log_requests": "use --log-level",
    "skip_tokenizer_init": "grammars and stop tokens need the tokenizer",
    "disable_log_stats": "the server's metrics need them",
    "lora_modules": "use --lora",
}
CPU_CACHE_SHARE = 4  # of the available memory, a fourth is for the KV cache
MIN_CPU_CACHE = 1 << 28
MAX_CPU_CACHE = 1 << 33
FIT_MEMORY = -1  # vLLM's value for the longest context that fits


class VllmSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to run a model. A setting that is None is decided by vLLM."""

    path: str
    context: int | None = None
    slots: int | None = None
    threads: int | None = None  # of the CPU
    lora: dict[str, str] = msgspec.field(default_factory=dict)  # name -> directory
    embeddings: bool | None = None
    engine_arg: dict[str, Json] = msgspec.field(default_factory=dict)
    reads_core: bool = True  # use the fast path, where the installed version allows it


def parse_settings(values: Mapping[str, object]) -> VllmSettings:
    """Return the settings, or raise a `ModelBroken` that names the wrong one."""
    try:
        return msgspec.convert(dict(values), VllmSettings)
    except msgspec.ValidationError as error:
        raise ModelBroken(f"Invalid engine settings: {error}") from None


def build_arguments(
    settings: VllmSettings, known: Collection[str], *, on_cpu: bool, available: int
) -> dict[str, Json]:
    """Return the arguments of `AsyncEngineArgs`; `known` are the names that it has.

    `available` is the memory that the machine has left, in bytes.
    """
    given = {name.replace("-", "_"): value for name, value in settings.engine_arg.items()}
    for name in given:
        _check_name(name, known)
    arguments: dict[str, Json] = {
        "model": settings.path,
        "max_model_len": settings.context or FIT_MEMORY,
        "scheduling_policy": "priority",
        "disable_log_stats": True,  # ours is used instead
        "structured_outputs_config": {"backend": "guidance"},
    }
    if settings.slots is not None:
        arguments["max_num_seqs"] = settings.slots
    if settings.embeddings:
        arguments["runner"] = "pooling"
    if settings.lora:
        arguments |= {
            "enable_lora": True,
            "max_loras": len(settings.lora),
            "max_lora_rank": find_max_rank(settings.lora),
        }
    sizes_cache = "gpu_memory_utilization" in given or "kv_cache_memory_bytes" in given
    if on_cpu and not sizes_cache:
        share = available // CPU_CACHE_SHARE
        arguments["kv_cache_memory_bytes"] = min(max(share, MIN_CPU_CACHE), MAX_CPU_CACHE)
    if on_cpu:
        # on the CPU, vLLM 0.32 dies where a seeded request reads its prompt in several parts
        arguments["enable_chunked_prefill"] = False
    return {name: value for name, value in arguments.items() if name in known} | given


def _check_name(name: str, known: Collection[str]) -> None:
    if name in OWN_ARGUMENTS:
        raise ModelBroken(f"Invalid engine settings: `{name}`: {OWN_ARGUMENTS[name]}.")
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    raise ModelBroken(f"Invalid engine settings: vLLM has no argument `{name}`.{hint}")


def list_variables(settings: VllmSettings) -> dict[str, str]:
    """Return the environment variables of the process, which vLLM reads when it is imported."""
    variables = {
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the files are here
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.threads:
        variables |= {
            "OMP_NUM_THREADS": str(settings.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    return variables


def check_directory(path: Path) -> None:
    """Raise a `ModelBroken` unless there is a model in this directory."""
    if not (path / "config.json").is_file():
        raise ModelBroken("The model's config.json cannot be read.")
