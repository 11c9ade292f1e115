"""The real model behind a real client: the whole line, from HTTP to llama.cpp and back."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.support.lora import make_adapter
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer, parse_events

ASK: Any = [{"role": "user", "content": "Tell me about the sea."}]


@pytest.fixture(scope="module")
def server(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    poet = make_adapter(tmp_path_factory.mktemp("lora") / "poet.gguf", seed=1)
    with serve(default_model, lora=(f"poet={poet}",), context=2048) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    url = f"{server.url}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def engine_of(server: RunningServer) -> Any:
    return next(iter(server.app.runtime.services.models.list_loaded())).engine


CASES: list[dict[str, Any]] = [
    {"seed": 1, "max_tokens": 24},
    {"temperature": 0, "max_tokens": 24},
    {"seed": 2, "max_tokens": 16, "n": 3},
    {"seed": 3, "max_tokens": 16, "logprobs": True, "top_logprobs": 3},
    {"seed": 4, "max_tokens": 40, "stop": [" the", "e sea"]},
    {"seed": 5, "max_tokens": 16, "extra_body": {"grammar": 'root ::= "日本😀 café " [a-z]+'}},
    {
        "seed": 6,
        "max_tokens": 12,
        "logprobs": True,
        "extra_body": {"grammar": 'root ::= "日本😀"'},
    },
]


@pytest.mark.parametrize("case", CASES)
def test_a_stream_equals_the_whole_answer(client: OpenAI, case: dict[str, Any]) -> None:
    said = {**case}
    said["extra_body"] = {"cache_prompt": False} | case.get("extra_body", {})
    whole = client.chat.completions.create(model=MODEL, messages=ASK, **said)
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}, **said
    ):
        state.handle_chunk(chunk)
    added = state.current_completion_snapshot
    assert added.usage == whole.usage
    for mine, theirs in zip(added.choices, whole.choices, strict=True):
        assert mine.message.content == theirs.message.content
        assert mine.finish_reason == theirs.finish_reason
        assert (mine.logprobs and mine.logprobs.content) == (
            theirs.logprobs and theirs.logprobs.content
        )
    assert "\ufffd" not in (whole.choices[0].message.content or "")


def test_the_same_seed_gives_the_same_answer(client: OpenAI) -> None:
    def ask(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, seed=seed, max_tokens=24, temperature=1.2
        )
        return answer.choices[0].message.content

    assert ask(11) == ask(11)
    assert ask(11) != ask(12)


def test_d28_three_choices_are_three_answers(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, n=3, seed=1, max_tokens=16, temperature=1.5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage is not None
    one = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1)
    assert one.usage is not None
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens


def test_d25_greedy_in_three_spellings(client: OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=16, **fields)
        return answer.choices[0].message.content

    coldest = ask(temperature=0)
    assert coldest == ask(temperature=0, seed=99, top_p=0.5)
    assert coldest == ask(temperature=1.8, extra_body={"top_k": 1})


def test_d34_logprobs_count_and_add_up(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=12, logprobs=True, top_logprobs=5
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert len(entries) == 12
    for entry in entries:
        assert len(entry.top_logprobs) == 5
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert entry.logprob <= 0


def test_a_stop_string_split_over_tokens(client: OpenAI) -> None:
    plain = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=40)
    text = plain.choices[0].message.content or ""
    stop = text[10:19]
    cut = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=40, stop=stop
    )
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_completions_with_echo_logprobs_and_token_ids(
    server: RunningServer, client: OpenAI
) -> None:
    text = "The quick brown fox 日本 jumps"
    ids = httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()["tokens"]
    for prompt in (text, ids, [ids]):
        answer = client.completions.create(
            model=MODEL, prompt=prompt, echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        choice = answer.choices[0]
        assert choice.text.startswith(text)
        lists = choice.logprobs
        assert lists is not None
        assert lists.token_logprobs is not None
        assert lists.top_logprobs is not None
        assert len(lists.token_logprobs) == len(lists.top_logprobs) == len(ids) + 1
        marks: list[float | None] = list(lists.token_logprobs)
        assert marks[0] is None
        last = marks[-1]
        assert last == max(lists.top_logprobs[-1].values())
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ids)


def test_embeddings_are_vectors_with_meaning(client: OpenAI) -> None:
    texts = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Interest rates rose by 2%."]
    answer = client.embeddings.create(model=MODEL, input=texts)
    first, near, far = [one.embedding for one in answer.data]
    assert len(first) == 576

    def alike(left: list[float], right: list[float]) -> float:
        return sum(x * y for x, y in zip(left, right, strict=True))

    assert alike(first, first) == pytest.approx(1, abs=1e-4)
    assert alike(first, near) > alike(first, far)


def test_d72_an_adapter_changes_the_answer_and_leaves_no_trace(client: OpenAI) -> None:
    def ask(**extra: Any) -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=0, max_tokens=12, extra_body=extra
        )
        return answer.choices[0].message.content

    plain = ask()
    assert ask(lora="poet") != plain
    assert ask() == plain
    assert ask(lora=[{"name": "poet", "scale": 0}]) == plain
    with pytest.raises(openai.BadRequestError):
        ask(lora="painter")
    assert ask() == plain


def test_prompts_are_cached_unless_a_request_opts_out(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "A rather long question. " * 20}]

    def cached(**fields: Any) -> int:
        body = {"model": MODEL, "messages": messages, "max_tokens": 1, **fields}
        usage = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()[
            "usage"
        ]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 50
    assert cached(cache_prompt=False) == 0


def test_bad_grammar_is_a_400_and_the_server_goes_on(server: RunningServer) -> None:
    for grammar in ("root ::= (", "root ::= undefined-rule", "%llguidance {}\nstart: nonsense(("):
        for streamed in (False, True):
            body = {"model": MODEL, "messages": ASK, "grammar": grammar, "stream": streamed}
            response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "grammar"


HOSTILE = [
    ("root ::= " + '"a"? ' * 3000, (200, 400)),  # hangs a native reader of GBNF
    ('root ::= "a" [^\\x00-\\U0010FFFF]', (400,)),  # ends its process
    ("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, (400,)),  # overflows its stack
    ('%llguidance {}\nstart: "a" X\nX: /[0-9]/ & /[a-z]/', (400,)),  # leads nowhere
    ('root ::= ([a-z]{1,60} "x"?){1,60}', (200, 400)),
    ("x" * 300_000, (400,)),
    ('root ::= root "a" | "b"', (200,)),
    ("root ::= [0-9]+", (200,)),
]


@pytest.mark.parametrize(("grammar", "statuses"), HOSTILE, ids=lambda value: repr(value)[:30])
def test_a_hostile_grammar_costs_its_sender_a_400_and_nobody_else_anything(
    server: RunningServer, grammar: str, statuses: tuple[int, ...]
) -> None:
    pid = engine_of(server).pid
    said = {"model": MODEL, "prompt": "a", "max_tokens": 6}
    url = f"{server.url}/v1/completions"
    answer = httpx.post(url, json=said | {"grammar": grammar}, timeout=60)
    assert answer.status_code in statuses
    if answer.status_code == 400:
        assert answer.json()["error"]["param"] == "grammar"
    elif "[0-9]+" in grammar:
        assert answer.json()["choices"][0]["text"].isdigit()
    assert httpx.post(url, json=said, timeout=60).status_code == 200
    assert engine_of(server).pid == pid


def test_a_huge_window_of_the_penalties_costs_no_memory(server: RunningServer) -> None:
    said = {"model": MODEL, "prompt": "a", "max_tokens": 2, "repeat_last_n": 2**31 - 1}
    status = Path(f"/proc/{engine_of(server).pid}/statm")
    before = int(status.read_text().split()[1])
    assert httpx.post(f"{server.url}/v1/completions", json=said, timeout=60).status_code == 200
    assert int(status.read_text().split()[1]) - before < 25_000  # pages of 4 kB


def test_a_closed_stream_frees_its_slot_at_once(server: RunningServer) -> None:
    body = {"model": MODEL, "messages": ASK, "stream": True, "ignore_eos": True}
    gate = server.get_gate()
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        while '"content":"' not in next(lines):
            pass
        assert gate.running == 1
    left = time.monotonic()
    every = {"model": MODEL, "prompt": "a", "max_tokens": 1, "n": gate.slots}
    answer = httpx.post(f"{server.url}/v1/completions", json=every, timeout=60)
    assert answer.status_code == 200  # it needs every slot, so the one left behind was free
    assert time.monotonic() - left < 2


def test_killing_the_engine_ends_every_stream_cleanly_and_it_comes_back(
    default_model: Path,
) -> None:
    body = {"model": MODEL, "messages": ASK, "stream": True, "ignore_eos": True}
    begun = threading.Barrier(17, timeout=60)

    def hold(url: str) -> tuple[list[str], float]:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            while '"content":"' not in next(lines):
                pass
            begun.wait()
            rest = [line for line in lines if line.startswith("data: ")]
            return rest, time.monotonic()

    with serve(default_model, slots=16, context=1024) as server, ThreadPoolExecutor(16) as pool:
        held = [pool.submit(hold, server.url) for _ in range(16)]
        begun.wait()
        killed = time.monotonic()
        os.kill(engine_of(server).pid, signal.SIGKILL)
        for lines, ended in [one.result() for one in held]:
            assert json.loads(lines[-2][6:])["error"]["code"] == "engine_down"
            assert lines[-1] == "data: [DONE]"
            assert ended - killed < 2
        said = {"model": MODEL, "messages": ASK, "max_tokens": 4}
        again = httpx.post(f"{server.url}/v1/chat/completions", json=said, timeout=60)
        assert again.status_code == 200
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        assert engine_of(server).restarts == 1


def test_health_says_so_while_the_engine_is_down(default_model: Path) -> None:
    with serve(default_model, context=512) as server:
        os.kill(engine_of(server).pid, signal.SIGKILL)
        seen: list[int] = []
        deadline = time.monotonic() + 60
        while not seen or seen[-1] != 200 or 503 not in seen:
            assert time.monotonic() < deadline
            response = httpx.get(f"{server.url}/health/ready")
            seen.append(response.status_code)
            if response.status_code == 503:
                assert response.headers["retry-after"]
            assert httpx.get(f"{server.url}/health/live").status_code == 200


def test_tools_are_offered_to_a_model_that_has_no_place_for_them(
    server: RunningServer, client: OpenAI
) -> None:
    """The default model's template writes no tools: they are put as text, and it may answer."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    said: Any = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 24}
    plain = client.chat.completions.create(**said)
    offered = client.chat.completions.create(**said, tools=[tool])
    assert offered.choices[0].message.content
    assert offered.choices[0].finish_reason in ("stop", "length")
    assert plain.usage is not None
    assert offered.usage is not None
    assert offered.usage.prompt_tokens > plain.usage.prompt_tokens + 100
    call: Any = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    later = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "It rains."},
    ]
    body = {"model": MODEL, "messages": later}
    ids = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    prompt = httpx.post(f"{server.url}/detokenize", json={"tokens": ids}).json()["prompt"]
    assert '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>' in prompt
    assert "<tool_response>\nIt rains.\n</tool_response>" in prompt


def test_usage_in_a_stream_of_the_real_model(server: RunningServer) -> None:
    body = {
        "model": MODEL,
        "messages": ASK,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
    }
    chunks = parse_events(httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60))
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
