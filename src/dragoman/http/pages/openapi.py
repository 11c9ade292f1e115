"""The OpenAPI document, made from the table of routes and the Structs of the dialects."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dragoman._version import __version__
from dragoman.http.asgi import WEBSOCKET
from dragoman.http.router import Route
from dragoman.protocols.shared.openai import ErrorResponse

_REFS = "#/components/schemas/{name}"


def render_document(routes: list[Route]) -> bytes:
    """The whole document as JSON."""
    kinds = [kind for route in routes for kind in (route.request_type, route.response_type) if kind is not None]
    kinds.append(ErrorResponse)
    unique = list(dict.fromkeys(kinds))
    references, components = msgspec.json.schema_components(unique, ref_template=_REFS)
    schemas = dict(zip(unique, references, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        at = paths.setdefault(route.path.replace("...}", "}"), {})
        if route.method == WEBSOCKET:  # the format has no word for it
            at["x-websocket"] = {"summary": route.summary}
        else:
            at[route.method.lower()] = _operation(route, schemas)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Dragoman", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    name = f"{route.method.lower()}_{route.path.strip('/').replace('/', '_') or 'root'}"
    operation: dict[str, Any] = {
        "operationId": re.sub(r"[{}.]", "", name),
        "summary": route.summary,
        "responses": {"200": _answer(route, schemas), "default": _error(schemas)},
    }
    if route.access != "open":
        operation["security"] = [{"key": []}]
    if route.parameters:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.parameters
        ]
    if route.request_type is not None:
        body = {"application/json": {"schema": schemas[route.request_type]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _answer(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.response_type is not None:
        content["application/json"] = {"schema": schemas[route.response_type]}
    if route.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "The answer.", "content": content}


def _error(schemas: dict[Any, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schemas[ErrorResponse]}}
    return {"description": "What went wrong.", "content": content}
