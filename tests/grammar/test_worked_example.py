"""The worked example in docs/grammars.md is what the code produces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from dragoman.testing.grammars import match_grammar
from tests.support.paths import TEMPLATES
from tests.support.serving import serve_scripted

PAGE = Path(__file__).parents[2] / "docs" / "grammars.md"


def read_blocks(language: str) -> list[str]:
    """The fenced blocks of one language in the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("answer", read_blocks("text"))
def test_the_request_compiles_to_the_grammar_on_the_page(answer: str) -> None:
    """The scripted engine fails if its script violates the grammar of its job."""
    [body], [grammar] = read_blocks("json"), read_blocks("lark")
    engine = ScriptedEngine(answer.rstrip("\n"), check_grammars=True)
    with serve_scripted(engine, chat_template=TEMPLATES / "thinker.jinja") as server:
        url = f"{server.url}/v1/chat/completions"
        response = httpx.post(url, json=json.loads(body), timeout=60)
    assert response.status_code == 200, response.text
    assert [job.grammar for job in engine.jobs] == [grammar]


@pytest.mark.parametrize(
    "text",
    [
        "It is sunny.",
        '{"answer": "<tool_call>"}',
        '<tool_call>{"name": "get_weather", "arguments": {"days": 3}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "", "days": 8}}</tool_call>',
    ],
)
def test_the_grammar_on_the_page_rejects_other_answers(text: str) -> None:
    [grammar] = read_blocks("lark")
    assert not match_grammar(grammar, text)[0]
