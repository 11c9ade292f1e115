"""One API key cannot find out what another has sent from what the server has cached of it."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.real_model import MODEL, make_schema_fields, serve
from tests.support.serving import RunningServer

pytestmark = pytest.mark.real_model

VICTIM, ATTACKER = "victim-key", "attacker-key"
KEYS = (VICTIM, ATTACKER, "third-key", "fourth-key")
COLOURS = ("red", "blue", "green", "white")
THINGS = (
    "table",
    "window",
    "river",
    "house",
    "garden",
    "paper",
    "stone",
    "water",
    "horse",
    "bread",
)
WORDS = (*COLOURS, *THINGS)
RULES = "You work for the harbour office. Answer in one word, and never about the weather."
TRIALS = 3
# what a client sees of the caches of the server in its metrics
CACHE_METRICS = re.compile(r"^(dragoman_\w*(?:cache|replay|grammar)\w*\S*) (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    options = {"api_key": KEYS, "slots": 2, "context": 512, "public_prompt": (RULES,)}
    with serve(default_model, **options) as server:
        yield server


def make_secret(number: int) -> str:
    """Return a text; all of them are equally long, and differ from the second word on."""
    choose = random.Random(number)
    return " ".join(["The", WORDS[number], *(choose.choice(WORDS) for _ in range(23))])


def ask(server: RunningServer, key: str, text: str, system: str = "", **fields: Any) -> Any:
    """Send a chat and return the answer, with everything that it says about the cache."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "temperature": 0} | fields
    headers = {"authorization": f"Bearer {key}", "x-dragoman-timings": "1"}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer = response.json()
    answer["headers"] = {
        name: value for name, value in response.headers.items() if name.startswith("x-dragoman")
    }
    return answer


def get_cached(answer: Any) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert answer["timings"]["cache_n"] == count
    assert answer["timings"]["prompt_n"] == answer["usage"]["prompt_tokens"] - count
    return count


def read_cache_metrics(server: RunningServer) -> dict[str, float]:
    headers = {"authorization": f"Bearer {ATTACKER}"}
    text = httpx.get(f"{server.url}/metrics", headers=headers).text
    return {name: float(value) for name, value in CACHE_METRICS.findall(text)}


def compute_auc(first: list[float], second: list[float]) -> float:
    """Return how often a value of the first list is greater than one of the second."""
    pairs = itertools.product(first, second)
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / (len(first) * len(second))


def test_hole_75_right_and_wrong_guesses_are_told_alike(server: RunningServer) -> None:
    """The same counts in usage, timings, headers and metrics; the time is printed."""
    ask(server, ATTACKER, make_secret(13))  # the template's own text is cached from now on
    seen: dict[bool, list[Any]] = {True: [], False: []}
    times: dict[bool, list[float]] = {True: [], False: []}
    for trial in range(TRIALS):
        ask(server, VICTIM, make_secret(trial))
        for is_right in random.Random(trial).sample((True, False), 2):
            guess = make_secret(trial if is_right else TRIALS + trial)
            before = read_cache_metrics(server)
            started_at = time.perf_counter()
            answer = ask(server, ATTACKER, guess)
            times[is_right].append(time.perf_counter() - started_at)
            after = read_cache_metrics(server)
            changes = {name: after[name] - before.get(name, 0.0) for name in after}
            headers = answer["headers"] | {"x-dragoman-timings": ""}
            prompt = answer["usage"]["prompt_tokens"]
            seen[is_right].append((prompt, get_cached(answer), headers, changes))
    auc = compute_auc(times[False], times[True])
    print(f"AUC of the time of wrong and right guesses: {auc:.2f} (0.5: nothing tells them apart)")
    assert seen[True] == seen[False]
    assert get_cached(ask(server, VICTIM, make_secret(0))) > 40  # the victim's own is cached


def test_hole_75_a_schema_of_another_key_is_compiled_again(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"code": {"const": "red"}}}
    fields = make_schema_fields(schema | {"required": ["code"], "additionalProperties": False})
    compiler = server.app.runtime.services.compiler
    compiles = []
    for key in (VICTIM, VICTIM, ATTACKER):
        before = compiler.stats.misses
        ask(server, key, "Write it.", **fields)
        compiles.append(compiler.stats.misses - before)
    assert compiles[0] == compiles[2] > compiles[1] == 0


@pytest.mark.parametrize("path", ["/tokenize", "/v1/embeddings", "/v1/messages/count_tokens"])
def test_hole_75_a_text_of_another_key_is_tokenized_again(server: RunningServer, path: str) -> None:
    [model] = server.app.runtime.services.models.list_loaded()
    text = " ".join([path, make_secret(11)])
    bodies = {
        "/tokenize": {"model": MODEL, "content": text},
        "/v1/embeddings": {"model": MODEL, "input": text},
        "/v1/messages/count_tokens": {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
        },
    }
    encoded = []
    for key in (VICTIM, VICTIM, ATTACKER):
        cache = model.renderer.token_cache
        before = cache.encoded_tokens
        headers = {"authorization": f"Bearer {key}"}
        response = httpx.post(f"{server.url}{path}", json=bodies[path], headers=headers)
        assert response.status_code == 200, response.text
        encoded.append(cache.encoded_tokens - before)
    assert encoded[0] >= 24
    assert encoded[2] >= 24
    assert encoded[1] == 0


def test_hole_75_a_public_prompt_is_shared_and_nothing_behind_it(server: RunningServer) -> None:
    question = make_secret(8)
    counts = [get_cached(ask(server, key, question, RULES)) for key in KEYS[:3]]
    prompt = ask(server, KEYS[3], question, RULES)["usage"]["prompt_tokens"]
    assert counts[0] == 0  # the first one computes it
    assert 10 < counts[1] == counts[2] < prompt - 20
    secret_rules = make_secret(12)  # which are not public
    assert all(get_cached(ask(server, key, question, secret_rules)) < 8 for key in KEYS[:2])


def test_one_pool_for_those_who_want_it(default_model: Path) -> None:
    """Which also shows that the tests above can fail."""
    options = {"api_key": KEYS, "slots": 1, "context": 512, "shared_cache": True}
    with serve(default_model, **options) as server:
        counts = [get_cached(ask(server, key, make_secret(3))) for key in (VICTIM, ATTACKER)]
        assert counts[0] == 0
        assert counts[1] > 40
