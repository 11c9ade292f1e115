"""What a model writes: parsers take linear time, and arguments are data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.output.library import OutputParser, collect_markers
from dragoman.testing import Reply, ScriptedEngine
from tests.support.hostile_http import serve_hostile
from tests.support.hostile_samples import MODEL
from tests.support.paths import TEMPLATES
from tests.support.serving import make_chat
from tests.support.timing import measures_time

SMALL, LARGE = 3_000, 12_000  # characters; quadratic time would be 16 times as much
LINEAR = 8.0  # allowed ratio of their times; 4 is exact
NOTICEABLE = 0.03  # seconds below which a ratio says nothing


def make_outputs(name: str, kind: str, size: int) -> list[str]:
    """Outputs that are hard to parse for one format: repeated and unclosed markers."""
    tools = get_tool_formats()[name] if kind == "tools" else None
    reasoning = get_reasoning_formats()[name] if kind == "reasoning" else None
    markers = sorted(collect_markers(tools, reasoning), key=len, reverse=True)[:3] or ["<a>"]
    pieces = [*markers, markers[0][:-1] or "(", "{", '{"a":', '"\\"', "[" + markers[0], "0", " "]
    return [
        markers[0] + piece * (size // len(piece))
        for piece in pieces[hash_name(name) % 3 :: 3]  # a third of them, others for each format
    ]


def hash_name(name: str) -> int:
    return sum(map(ord, name))


def measure(name: str, kind: str, text: str) -> float:
    options = {"format": name} if kind == "tools" else {"reasoning": name}
    started = time.process_time()
    parser = OutputParser(**options)  # type: ignore[arg-type]
    for start in range(0, len(text), 500):
        parser.feed(text[start : start + 500])
    parser.close()
    return time.process_time() - started


def check_linear(name: str, kind: str, sizes: tuple[int, int]) -> int:
    smaller, larger = (make_outputs(name, kind, size) for size in sizes)
    for small, large in zip(smaller, larger, strict=True):
        seconds = measure(name, kind, large)
        if seconds > NOTICEABLE:
            ratio = min(measure(name, kind, large) / measure(name, kind, small) for _ in range(3))
            assert ratio < LINEAR, (name, large[:60])
    return len(larger)


@pytest.mark.parametrize("kind", ["tools", "reasoning"])
@measures_time
def test_hole_23_parsers_take_linear_time(kind: str, count_cases: Callable[[int], None]) -> None:
    """`tests/hostile/heavy` tries outputs of a megabyte."""
    names = get_tool_formats() if kind == "tools" else get_reasoning_formats()
    count_cases(sum(check_linear(name, kind, (SMALL, LARGE)) for name in names))


CODE = [
    "__import__('os').system('touch CANARY')",
    "open('CANARY', 'w')",
    'exec(\'open("CANARY", "w")\')',
    "(lambda: open('CANARY', 'w'))()",
    "[open('CANARY', 'w') for _ in [1]]",
    "{'a': open('CANARY', 'w')}",
    "eval(compile('open(\"CANARY\",\"w\")', '', 'exec'))",
    'f\'{open("CANARY", "w")}\'',
    "().__class__.__base__.__subclasses__()",
    "!!python/object/apply:os.system ['touch CANARY']",
    "${jndi:ldap://127.0.0.1/a}",
    "{{ 7 * 7 }}",
    "$(touch CANARY)",
    "`touch CANARY`",
]
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {"type": "object", "properties": {"code": {}, "count": {"type": "integer"}}},
    },
}
WRITERS: dict[str, Callable[[str], str]] = {
    "qwen3_coder": lambda code: (
        f"<tool_call>\n<function=run>\n<parameter=code>\n{code}\n</parameter>\n"
        f"<parameter=count>\n{code}\n</parameter>\n</function>\n</tool_call>"
    ),
    "pythonic": lambda code: f"[run(code={code}, count={code})]",
    "hermes_json": lambda code: (
        f"<tool_call>\n{json.dumps({'name': 'run', 'arguments': {'code': code}})}\n</tool_call>"
    ),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_hole_24_arguments_are_data(
    name: str, streamed: bool, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    canary = tmp_path / "canary"
    script = [
        Reply(WRITERS[name](code.replace("CANARY", str(canary))), when=f"number {index}.")
        for index, code in enumerate(CODE)
    ]
    options = {"chat_template": TEMPLATES / "chatml.jinja", "format": name}
    with serve_hostile(ScriptedEngine(script, tokens=True), **options) as server:
        for index, code in enumerate(CODE):
            body = make_chat(f"number {index}.", tools=[TOOL], stream=streamed)
            response = server.send("POST", "/v1/chat/completions", json=body)
            assert response.status_code == 200
            if name == "hermes_json" and not streamed:
                call = response.json()["choices"][0]["message"]["tool_calls"][0]
                arguments = json.loads(call["function"]["arguments"])
                assert arguments["code"] == code.replace("CANARY", str(canary))
    assert not canary.exists()
    count_cases(len(CODE))


PLACEHOLDERS = ["<image>", "<|image_1|>", "<|placeholder|>", "[IMG]", "<audio>", "<0x0A>", "{{x}}"]


@measures_time
def test_hole_25_placeholders_are_plain_text(count_cases: Callable[[int], None]) -> None:
    """10,000 placeholders: the time grows with the text, not faster."""

    def measure_requests(count: int) -> float:
        started = time.process_time()
        for placeholder in PLACEHOLDERS:
            body = {"model": MODEL, "messages": [{"role": "user", "content": placeholder * count}]}
            response = server.send("POST", "/tokenize", json=body)
            assert response.status_code == 200
        return time.process_time() - started

    engine = ScriptedEngine("x", tokens=True, context=1_000_000, markup=("<image>", "[IMG]"))
    with serve_hostile(engine, chat_template=TEMPLATES / "chatml.jinja") as server:
        measure_requests(10)
        small = min(measure_requests(2_500) for _ in range(2))
        assert measure_requests(10_000) <= 10 * small
    count_cases(len(PLACEHOLDERS))
