"""What the server tells about requests to the default model, as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.real_model import MODEL, serve
from tests.support.server_process import read_until, run_server

pytestmark = pytest.mark.real_model
BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Say hi."}],
    "max_tokens": 8,
    "temperature": 0,
}


def test_command_line_writes_json_logs(default_model: Path) -> None:
    models = str(default_model.parent.parent)
    flags = ("--log-format", "json", "--models-dir", models, "--store", "sqlite://")
    with run_server(*flags, "--threads", "1", "--debug-header", MODEL) as (process, url):
        read_until(process, "Serving ")
        headers = {"x-dragoman-debug": "prompt,output", "x-request-id": "first"}
        answer = httpx.post(
            f"{url}/v1/chat/completions", json=BODY, headers=headers, timeout=60
        ).json()
        line = read_until(process, '(.*"request_id": "first".*)')
        metrics = httpx.get(f"{url}/metrics").text
        process.terminate()
    event = json.loads(line)
    usage = answer["usage"]
    assert event["model"] == MODEL
    assert event["completion_tokens"] == usage["completion_tokens"]
    assert event["prompt_tokens"] == usage["prompt_tokens"]
    assert event["prefill_ms"] > 0
    assert event["tokens_per_second"] > 0
    debug, [choice] = answer["debug"], answer["choices"]
    assert debug["prompt"].endswith("<|im_start|>assistant\n")
    assert "<|im_start|>user\nSay hi.<|im_end|>" in debug["prompt"]
    assert debug["output"].startswith(choice["message"]["content"])
    assert f'dragoman_model_load_seconds_count{{model="{MODEL}"}} 1.0' in metrics


def test_timings_show_the_prompt_cache(default_model: Path) -> None:
    with serve(default_model, slots=1) as server:
        url = f"{server.url}/v1/chat/completions"
        body = BODY | {"timings": True}
        first, second = (httpx.post(url, json=body, timeout=60).json() for _ in range(2))
    assert first["timings"]["cache_n"] == 0
    assert first["timings"]["prompt_n"] == first["usage"]["prompt_tokens"]
    assert second["timings"]["cache_n"] > 0
    tokens = second["timings"]["cache_n"] + second["timings"]["prompt_n"]
    assert tokens == second["usage"]["prompt_tokens"]
    assert second["timings"]["predicted_n"] == second["usage"]["completion_tokens"]
    assert second["timings"]["predicted_ms"] > 0
