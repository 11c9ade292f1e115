"""Memory of the engine as it is measured, and contexts at their limits, with the default model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.engines.llamacpp.loading.load_plan import make_load_plan
from dragoman.engines.llamacpp.loading.settings import parse_settings
from tests.support.llama_engine import STORY, EngineRunner
from tests.support.model_files import write_long_context_model
from tests.support.server_process import read_until, run_server

pytestmark = pytest.mark.real_model

# prints the resident bytes of a process that has loaded the model and generated a token
MEASURE = """
import json, sys
from dragoman.engines.llamacpp import create
engine = create(**json.loads(sys.argv[1]))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmRSS"].split()[0]) * 1024, flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"context": 256, "slots": 1},
        {"context": 8192, "slots": 2},
        {"context": 8192, "slots": 2, "cache_type_k": "q8_0", "cache_type_v": "q4_0"},
        {"context": 4096, "slots": 1, "mmap": False, "batch": 512},
    ],
)
def test_the_estimate_is_near_what_the_engine_needs(
    default_model: Path, settings: dict[str, Any]
) -> None:
    settings = {"path": str(default_model), "threads": 1, **settings}
    memory = make_load_plan(parse_settings(settings)).memory.memory
    command = [sys.executable, "-c", MEASURE, json.dumps(settings)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    measured = int(result.stdout)
    ratio = (memory.total - memory.prompts) / measured
    print(f"{settings}: estimated / measured = {ratio:.2f} ({measured / 1e6:.0f} MB)")
    assert 0.7 < ratio < 1.6


def test_a_model_that_claims_a_large_context_is_served_with_what_fits(
    default_model: Path, tmp_path: Path
) -> None:
    file = write_long_context_model(tmp_path / "long.gguf", default_model, 131072)
    arguments = ("--memory", "330MB", "--threads", "1", "--gpu-layers", "4")
    with run_server(str(file), *arguments) as server:
        line = read_until(server.process, r"context (\d+ tokens \(trained for 131072, lowered .*)")
        read_until(server.process, "--gpu-layers has no effect: .* finds no GPU")
        read_until(server.process, "Serving long")
        card = httpx.get(f"{server.url}/v1/models/long").json()
        served = card["context_length"]
        assert 256 <= served < 131072
        assert card["max_model_len"] == served
        assert card["trained_context_length"] == 131072
        assert 0.8 * 330e6 < card["memory"] <= 330e6
        assert line.startswith(f"{served} tokens (trained for 131072, lowered to fit in 330 MB;")
        assert "--context" in line
        body = {"model": "long", "prompt": [100] * served, "max_tokens": 1}
        answer = httpx.post(f"{server.url}/v1/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["message"].startswith(
            f"This model's maximum context length is {served} tokens (it was trained for 131072 "
            "tokens; the server's --context can raise it). However, your prompt resulted in"
        )


def test_an_answer_continues_in_a_context_that_shifts(default_model: Path) -> None:
    settings = {"path": str(default_model), "context": 256, "slots": 1, "threads": 1}
    runner = EngineRunner(**settings, context_shift=True)
    try:
        prompt = STORY * 12
        room = 256 - len(runner.encode(prompt))
        answer = runner.generate(prompt, max_tokens=room + 20, ignore_eos=True)
        assert 0 < room < 60
        assert (answer.count_tokens(), answer.get_finish()) == (room + 20, "length")
        assert len(answer.get_ids()) == room + 20
    finally:
        runner.close()


@pytest.mark.parametrize("cache_reuse", [0, 16])
def test_a_part_of_a_cached_prompt_is_reused_at_another_position(
    default_model: Path, cache_reuse: int
) -> None:
    settings = {"path": str(default_model), "context": 256, "slots": 1, "threads": 1}
    runner = EngineRunner(**settings, cache_reuse=cache_reuse)
    try:
        runner.generate("The first sentence is dropped. " + STORY * 3, max_tokens=1)
        cached = runner.generate("The " + STORY * 3, max_tokens=1).count_cached()
        assert cached > 40 if cache_reuse else cached <= 1
    finally:
        runner.close()


def test_yarn_extends_the_context(default_model: Path) -> None:
    """The answer to a short prompt shows that the model still works; a long one takes minutes."""
    settings = {"path": str(default_model), "context": 12288, "slots": 1, "threads": 1}
    runner = EngineRunner(**settings, rope_scaling="yarn", embeddings=False)
    try:
        capabilities = runner.engine.capabilities
        assert (capabilities.context, capabilities.trained_context) == (12288, 8192)
        assert "Paris" in runner.generate(max_tokens=12).get_text()
    finally:
        runner.close()
