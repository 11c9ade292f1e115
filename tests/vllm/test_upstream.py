"""`dragoman serve --upstream` before vLLM's own server, with the clients that people use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.types import DEFAULT_SAMPLING, Job, Sampling
from tests.clients.test_upstream import (  # noqa: F401
    test_chat_of_ollama,
    test_messages_of_anthropic,
    test_responses_keep_their_state,
    test_tools_and_schemas_of_openai,
    test_whole_equals_streamed,
)
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer
from tests.support.upstream_servers import serve_upstream
from tests.support.vllm_model import get_model, make_vllm_engine
from tests.support.vllm_server import run_vllm_server

CONTEXT = 2048
STORY = "Once upon a time there was a parrot who could speak four languages. " * 12
LONG_STORY = STORY * 7  # so that a block of the cache is a small part of it
QUESTIONS = (
    "Tell the story again, shorter.",
    "Who is it about?",
    "What could it speak?",
    "Where did it live?",
    "Say goodbye in one sentence.",
)
PROMPTS = ("What is the capital of France?", "Count to five.", "Why is the sky blue?", STORY)


@pytest.fixture(scope="module")
def upstream(_prepare: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_vllm_server(tmp_path_factory.mktemp("vllm") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def server(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Our server; the tokenizer and the template are in the directory that vLLM names."""
    with serve_upstream(upstream, tmp_path_factory.mktemp("models"), served_name=["m"]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {"api_key": "x", "max_retries": 0, "timeout": 300}
    with openai.OpenAI(base_url=f"{server.url}/v1", **options) as made:
        yield made


def test_finds_out_what_runs_there(server: RunningServer) -> None:
    card = httpx.get(f"{server.url}/v1/models/m", timeout=60).json()
    assert (card["upstream"]["server"], card["upstream"]["api"]) == ("vLLM", "tokens")
    assert card["upstream"]["limitations"] == []
    assert card["context_length"] == CONTEXT
    assert {"chat", "tools", "grammar", "logprobs"} <= set(card["capabilities"])


def make_jobs(ids: list[list[int]]) -> list[Job]:
    sampling = Sampling(temperature=0.0, max_tokens=12).with_defaults(DEFAULT_SAMPLING)
    return [
        Job(id=f"alike-{number}", prompt=prompt, sampling=sampling)
        for number, prompt in enumerate(ids)
    ]


async def generate(engine: Any, ids: list[list[int]]) -> list[tuple[list[int], Any, Any]]:
    """Return the ids of each answer, why it ended, and the tokens of its prompt."""
    answers = []
    for job in make_jobs(ids):
        steps = [step async for step in engine.generate(job)]
        tokens = [token for step in steps for token in step.ids]
        prompt_tokens = next(s.prompt_tokens for s in steps if s.prompt_tokens is not None)
        answers.append((tokens, steps[-1].finish, prompt_tokens))
    return answers


@pytest.mark.parametrize("without", [(), ("enable-scale-out",)], ids=["generate", "completions"])
def test_greedy_ids_equal_those_of_the_embedded_engine(
    server: RunningServer, without: tuple[str, ...], tmp_path: Path
) -> None:
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    embedded = make_vllm_engine(context=CONTEXT)
    assert isinstance(embedded, SubprocessEngine)

    async def run_embedded() -> tuple[list[list[int]], list[Any]]:
        await embedded.start()
        try:
            ids = [await embedded.tokenize(template.format(text), True) for text in PROMPTS]
            return ids, await generate(embedded, ids)
        finally:
            await embedded.aclose()

    ids, expected = asyncio.run(run_embedded())
    assert all(tokens for tokens, _, _ in expected)
    if not without:
        assert server.run_coroutine(generate(get_model(server).engine, ids), 300) == expected
        return
    with (
        run_vllm_server(tmp_path / "log", without=without) as url,
        serve_upstream(url, tmp_path, served_name=["m"]) as other,
    ):
        assert other.run_coroutine(generate(get_model(other).engine, ids), 300) == expected


@pytest.mark.parametrize("template", ["", "thinker"], ids=["plain", "reasoning"])
def test_a_conversation_of_five_turns_hits_the_cache_of_the_server(
    upstream: str, template: str, tmp_path: Path
) -> None:
    """All but the new question and the last block comes from the cache, as vLLM counts it."""
    options: dict[str, Any] = {"served_name": ["m"]}
    if template:
        options["chat_template"] = str(TEMPLATES / f"{template}.jinja")
    with serve_upstream(upstream, tmp_path, **options) as running:
        share, reasoned = hold_conversation(running, upstream, bool(template))
    print(f"{100 * share:.1f} % of the prompts of turns 2 to 5 came from the cache of vLLM")
    assert reasoned == (len(QUESTIONS) if template else 0)
    assert share >= 0.95


def hold_conversation(server: RunningServer, upstream: str, reasons: bool) -> tuple[float, int]:
    """Return the share of cached tokens after the first turn, and the answers with reasoning."""
    messages: list[Any] = [{"role": "system", "content": LONG_STORY}]
    reasoned = 0
    counts = [(0.0, 0.0)]
    extra: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": reasons}}
    if reasons:
        extra["thinking_budget"] = 16
    options: dict[str, Any] = {"api_key": "x", "max_retries": 0, "timeout": 300}
    with openai.OpenAI(base_url=f"{server.url}/v1", **options) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            answer = client.chat.completions.create(
                model="m", messages=messages, temperature=0.8, max_tokens=60, extra_body=extra
            )
            message = answer.choices[0].message
            reasoning = getattr(message, "reasoning_content", None)
            reasoned += bool(reasoning)
            turn = {"role": "assistant", "content": message.content}
            messages.append(turn | ({"reasoning_content": reasoning} if reasoning else {}))
            counts.append(read_cache_counts(upstream))
    (first_hits, first_queries), (hits, queries) = counts[1], counts[-1]
    return (hits - first_hits) / (queries - first_queries), reasoned


def read_cache_counts(upstream: str) -> tuple[float, float]:
    """Return how many tokens of prompts vLLM has found in its cache, and looked for."""
    text = httpx.get(f"{upstream}/metrics", timeout=60).text
    names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    hits, queries = (
        sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))
        for name in names
    )
    return hits, queries
