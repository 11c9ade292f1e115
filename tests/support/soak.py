"""A mixed load, and the count of what it gets back.

Each operation is one thing that clients do: a chat, a stream, a tool call, a stored response that
is read again, a background response whose stream is resumed, a disconnect, a hostile request. It
knows the answer that the script gives, so an answer with a missing or a doubled token is noticed.
While a fault is in effect, an operation may be refused with Retry-After or end with an error of its
API; everything else that is not the answer is counted as lost or wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from tests.support.fault_clients import STREAMS, find_error, make_body, parse_frame, read_stream
from tests.support.mutations import MutationContext, make_mutant

HELLO = "Hello there!"
LONG = " ".join(f"word{number}" for number in range(60))
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OBJECT = '{"city": "Rome"}'
SCRIPT: list[dict[str, Any]] = [
    {"text": CALL, "when": "use tools"},
    {"text": OBJECT, "when": "use a schema"},
    {"text": LONG, "when": "be long", "pace": 0.004},
    {"text": HELLO},
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
REFUSALS = (429, 503, 529)
FAULT_SECONDS = 20.0  # in which a fault may still be felt
TIMEOUT = 60.0
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


class LostAnswer(Exception):
    """A request got neither its answer nor an error."""


class WrongAnswer(Exception):
    """An answer differs from the script, or an error has no cause."""


class SoakLoad:
    """Sends requests of several keys, and counts the outcomes."""

    def __init__(self, url: str, keys: dict[str, str], seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.operations: Counter[str] = Counter()
        self.fault_at = -FAULT_SECONDS  # when the last fault was injected
        self.mutations: MutationContext | None = None
        self._url = url
        self._keys = keys
        self._rng = random.Random(seed)
        self.read_pause = 0.05  # seconds that a slow reader waits after each part
        self._stopped = False

    async def run(self, workers: int, seconds: float) -> None:
        """Load the server with some workers, each of which sends one request after the other."""
        self._stopped = False
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._work(number))
            await asyncio.sleep(seconds)
            self._stopped = True

    async def warm_up(self) -> None:
        """Do each thing once, which starts and imports whatever is started or imported once."""
        async with self._open_client(0) as client:
            for operation in dict.fromkeys(OPERATIONS):
                self.outcomes[await self._try(operation, client)] += 1
            for request in () if self.mutations is None else self.mutations.recorded:
                if request.route.method == "POST":
                    path = re.sub(r"{.*?}", "a", request.route.path)
                    await client.post(path, json=request.body)

    async def run_once(self, operation: Operation) -> str:
        """Do one thing once, and return the outcome."""
        async with self._open_client(0) as client:
            return await self._try(operation, client)

    def _open_client(self, number: int) -> httpx.AsyncClient:
        keys = list(self._keys.values())
        headers = {"authorization": f"Bearer {keys[number % len(keys)]}"}
        return httpx.AsyncClient(base_url=self._url, headers=headers, timeout=TIMEOUT)

    async def _work(self, number: int) -> None:
        async with self._open_client(number) as client:
            while not self._stopped:
                operation = self._rng.choice(OPERATIONS)
                self.operations[operation.__name__] += 1
                self.outcomes[await self._try(operation, client)] += 1

    async def _try(self, operation: Operation, client: httpx.AsyncClient) -> str:
        try:
            return await operation(self, client)
        except (LostAnswer, httpx.TransportError) as error:
            self._note(operation, error)
            return "lost"
        except (WrongAnswer, AssertionError, KeyError, ValueError) as error:
            self._note(operation, error)
            return "wrong"

    def _note(self, operation: Operation, error: Exception) -> None:
        age = time.monotonic() - self.fault_at
        text = f"{operation.__name__}: {type(error).__name__}: {str(error)[:300]} ({age:.1f} s)"
        self.problems.append(text)

    @property
    def feels_fault(self) -> bool:
        return time.monotonic() - self.fault_at < FAULT_SECONDS

    def check_refusal(self, response: httpx.Response) -> str:
        """Return the outcome of a response that is no answer."""
        if response.status_code not in REFUSALS:
            raise WrongAnswer(f"{response.status_code} {response.text[:200]}")
        if "retry-after" not in response.headers:
            raise WrongAnswer(f"{response.status_code} without Retry-After")
        if response.status_code != 429 and not self.feels_fault:
            raise WrongAnswer(f"{response.status_code} without a fault: {response.text[:200]}")
        return f"refused with {response.status_code}"

    def check_text(self, text: str, expected: str, error: str | None) -> str:
        if error is None:
            if text != expected:
                raise WrongAnswer(f"{text[:100]!r} instead of {expected[:100]!r}")
            return "answered"
        if not self.feels_fault:
            raise WrongAnswer(f"an error without a fault: {error}")
        if not expected.startswith(text):
            raise WrongAnswer(f"{text[:100]!r} before an error, of {expected[:100]!r}")
        return "ended with an error"

    async def post(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """Send a request; return its JSON, or the outcome if there is none."""
        response = await client.post(path, json=body)
        if response.status_code != 200:
            return None, self.check_refusal(response)
        return response.json(), None

    def pick(self, choices: list[str]) -> str:
        return self._rng.choice(choices)

    def draw(self, limit: int) -> int:
        return self._rng.randrange(limit)


Operation = Callable[[SoakLoad, httpx.AsyncClient], Awaitable[str]]


async def chat(load: SoakLoad, client: httpx.AsyncClient) -> str:
    answer, outcome = await load.post(client, CHAT, make_body(CHAT))
    if outcome is not None:
        return outcome
    return load.check_text(answer["choices"][0]["message"]["content"], HELLO, None)


async def stream(load: SoakLoad, client: httpx.AsyncClient) -> str:
    path = load.pick(list(STREAMS))
    response = await client.post(path, json=make_body(path, "be long", stream=True))
    if response.status_code != 200:
        return load.check_refusal(response)
    end = read_stream(path, response.text)
    if not end.is_complete:
        raise LostAnswer(response.text[-200:])
    return load.check_text(end.text, LONG, end.error)


async def read_slowly(load: SoakLoad, client: httpx.AsyncClient) -> str:
    body = make_body(CHAT, "be long", stream=True)
    received = ""
    async with client.stream("POST", CHAT, json=body) as response:
        if response.status_code != 200:
            await response.aread()
            return load.check_refusal(response)
        async for text in response.aiter_text():
            received += text
            await asyncio.sleep(load.read_pause)
    end = read_stream(CHAT, received)
    if not end.is_complete:
        raise LostAnswer(received[-200:])
    return load.check_text(end.text, LONG, end.error)


async def disconnect(load: SoakLoad, client: httpx.AsyncClient) -> str:
    path = load.pick(list(STREAMS))
    body = make_body(path, "be long", stream=True)
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            await response.aread()
            return load.check_refusal(response)
        async for _ in response.aiter_text():
            if load.draw(4) == 0:
                break
    return "disconnected"


async def call_tool(load: SoakLoad, client: httpx.AsyncClient) -> str:
    function = {"name": "weather", "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    answer, outcome = await load.post(client, CHAT, make_body(CHAT, "use tools", tools=tools))
    if outcome is not None:
        return outcome
    [call] = answer["choices"][0]["message"]["tool_calls"]
    return load.check_text(call["function"]["arguments"], OBJECT, None)


async def follow_schema(load: SoakLoad, client: httpx.AsyncClient) -> str:
    number = load.draw(50)  # as many different grammars
    schema = {"name": "a", "schema": SCHEMA | {"title": f"number {number}"}, "strict": False}
    fields = {"response_format": {"type": "json_schema", "json_schema": schema}}
    answer, outcome = await load.post(client, CHAT, make_body(CHAT, "use a schema", **fields))
    if outcome is not None:
        return outcome
    return load.check_text(answer["choices"][0]["message"]["content"], OBJECT, None)


async def embed(load: SoakLoad, client: httpx.AsyncClient) -> str:
    body = {"model": "scripted", "input": [f"text {number}" for number in range(20)]}
    answer, outcome = await load.post(client, "/v1/embeddings", body)
    if outcome is None and len(answer["data"]) != 20:
        raise WrongAnswer(f"{len(answer['data'])} vectors")
    return outcome or "answered"


async def store_and_read(load: SoakLoad, client: httpx.AsyncClient) -> str:
    body = make_body(RESPONSES, store=True)
    answer, outcome = await load.post(client, RESPONSES, body)
    if outcome is not None:
        return outcome
    load.check_text(get_text(answer), HELLO, None)
    if not answer["store"]:
        if not load.feels_fault:
            raise WrongAnswer("not stored, without a fault")
        return "not stored"
    path = f"{RESPONSES}/{answer['id']}"
    for method in ("GET", "DELETE"):
        response = await client.request(method, path)
        if response.status_code != 200:
            return load.check_refusal(response)
        if method == "GET" and response.json()["output"] != answer["output"]:
            raise WrongAnswer("another answer was stored")
    return "answered"


def get_text(answer: Any) -> str:
    return "".join(
        part["text"]
        for item in answer["output"]
        for part in item.get("content") or ()
        if part["type"] == "output_text"
    )


async def run_in_background(load: SoakLoad, client: httpx.AsyncClient) -> str:
    """Create a response in the background, and ask for it until it has ended."""
    body = make_body(RESPONSES, "be long", store=True, background=True)
    answer, outcome = await load.post(client, RESPONSES, body)
    if outcome is not None:
        return outcome
    deadline = time.monotonic() + TIMEOUT
    while answer["status"] in ("queued", "in_progress"):
        if time.monotonic() > deadline:
            raise LostAnswer(f"still {answer['status']}")
        await asyncio.sleep(0.3)
        response = await client.get(f"{RESPONSES}/{answer['id']}")
        if response.status_code == 200:
            answer = response.json()
        else:
            load.check_refusal(response)
    error = None if answer["status"] == "completed" else answer["status"]
    return load.check_text(get_text(answer), LONG, error)


async def resume(load: SoakLoad, client: httpx.AsyncClient) -> str:
    """Leave the stream of a background response, and read the rest of it later."""
    body = make_body(RESPONSES, "be long", store=True, background=True, stream=True)
    events: list[Any] = []
    async with client.stream("POST", RESPONSES, json=body) as response:
        if response.status_code != 200:
            await response.aread()
            return load.check_refusal(response)
        async for event in iter_events(response):
            events.append(event)
            if len(events) >= 12:
                break
    if find_error(events[-1]) is None and events[-1]["type"] != "response.completed":
        path = f"{RESPONSES}/{events[0]['response']['id']}"
        query = f"?stream=true&starting_after={events[-1]['sequence_number']}"
        async with client.stream("GET", path + query) as response:
            if response.status_code != 200:
                await response.aread()
                return load.check_refusal(response)
            events += [event async for event in iter_events(response)]
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    if numbers != list(range(len(numbers))):
        raise WrongAnswer(f"events {numbers[:30]}")
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    return load.check_text(text, LONG, find_error(events[-1]))


async def iter_events(response: httpx.Response) -> Any:
    rest = ""
    async for text in response.aiter_text():
        *frames, rest = (rest + text).split("\n\n")
        for frame in frames:
            if frame and not frame.startswith(":"):
                yield parse_frame(frame)


async def attack(load: SoakLoad, client: httpx.AsyncClient) -> str:
    """Send a mutated request; it must get a proper answer, whatever that is."""
    assert load.mutations is not None
    mutant = make_mutant(3, load.draw(1_000_000), load.mutations)
    if mutant.is_websocket or mutant.method not in ("GET", "POST", "DELETE"):
        return "not sent"
    path = mutant.path.partition("?")[0]
    headers = {"content-type": "application/json"}
    response = await client.request(mutant.method, path, content=mutant.body, headers=headers)
    if response.status_code >= 500:
        return load.check_refusal(response)
    if response.status_code >= 400:
        json.loads(response.text)["error"]
    return "attacked"


OPERATIONS: list[Operation] = [
    *(chat, chat, chat, stream, stream, stream, disconnect, disconnect, read_slowly),
    *(call_tool, follow_schema, embed, store_and_read, run_in_background, resume, attack, attack),
]
