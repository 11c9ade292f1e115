"""The real model behind a real client: everything from HTTP to llama.cpp and back."""

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
from tests.support.process_cost import read_resident_bytes
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer, parse_events
from tests.support.timing import measures_time

pytestmark = pytest.mark.real_model

MESSAGES: Any = [{"role": "user", "content": "Tell me about the sea."}]


@pytest.fixture(scope="module")
def server(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    poet = make_adapter(tmp_path_factory.mktemp("lora") / "poet.gguf", seed=1)
    with serve(default_model, lora=(f"poet={poet}",), context=2048) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    url = f"{server.url}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def get_engine(server: RunningServer) -> Any:
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
def test_stream_equals_the_whole_response(client: OpenAI, case: dict[str, Any]) -> None:
    parameters = {**case}
    parameters["extra_body"] = {"cache_prompt": False} | case.get("extra_body", {})
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, **parameters)
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        **parameters,
    ):
        state.handle_chunk(chunk)
    accumulated = state.current_completion_snapshot
    assert accumulated.usage == whole.usage
    for ours, theirs in zip(accumulated.choices, whole.choices, strict=True):
        assert ours.message.content == theirs.message.content
        assert ours.finish_reason == theirs.finish_reason
        assert (ours.logprobs and ours.logprobs.content) == (
            theirs.logprobs and theirs.logprobs.content
        )
    assert "\ufffd" not in (whole.choices[0].message.content or "")


def test_same_seed_gives_the_same_answer(client: OpenAI) -> None:
    def complete(seed: int) -> str | None:
        response = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, seed=seed, max_tokens=24, temperature=1.2
        )
        return response.choices[0].message.content

    assert complete(11) == complete(11)
    assert complete(11) != complete(12)


def test_three_choices_differ(client: OpenAI) -> None:
    response = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=3, seed=1, max_tokens=16, temperature=1.5
    )
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in response.choices}) == 3
    assert response.usage is not None
    single = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1)
    assert single.usage is not None
    assert response.usage.prompt_tokens == single.usage.prompt_tokens


def test_greedy_in_three_spellings(client: OpenAI) -> None:
    def complete(**fields: Any) -> Any:
        response = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=16, **fields
        )
        return response.choices[0].message.content

    greedy = complete(temperature=0)
    assert greedy == complete(temperature=0, seed=99, top_p=0.5)
    assert greedy == complete(temperature=1.8, extra_body={"top_k": 1})


def test_logprobs_count_and_add_up(client: OpenAI) -> None:
    response = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=12, logprobs=True, top_logprobs=5
    )
    choice = response.choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert len(entries) == 12
    for entry in entries:
        assert len(entry.top_logprobs) == 5
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert entry.logprob <= 0


def test_stop_string_across_tokens(client: OpenAI) -> None:
    plain = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=40
    )
    text = plain.choices[0].message.content or ""
    stop = text[10:19]
    cut = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=40, stop=stop
    )
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].model_dump()["matched_stop"] == stop


def test_the_token_that_ends_an_answer_is_reported(server: RunningServer) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "guided_choice": ["yes", "no"]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    choice = answer["choices"][0]
    ends = httpx.post(f"{server.url}/tokenize", json={"content": "<|im_end|><|endoftext|>"}).json()
    assert choice["matched_stop"] in ends["tokens"]
    assert (choice["stop_reason"], choice["finish_reason"]) == (None, "stop")


