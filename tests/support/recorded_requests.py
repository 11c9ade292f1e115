"""Requests as clients send them, from which mutation fuzzing starts.

Beside the sample of each route, these have the fields that agents and SDKs use: tools, schemas,
images, reasoning, logprobs, stored conversations. Every route of the live table has at least one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dragoman.http.asgi import WEBSOCKET
from dragoman.http.router import Route
from tests.support.hostile_samples import MODEL, SAMPLES, takes_body

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "Get the weather.", "parameters": SCHEMA}
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgAAIAAAUAAXpe"
    "qz8AAAAASUVORK5CYII="
)
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}
OLLAMA_CALL = {"function": {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}}
OLLAMA_OPTIONS = {
    "temperature": 0.7,
    "num_predict": 20,
    "num_ctx": 4096,
    "repeat_penalty": 1.1,
    "stop": ["END"],
}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in Rome?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "It rains."},
    {"role": "user", "content": "And tomorrow?"},
]
SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "seed": 7,
    "stop": ["\n\n", "END"],
    "presence_penalty": 0.1,
    "frequency_penalty": -0.1,
    "max_tokens": 20,
}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}

RECORDED: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"model": MODEL, "messages": CONVERSATION, **SAMPLING, "n": 2, "user": "anna"},
        {
            "model": MODEL,
            "messages": CONVERSATION,
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
        },
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Hi"}],
            "response_format": JSON_FORMAT,
            "logprobs": True,
            "top_logprobs": 3,
            "stream_options": {"include_usage": True},
        },
        {
            "model": MODEL,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
                    ],
                }
            ],
            "metadata": {"a": "b"},
            "store": True,
            "logit_bias": {"50": -100},
            "chat_template_kwargs": {"enable_thinking": False},
            "reasoning_effort": "low",
        },
    ],
    "/v1/completions": [
        {
            "model": MODEL,
            "prompt": ["One,", "Two,"],
            **SAMPLING,
            "n": 2,
            "best_of": 3,
            "echo": True,
        },
        {
            "model": MODEL,
            "prompt": [72, 105],
            "logprobs": 2,
            "suffix": None,
            "grammar": 'root ::= "a"',
        },
        {
            "model": MODEL,
            "prompt": "Hi",
            "guided_json": SCHEMA,
            "ignore_eos": False,
            "min_tokens": 1,
        },
    ],
    "/v1/messages": [
        {
            "model": MODEL,
            "max_tokens": 30,
            "system": [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
            ],
            "messages": [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "tool_use",
                            "id": "t1",
                            "name": "weather",
                            "input": {"city": "Rome"},
                        }
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "It rains."}
                    ],
                },
            ],
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "stop_sequences": ["END"],
            "metadata": {"user_id": "anna"},
            "thinking": {"type": "disabled"},
        },
    ],
    "/v1/responses": [
        {
            "model": MODEL,
            "instructions": "Be brief.",
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Hi"}],
                },
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "It rains."},
            ],
            "tools": [{"type": "function", **FUNCTION, "strict": True}],
            "tool_choice": "auto",
            "max_output_tokens": 50,
            "metadata": {"a": "b"},
            "truncation": "auto",
        },
        {
            "model": MODEL,
            "input": "Hi",
            "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "previous_response_id": "resp_0123456789abcdef",
            "store": False,
        },
        {
            "model": MODEL,
            "input": "Hi",
            "background": True,
            "conversation": {"id": "conv_01234567"},
        },
        {
            "model": MODEL,
            "input": "Hi",
            "tools": [
                {"type": "mcp", "server_label": "a", "server_url": "https://nothing.invalid"}
            ],
        },
    ],
    "/v1/embeddings": [
        {"model": MODEL, "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8},
        {"model": MODEL, "input": [[1, 2], [3]]},
    ],
    "/api/chat": [
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Weather in Rome?"},
                {"role": "assistant", "content": "", "tool_calls": [OLLAMA_CALL]},
                {"role": "tool", "content": "It rains.", "tool_name": "weather"},
                {"role": "user", "content": "And here?", "images": [IMAGE.partition(",")[2]]},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
            "options": OLLAMA_OPTIONS,
            "keep_alive": "5m",
            "think": False,
        },
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Hi"}],
            "format": SCHEMA,
            "logprobs": True,
            "top_logprobs": 3,
            "truncate": True,
            "shift": False,
        },
    ],
    "/api/generate": [
        {"model": MODEL, "prompt": "Hi", "system": "Be brief.", "context": [1, 2, 3]},
        {"model": MODEL, "prompt": "Hi", "raw": True, "options": OLLAMA_OPTIONS},
        {"model": MODEL, "prompt": "a", "suffix": "b", "keep_alive": -1, "format": "json"},
    ],
    "/api/embed": [{"model": MODEL, "input": ["a", "b"], "dimensions": 8, "truncate": False}],
    "/infill": [{"model": MODEL, "input_prefix": "a", "input_suffix": "b", "n_predict": 4}],
    "/tokenize": [{"model": MODEL, "messages": CONVERSATION, "add_generation_prompt": True}],
}


class RecordedRequest(NamedTuple):
    """A valid request: its route, and its body where it has one."""

    route: Route
    body: dict[str, Any] | None


def list_recorded(routes: list[Route]) -> list[RecordedRequest]:
    """List the valid requests of all routes; those that stream also as streams."""
    recorded = []
    for route in routes:
        if route.method == WEBSOCKET:
            bodies = [{"type": "response.create", **body} for body in list_bodies("/v1/responses")]
            recorded += [RecordedRequest(route, body) for body in bodies]
        elif not takes_body(route):
            recorded.append(RecordedRequest(route, None))
        else:
            for body in list_bodies(route.path):
                recorded.append(RecordedRequest(route, body))
                if route.streams:
                    recorded.append(RecordedRequest(route, {**body, "stream": True}))
    return recorded


def list_bodies(path: str) -> list[dict[str, Any]]:
    return [SAMPLES[path], *RECORDED.get(path, [])]
