"""Settings of vLLM under its own names: documented ones exist, and parallel ones work."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from typing import Any

import pytest

from dragoman.engines.vllm.installation import find_interpreter
from dragoman.types import DEFAULT_SAMPLING, Job, Sampling
from tests.support.paths import ROOT
from tests.support.vllm_model import ENGINES, WARM_UP, make_vllm_engine

LIST_FIELDS = """
import dataclasses, json
from vllm.engine.arg_utils import AsyncEngineArgs
print(json.dumps([field.name for field in dataclasses.fields(AsyncEngineArgs)]))
"""
PAGES = ("deploying.md", "gpu.md", "media.md", "upstream.md")
ENGINE_ARGUMENT = re.compile(r"--engine-arg ([a-z_]+)=")
YAML_ARGUMENTS = re.compile(r"engine_arg:(?: \{(.*?)\}|((?:\n +[a-z_]+: .*)+))")
PARALLEL_NAME = re.compile(r"`((?:tensor|pipeline|data)_parallel_\w+)=")
# with as many heads as two workers can share, and random weights
SMALL = {
    "load_format": "dummy",
    "hf_overrides": {
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "kv_cache_memory_bytes": 1 << 26,
}


def list_documented_names() -> set[str]:
    names: set[str] = set()
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        names.update(ENGINE_ARGUMENT.findall(text), PARALLEL_NAME.findall(text))
        for inline, block in YAML_ARGUMENTS.findall(text):
            names.update(re.findall(r"([a-z_]+):", inline or block))
    return names


def test_the_documented_settings_exist() -> None:
    interpreter = find_interpreter(ENGINES)
    assert interpreter is not None
    command = [interpreter.python, "-c", LIST_FIELDS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    known = set(json.loads(done.stdout.splitlines()[-1]))
    documented = list_documented_names()
    assert {"tensor_parallel_size", "nnodes", "data_parallel_backend"} <= documented
    assert documented <= known, documented - known


@pytest.mark.parametrize(
    "arguments",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2, "enforce_eager": False},
        {"data_parallel_size": 2},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_a_model_runs_in_several_workers(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, where a worker takes the place of a GPU."""
    if "pipeline_parallel_size" in arguments:
        for name, value in WARM_UP.items():
            monkeypatch.setenv(name, value)

    async def run() -> list[int]:
        engine = make_vllm_engine(arguments=SMALL | arguments, slots=4)
        await engine.start()
        try:
            return await asyncio.gather(*(count_tokens(engine, number) for number in range(6)))
        finally:
            await engine.aclose()

    assert asyncio.run(run()) == [5] * 6


async def count_tokens(engine: Any, number: int) -> int:
    sampling = Sampling(temperature=0.0, max_tokens=5, ignore_eos=True)
    sampling = sampling.with_defaults(DEFAULT_SAMPLING)
    job = Job(id=f"job-{number}", prompt=[100 + number, 200, 300], sampling=sampling)
    return sum([step.tokens async for step in engine.generate(job)])