def test_completions_with_echo_logprobs_and_token_ids(
    server: RunningServer, client: OpenAI
) -> None:
    text = "The quick brown fox 日本 jumps"
    ids = httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()["tokens"]
    for prompt in (text, ids, [ids]):
        response = client.completions.create(
            model=MODEL, prompt=prompt, echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        choice = response.choices[0]
        assert choice.text.startswith(text)
        lists = choice.logprobs
        assert lists is not None
        assert lists.token_logprobs is not None
        assert lists.top_logprobs is not None
        assert len(lists.token_logprobs) == len(lists.top_logprobs) == len(ids) + 1
        values: list[float | None] = list(lists.token_logprobs)
        assert values[0] is None
        last = values[-1]
        assert last == max(lists.top_logprobs[-1].values())
        assert response.usage is not None
        assert response.usage.prompt_tokens == len(ids)


def test_similar_texts_have_similar_embeddings(client: OpenAI) -> None:
    texts = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Interest rates rose by 2%."]
    response = client.embeddings.create(model=MODEL, input=texts)
    first, near, far = [item.embedding for item in response.data]
    assert len(first) == 576

    def dot(closed_at: list[float], right: list[float]) -> float:
        return sum(x * y for x, y in zip(closed_at, right, strict=True))

    assert dot(first, first) == pytest.approx(1, abs=1e-4)
    assert dot(first, near) > dot(first, far)


def test_adapter_changes_only_its_own_answer(client: OpenAI) -> None:
    def complete(**extra: Any) -> str | None:
        response = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=12, extra_body=extra
        )
        return response.choices[0].message.content

    plain = complete()
    assert complete(lora="poet") != plain
    assert complete() == plain
    assert complete(lora=[{"name": "poet", "scale": 0}]) == plain
    with pytest.raises(openai.BadRequestError):
        complete(lora="painter")
    assert complete() == plain


def test_prompts_are_cached_unless_a_request_opts_out(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "A rather long question. " * 20}]

    def count_cached(**fields: Any) -> int:
        body = {"model": MODEL, "messages": messages, "max_tokens": 1, **fields}
        usage = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()[
            "usage"
        ]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    count_cached()
    assert count_cached() > 50
    assert count_cached(cache_prompt=False) == 0


def test_invalid_grammar_gets_400_and_the_server_keeps_running(server: RunningServer) -> None:
    for grammar in ("root ::= (", "root ::= undefined-rule", "%llguidance {}\nstart: nonsense(("):
        for streamed in (False, True):
            body = {"model": MODEL, "messages": MESSAGES, "grammar": grammar, "stream": streamed}
            response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "grammar"


HOSTILE = [
    ("root ::= " + '"a"? ' * 3000, (200, 400)),  # hangs a native GBNF parser
    ('root ::= "a" [^\\x00-\\U0010FFFF]', (400,)),  # ends its process
    ("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, (400,)),  # overflows its stack
    ('%llguidance {}\nstart: "a" X\nX: /[0-9]/ & /[a-z]/', (400,)),  # matches nothing
    ('root ::= ([a-z]{1,60} "x"?){1,60}', (200, 400)),
    ("x" * 300_000, (400,)),
    ('root ::= root "a" | "b"', (200,)),
    ("root ::= [0-9]+", (200,)),
]


@pytest.mark.parametrize(("grammar", "statuses"), HOSTILE, ids=lambda value: repr(value)[:30])
def test_hostile_grammar_affects_only_its_own_request(
    server: RunningServer, grammar: str, statuses: tuple[int, ...]
) -> None:
    pid = get_engine(server).pid
    body = {"model": MODEL, "prompt": "a", "max_tokens": 6}
    url = f"{server.url}/v1/completions"
    response = httpx.post(url, json=body | {"grammar": grammar}, timeout=60)
    assert response.status_code in statuses
    if response.status_code == 400:
        assert response.json()["error"]["param"] == "grammar"
    elif "[0-9]+" in grammar:
        assert response.json()["choices"][0]["text"].isdigit()
    assert httpx.post(url, json=body, timeout=60).status_code == 200
    assert get_engine(server).pid == pid


def test_huge_penalty_window_costs_no_memory(server: RunningServer) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 2, "repeat_last_n": 2**31 - 1}
    pid = get_engine(server).pid
    before = read_resident_bytes(pid)
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    assert read_resident_bytes(pid) - before < 100_000_000


