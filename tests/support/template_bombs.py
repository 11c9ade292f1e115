"""Sends a request to an app for templates of `bombs.toml`: `python -m …template_bombs [NAME…]`.

It runs in its own process, so that its memory can be measured. It prints JSON: what each template
led to, the seconds of CPU time of its request, and by how many megabytes the process grew.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
import tomllib
from typing import Any

import httpx

from dragoman.errors import DragomanError
from dragoman.runtime import StartupError
from dragoman.testing import ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import make_chat, make_scripted_app


async def send(template: str) -> tuple[int, str, float]:
    """Serve a template and send a request; status 0 where the server does not start."""
    engine = ScriptedEngine("x", tokens=True)
    formats = {"format": "hermes_json", "reasoning_format": "think"}  # none need be detected
    try:
        app = make_scripted_app(engine, chat_template=template, **formats)
    except (StartupError, DragomanError) as error:
        return 0, str(error), 0.0
    started = time.process_time()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.post("/v1/chat/completions", json=make_chat("Hi"))
    seconds = time.process_time() - started
    await app.aclose()
    return response.status_code, response.text, seconds


def main(*names: str) -> None:
    asyncio.run(send("{{ messages[0].content }}"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results: dict[str, Any] = {}
    bombs = tomllib.loads((TEMPLATES / "bombs.toml").read_text())
    for name in names or bombs:
        results[name] = asyncio.run(send(bombs[name]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"results": results, "megabytes": peak / 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
