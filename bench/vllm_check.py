"""What our server on vLLM must do, on a machine without network and with random weights.

    python -m bench.vllm_check MODEL ADAPTER [--cpu]

Starts the server with a LoRA adapter and checks over HTTP that a streamed answer equals the whole
one, and that these work: several choices; logprobs; a schema and a forced tool call; loading and
unloading an adapter while the server runs; the prompt cache; cancelling a job by a disconnect.
Prints one line for each check.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.measure import find_free_port
from bench.vllm_serving import Front, start_front, wait_until_up

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["city", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
WAIT_SECONDS = 20


class Checker:
    """Sends requests to one server."""

    def __init__(self, front: Front, adapter: str) -> None:
        self._port = front.port
        self._adapter = adapter

    def send(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def ask(self, **fields: Any) -> Any:
        status, text = self.send("POST", CHAT, make_chat(**fields))
        assert status == 200, text
        return json.loads(text)

    def read_metric(self, name: str) -> float:
        _, page = self.send("GET", "/metrics")
        rows = [line for line in page.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in rows)

    def check_streams(self) -> str:
        whole = self.ask()["choices"][0]["message"]["content"]
        _, text = self.send("POST", CHAT, make_chat(stream=True))
        frames = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        deltas = [json.loads(frame)["choices"][0]["delta"] for frame in frames]
        streamed = "".join(delta.get("content") or "" for delta in deltas)
        assert streamed == whole, (streamed, whole)
        return repr(whole[:40])

    def check_choices(self) -> str:
        answer = self.ask(n=3, logprobs=True, top_logprobs=2)
        contents = {choice["message"]["content"] for choice in answer["choices"]}
        assert len(contents) == 1
        return f"{len(answer['choices'][0]['logprobs']['content'])} logprobs"

    def check_schema(self) -> str:
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
        for temperature in (0, 1):
            answer = self.ask(response_format=form, temperature=temperature, max_tokens=100)
            value = json.loads(answer["choices"][0]["message"]["content"])
            assert value["city"] in ("Paris", "Rome")
            assert value["count"] <= 9
        return json.dumps(value)

    def check_tools(self) -> str:
        answer = self.ask(tools=[TOOL], tool_choice="required", max_tokens=200)
        calls = answer["choices"][0]["message"]["tool_calls"]
        arguments = [json.loads(call["function"]["arguments"]) for call in calls]
        assert all(value["city"] in ("Paris", "Rome") for value in arguments)
        return json.dumps(arguments)

    def check_adapter(self) -> str:
        plain = self.ask()["choices"][0]["message"]["content"]
        body = {"lora_name": "poet", "lora_path": self._adapter}
        status, text = self.send("POST", "/admin/adapters/load", body)
        assert status == 200, text
        adapted = self.ask(lora="poet")["choices"][0]["message"]["content"]
        assert adapted != plain
        status, text = self.send("POST", "/admin/adapters/unload", {"lora_name": "poet"})
        assert status == 200, text
        status, _ = self.send("POST", CHAT, make_chat(lora="poet"))
        assert status in (400, 404)
        return f"{plain[:20]!r} becomes {adapted[:20]!r}"

    def check_cache(self) -> str:
        messages = [{"role": "user", "content": "A long prompt. " * 60}]
        usages = [self.ask(messages=messages)["usage"] for _ in range(2)]
        cached = usages[1]["prompt_tokens_details"]["cached_tokens"]
        assert cached > usages[1]["prompt_tokens"] // 2, usages
        return f"{cached} of {usages[1]['prompt_tokens']} tokens are cached"

    def check_cancel(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        body = json.dumps(make_chat(stream=True, max_tokens=100_000, ignore_eos=True))
        connection.request("POST", CHAT, body, {"content-type": "application/json"})
        connection.getresponse().read(2000)
        assert self.wait(lambda: self.read_metric("dragoman_engine_running_requests") == 1)
        started_at = time.monotonic()
        assert connection.sock is not None
        connection.sock.close()
        connection.close()
        assert self.wait(lambda: self.read_metric("dragoman_engine_running_requests") == 0)
        return f"the engine is idle after {time.monotonic() - started_at:.2f} s"

    @staticmethod
    def wait(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.02)
        return False


def make_chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 24} | fields


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("adapter")
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--slots", default=64, type=int)
    parser.add_argument("--context", default=2048, type=int)
    parser.add_argument("--memory-share", default=0.4, type=float)
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--engine-dir", default="")
    parser.add_argument("--out", default="bench-vllm")
    parser.add_argument("--engine-args", default={"enable_lora": True}, type=json.loads)
    options = parser.parse_args()
    log = Path(options.out) / "check.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    with ExitStack() as stack:
        front = wait_until_up(
            stack.enter_context(start_front("ours", find_free_port(), options, log)), log
        )
        checker = Checker(front, options.adapter)
        checks = [name for name in dir(Checker) if name.startswith("check_")]
        for name in checks:
            try:
                print(f"{name}: {getattr(checker, name)()}", flush=True)
            except (AssertionError, OSError, KeyError, IndexError, ValueError) as error:
                failures += 1
                print(f"{name} FAILED: {error!r}", flush=True)
    sys.exit(failures)


if __name__ == "__main__":
    main()
