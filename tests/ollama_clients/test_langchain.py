"""LangChain's `ChatOllama` and `OllamaEmbeddings` in LangChain's own standard tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer, serve_scripted

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".ollama-clients" / "venv" / "bin" / "python"
TEMPLATE = ROOT / "tests" / "agents" / "qwen.jinja"
SUITE = Path(__file__).with_name("langchain_suite.py")
JOKE = json.dumps({"setup": "Why?", "punchline": "Because."})


def write_call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


SCRIPT = [
    Reply(write_call("magic_function", input=3), when="magic_function(3)"),
    Reply(write_call("magic_function_no_args"), when="magic_function_no_args()"),
    Reply(write_call("greeting_generator", answer_style="pirate"), when="Pirate greeting"),
    Reply(write_call("my_adder_tool", a=3, b=4), when="What is 3 + 4"),
    *(
        Reply(write_call("unicode_customer", customer_name=name, description=name), when=name)
        for name in ("你好啊集团", "こんにちは株式会社")
    ),
    Reply(write_call("get_weather", location="San Francisco, CA"), when="weather"),
    Reply(JOKE, when="joke"),
    Reply("I am fine, and how are things with the sea?"),
]


def run_suite(server: RunningServer, model: str) -> str:
    """Run the suite against a server and return what it printed."""
    environment = os.environ | {"OLLAMA_URL": server.url, "OLLAMA_MODEL": model}
    command = [str(PYTHON), "-m", "pytest", "-q", "-rs", "-c", os.devnull, str(SUITE)]
    command += [
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(SUITE.parent),
        "--asyncio-mode=auto",
    ]
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    return run.stdout


def count_passed(output: str) -> int:
    match = re.search(r"(\d+) passed", output)
    return int(match[1]) if match else 0


def test_standard_suite_with_a_model_that_calls_tools() -> None:
    engine = ScriptedEngine(
        SCRIPT, tokens=True, context=8192, grammars=True, modalities=("text", "image")
    )
    with serve_scripted(engine, chat_template=TEMPLATE) as server:
        assert count_passed(run_suite(server, "scripted")) >= 48


@pytest.mark.real_model
def test_standard_suite_with_the_default_model(default_model: Path) -> None:
    with serve(default_model, context=2048) as server:
        assert count_passed(run_suite(server, MODEL)) >= 27
