"""The OpenAPI document, generated from the route table and the Structs of the wire APIs."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dragoman._version import __version__
from dragoman.http.asgi import WEBSOCKET
from dragoman.http.router import Route
from dragoman.protocols.shared.openai import ErrorResponse

SCHEMA_REF = "#/components/schemas/{name}"
JsonObject = dict[str, Any]


def render_document(routes: list[Route]) -> bytes:
    """Return the whole document as JSON."""
    types = [kind for route in routes for kind in (route.request_type, route.response_type)]
    unique = list(dict.fromkeys([*(kind for kind in types if kind is not None), ErrorResponse]))
    references, components = msgspec.json.schema_components(unique, ref_template=SCHEMA_REF)
    schemas = dict(zip(unique, references, strict=True))
    paths: dict[str, JsonObject] = {}
    for route in routes:
        operations = paths.setdefault(route.path.replace("...}", "}"), {})
        if route.method == WEBSOCKET:  # OpenAPI cannot describe it
            operations["x-websocket"] = {"summary": route.summary}
        else:
            operations[route.method.lower()] = _describe_operation(route, schemas)
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


def _describe_operation(route: Route, schemas: dict[type, JsonObject]) -> JsonObject:
    name = f"{route.method.lower()}_{route.path.strip('/').replace('/', '_') or 'root'}"
    operation: JsonObject = {
        "operationId": re.sub(r"[{}.]", "", name),
        "summary": route.summary,
        "responses": {
            "200": _describe_response(route, schemas),
            "default": _describe_error(schemas),
        },
    }
    if route.access != "open":
        operation["security"] = [{"key": []}]
    if route.parameters:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.parameters
        ]
    if route.request_type is not None:
        body = {route.body_type: {"schema": schemas[route.request_type]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _describe_response(route: Route, schemas: dict[type, JsonObject]) -> JsonObject:
    content: JsonObject = {}
    if route.response_type is not None:
        content["application/json"] = {"schema": schemas[route.response_type]}
    if route.streams:
        stream_type = route.dialects[0].stream_content_type.partition(b";")[0].decode()
        content[stream_type] = {"schema": {"type": "string"}}
    return {"description": "The response.", "content": content}


def _describe_error(schemas: dict[type, JsonObject]) -> JsonObject:
    content = {"application/json": {"schema": schemas[ErrorResponse]}}
    return {"description": "An error.", "content": content}