@measures_time
def test_closed_stream_frees_its_slot_at_once(server: RunningServer) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "stream": True, "ignore_eos": True}
    gate = server.get_gate()
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body, timeout=60
    ) as response:
        lines = response.iter_lines()
        while '"content":"' not in next(lines):
            pass
        assert gate.running == 1
    closed_at = time.monotonic()
    all_slots = {"model": MODEL, "prompt": "a", "max_tokens": 1, "n": gate.slots}
    response = httpx.post(f"{server.url}/v1/completions", json=all_slots, timeout=60)
    assert response.status_code == 200  # it needs every slot, so that of the closed stream is free
    assert time.monotonic() - closed_at < 2


def test_killed_engine_ends_every_stream_cleanly_and_restarts(
    default_model: Path,
) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "stream": True, "ignore_eos": True}
    all_started = threading.Barrier(17, timeout=60)

    def hold(url: str) -> tuple[list[str], float]:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            while '"content":"' not in next(lines):
                pass
            all_started.wait()
            rest = [line for line in lines if line.startswith("data: ")]
            return rest, time.monotonic()

    with serve(default_model, slots=16, context=1024) as server, ThreadPoolExecutor(16) as pool:
        streams = [pool.submit(hold, server.url) for _ in range(16)]
        all_started.wait()
        killed = time.monotonic()
        os.kill(get_engine(server).pid, signal.SIGKILL)
        for lines, ended in [future.result() for future in streams]:
            assert json.loads(lines[-2][6:])["error"]["code"] == "engine_down"
            assert lines[-1] == "data: [DONE]"
            assert ended - killed < 2
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
        again = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert again.status_code == 200
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        assert get_engine(server).restarts == 1


def test_health_is_503_while_the_engine_is_down(default_model: Path) -> None:
    with serve(default_model, context=512) as server:
        os.kill(get_engine(server).pid, signal.SIGKILL)
        statuses: list[int] = []
        deadline = time.monotonic() + 60
        while not statuses or statuses[-1] != 200 or 503 not in statuses:
            assert time.monotonic() < deadline
            response = httpx.get(f"{server.url}/health/ready")
            statuses.append(response.status_code)
            if response.status_code == 503:
                assert response.headers["retry-after"]
            assert httpx.get(f"{server.url}/health/live").status_code == 200


def test_tools_are_written_as_text_if_the_template_has_none(
    server: RunningServer, client: OpenAI
) -> None:
    """The default model's template renders no tools; they are described in the prompt."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    body: Any = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    plain = client.chat.completions.create(**body)
    with_tools = client.chat.completions.create(**body, tools=[tool])
    assert with_tools.choices[0].message.content
    assert with_tools.choices[0].finish_reason in ("stop", "length")
    assert plain.usage is not None
    assert with_tools.usage is not None
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens + 100
    call: Any = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "It rains."},
    ]
    body = {"model": MODEL, "messages": messages}
    ids = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    prompt = httpx.post(f"{server.url}/detokenize", json={"tokens": ids}).json()["prompt"]
    assert '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>' in prompt
    assert "<tool_response>\nIt rains.\n</tool_response>" in prompt


def test_usage_in_a_stream_of_the_real_model(server: RunningServer) -> None:
    body = {
        "model": MODEL,
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
    }
    chunks = parse_events(httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60))
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_samplers_under_several_names(server: RunningServer) -> None:
    def complete(**fields: Any) -> str:
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 10, **fields}
        body |= {"cache_prompt": False, "rep_pen": 1}  # the default penalty is not for greedy ones
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    greedy = complete(temperature=0)
    assert complete(temperature=1, seed=7) != greedy
    assert complete(temp=1, seed=7, nsigma=0.001) == greedy
    assert complete(temperature=1, sampler_seed=7, samplers="kt", top_k=1) == greedy
    sure = {"mirostat_mode": 2, "mirostat_tau": 0.01, "mirostat_eta": 1}
    assert complete(temperature=1, sampling_seed=7, **sure) == greedy
    assert complete(temperature=0, xtc_probability=1, xtc_threshold=0.01) != greedy
