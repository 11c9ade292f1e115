"""A valid request for every route that takes a body, from which hostile tests derive theirs.

`SAMPLES` is checked against the live route table, so a new route needs a sample here the day it is
added, and is then attacked by every test that is generated from this table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dragoman.http.router import Route

MODEL = "scripted"
MESSAGES = [{"role": "user", "content": "Hi"}]
ITEMS = [{"type": "message", "role": "user", "content": "Hi"}]

SAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES},
    "/v1/chat/completions/{id}": {"metadata": {"a": "b"}},
    "/v1/chat/completions/input_tokens": {"model": MODEL, "messages": MESSAGES},
    "/v1/completions": {"model": MODEL, "prompt": "Hi"},
    "/infill": {"model": MODEL, "input_prefix": "a", "input_suffix": "b"},
    "/v1/embeddings": {"model": MODEL, "input": "Hi"},
    "/v1/rerank": {"model": MODEL, "query": "Hi", "documents": ["a", "b"]},
    "/v2/rerank": {"model": MODEL, "query": "Hi", "documents": ["a", "b"]},
    "/v1/score": {"model": MODEL, "text_1": "Hi", "text_2": ["a", "b"]},
    "/v1/messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 16},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": MESSAGES},
    "/v1/responses": {"model": MODEL, "input": "Hi"},
    "/v1/responses/compact": {"model": MODEL, "input": "Hi"},
    "/v1/responses/input_tokens": {"model": MODEL, "input": "Hi"},
    "/v1/responses/{id}/cancel": {},
    "/v1/conversations": {"items": ITEMS, "metadata": {"a": "b"}},
    "/v1/conversations/{id}": {"metadata": {"a": "b"}},
    "/v1/conversations/{id}/items": {"items": ITEMS},
    "/api/chat": {"model": MODEL, "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": MODEL, "prompt": "Hi", "stream": False},
    "/api/embed": {"model": MODEL, "input": "Hi"},
    "/api/embeddings": {"model": MODEL, "prompt": "Hi"},
    "/api/show": {"model": MODEL},
    "/api/pull": {"model": "smollm2-135m", "stream": False},
    "/api/create": {"model": "copy", "from": MODEL, "stream": False},
    "/api/copy": {"source": MODEL, "destination": "copy"},
    "/api/blobs/{digest}": {},  # any bytes
    "/v1/files": {},  # a form
    "/v1/batches": {
        "input_file_id": "file-0",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "/v1/batches/{id}/cancel": {},
    "/tokenize": {"model": MODEL, "prompt": "Hi"},
    "/detokenize": {"model": MODEL, "tokens": [1, 2]},
    "/apply-template": {"model": MODEL, "messages": MESSAGES},
    "/admin/models/load": {"model": MODEL},
    "/admin/models/unload": {"model": MODEL},
    "/admin/adapters/load": {"model": MODEL, "lora_name": "a", "lora_path": "a"},
    "/admin/adapters/unload": {"model": MODEL, "lora_name": "a"},
}
NO_BODY = {
    "/v1/responses/{id}/cancel",
    "/v1/batches/{id}/cancel",
}  # the routes of these paths read no body
OPEN_PATHS = {"/", "/docs", "/health", "/health/live", "/health/ready"}


class Sample(NamedTuple):
    """A valid request of a route that reads a body, streamed or whole."""

    route: Route
    body: dict[str, Any]

    @property
    def path(self) -> str:
        return self.route.path

    def __str__(self) -> str:
        return f"{self.path}{' streamed' if self.body.get('stream') else ''}"


def takes_body(route: Route) -> bool:
    """Whether a route reads a JSON body."""
    is_json = route.body_type == "application/json"
    return route.method in ("POST", "PUT", "PATCH") and is_json and route.path not in NO_BODY


def list_samples(routes: list[Route], streamed: bool = True) -> list[Sample]:
    """List a sample of every route that reads a body; streamed, too, where that exists."""
    samples = []
    for route in filter(takes_body, routes):
        samples.append(Sample(route, SAMPLES[route.path]))
        if route.streams and streamed:
            samples.append(Sample(route, {**SAMPLES[route.path], "stream": True}))
    return samples


def make_websocket_message(body: dict[str, Any]) -> dict[str, Any]:
    """Make the message that creates the same response over a WebSocket."""
    return {"type": "response.create", **body}
