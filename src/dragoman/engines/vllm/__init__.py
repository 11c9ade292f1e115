"""Safetensors models, run by vLLM's `AsyncLLM`.

vLLM needs versions of packages that clash with ours, so it lives in an environment of its own
(`installation`), and the engine runs in a child process of that environment's Python. There, the
modules of this package may import vLLM; the child has nothing of Dragoman but this package and what
it imports. The modules that the server's process uses as well (`installation`, `settings`,
`adapters`, and for `engines.remote` also `sampling`, `outputs` and `failures`) import neither vLLM
nor torch when they are loaded.

    engine          the engine: checks jobs, generates, embeds, tokenizes
    loading         creates vLLM's engine from the settings
    sampling        converts a job to the arguments of `SamplingParams`
    multi_modal     prompts with pictures or sound
    outputs         converts the outputs of `AsyncLLM` to steps
    core_reader     the fast path: reads the outputs of the engine core in place of `AsyncLLM`
    pooling         embeddings and scores
    adapters        LoRA adapters in the format of PEFT
    statistics      what vLLM's scheduler reports about itself
    failures        converts the exceptions of vLLM to our errors
    native          the type of vLLM's own objects
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.engines.vllm.engine import VllmEngine

# vLLM has neither `typical_p` nor a window of penalties (`repeat_last_n`).
SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "max_tokens",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
    }
)


async def create(**settings: object) -> VllmEngine:
    """Load a model; `settings` are the fields of `settings.VllmSettings`."""
    from dragoman.engines.vllm.engine import create as create_engine

    return await create_engine(**settings)
