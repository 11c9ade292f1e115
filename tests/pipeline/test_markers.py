"""Markers that are special tokens, and answers that begin inside a header."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import OpenAI

from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine
from tests.support.scripted_chats import (
    THINKER,
    ask_both_ways,
    list_deltas,
    parse_calls,
    post,
)
from tests.support.serving import make_chat, parse_events, serve_scripted

pytestmark = pytest.mark.slow

# Markers that are special tokens


GEMMA = ("<|endoftext|>", "<|im_start|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>",
         "<channel|>", "<|im_end|>")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "expected_calls"),
    [
        ("<|channel>thought\nplan<channel|>Hi", "Hi", "plan", []),
        ('Hi<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>', "Hi", "",
         [("weather", {"city": "Rome", "days": 3})]),
        ("<|channel>thought\nplan", "", "plan", []),
        ("a<tool_call|>b<|im_start|>c", "abc", "", []),
        ("<|tool_call>call:nobody{}<tool_call|>", "call:nobody{}", "", []),
    ],
)  # fmt: skip
def test_markers_that_are_special_tokens_are_parsed_and_never_shown(
    text: str, content: str, reasoning: str, expected_calls: list[Any]
) -> None:
    engine = ScriptedEngine(Reply(text, chunks="bytes"), tokens=True)
    engine.tokenizer = ByteTokenizer(GEMMA)
    options = {"format": "gemma4", "reasoning_format": "gemma4_channel"}
    with (
        serve_scripted(engine, chat_template=THINKER, **options) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = ask_both_ways(client, "it", logprobs=True)
        [choice] = answer["choices"]
        bare = post(server, "it", tools=None).json()["choices"][0]["message"]
        prompt = {"model": "scripted", "prompt": "x", "max_tokens": 500}
        raw = httpx.post(f"{server.url}/v1/completions", json=prompt).json()["choices"][0]["text"]
    assert choice["content"] == content
    assert choice["reasoning"] == reasoning
    assert parse_calls(choice) == expected_calls
    entries = choice["logprobs"] or []
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == content
    count = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert count == len(reasoning.encode())
    for token in GEMMA:
        assert token not in str(bare) + raw + content


def test_models_own_call_id_is_used() -> None:
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:4"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    with serve_scripted(text, chat_template=THINKER, format="kimi_k2") as server:
        [whole] = post(server, "it").json()["choices"][0]["message"]["tool_calls"]
        streamed = [
            delta["tool_calls"][0]
            for delta in list_deltas(post(server, "it", stream=True))
            if "tool_calls" in delta
        ]
    assert whole["id"] == streamed[0]["id"] == "functions.now:4"
    assert whole["function"] == {"name": "now", "arguments": "{}"}


def test_every_choice_has_the_models_own_call_ids() -> None:
    call_text = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    text = f"<|tool_calls_section_begin|>{call_text}{call_text}<|tool_calls_section_end|>"
    with serve_scripted(text, chat_template=THINKER, format="kimi_k2") as server:
        choices = post(server, "it", n=3).json()["choices"]
        chunks = [
            chunk["choices"][0] for chunk in parse_events(post(server, "it", n=3, stream=True))
        ]
    whole_ids = {
        (choice["index"], index): call["id"]
        for choice in choices
        for index, call in enumerate(choice["message"]["tool_calls"])
    }
    streamed_ids = {
        (chunk["index"], call["index"]): call["id"]
        for chunk in chunks
        for call in chunk["delta"].get("tool_calls", ())
        if "id" in call
    }
    for ids in (whole_ids, streamed_ids):
        assert [ids[choice, 0] for choice in range(3)] == ["functions.now:0"] * 3
        assert all(ids[choice, 1].startswith("call_") for choice in range(3))  # not unique


@pytest.mark.parametrize("tokens", [False, True])
def test_markers_that_belong_to_the_content_stay(tokens: bool) -> None:
    engine = ScriptedEngine(Reply("hm</think>Yes.", chunks="bytes"), tokens=True)
    if tokens:
        engine.tokenizer = ByteTokenizer(("<|endoftext|>", "<think>", "</think>", "<|im_end|>"))
    options = {"format": "none", "reasoning_format": "think_append"}
    with (
        serve_scripted(engine, chat_template=THINKER, **options) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        opened = {"chat_template_kwargs": {"enable_thinking": True}}
        [choice] = ask_both_ways(client, "it", logprobs=True, extra_body=opened)["choices"]
    assert choice["content"] == "<think>hm</think>Yes."
    data = bytes(byte for entry in choice["logprobs"] for byte in entry["bytes"]).decode()
    assert data == "hm</think>Yes."  # the opening marker is in the prompt


# Headers that the template opens

MESSAGES = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}END{% endfor %}"
FINAL_MESSAGE = "<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize(
    ("name", "opening", "text", "reasoning"),
    [
        ("harmony", "<|start|>assistant", f"<|channel|>analysis<|message|>hm{FINAL_MESSAGE}", "hm"),
        ("harmony", "<|start|>assistant<|channel|>", f"analysis<|message|>hm{FINAL_MESSAGE}", "hm"),
        ("harmony", "<|start|>assistant<|channel|>", "final<|message|>Hi<|return|>", ""),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", f"hm{FINAL_MESSAGE}", "hm"),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>", "Hi<|return|>", ""),
        (
            "muse_glimmer",
            "<|start|>",
            "assistant to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Hi<|eot|>",
            "hm",
        ),
    ],
)
def test_answer_may_begin_inside_a_header(
    name: str, opening: str, text: str, reasoning: str, tools: bool
) -> None:
    template = MESSAGES + "{% if add_generation_prompt %}" + opening + "{% endif %}"
    options = {"format": name if tools else "none", "reasoning_format": name}
    with serve_scripted(
        ScriptedEngine(Reply(text, chunks=3)), chat_template=template, **options
    ) as server:
        message = post(server, "it").json()["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content", "")) == ("Hi", reasoning)


def test_header_opened_by_the_user_is_text() -> None:
    with serve_scripted(
        "analysis<|message|>hm",
        chat_template="{{ messages[0].content }}",
        format="harmony",
        reasoning_format="harmony",
    ) as server:
        body = make_chat("<|start|>assistant<|channel|>")
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    assert "reasoning_content" not in answer["choices"][0]["message"]
