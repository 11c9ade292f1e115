"""docs/flow.md names exactly the files that a real chat request passes through."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.real_model import MODEL, make_tool, serve

pytestmark = pytest.mark.real_model

SOURCE = ROOT / "src" / "dragoman"
# periodic tasks of the server, which may or may not run during a request
PERIODIC = {
    "batches/service.py",
    "http/server.py",
    "telemetry/loop_lag.py",
    "telemetry/loop_watch.py",
}
PARAMETERS = {"type": "object", "properties": {"days": {"type": "integer"}}}


class FileTracer:
    """Collects the files of ours whose functions are called while it is active."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_active = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_active and event == "call":
            self.files.add(frame.f_code.co_filename)

    def list_files(self) -> set[str]:
        paths = (Path(file) for file in self.files)
        return {str(path.relative_to(SOURCE)) for path in paths if path.is_relative_to(SOURCE)}


@contextmanager
def trace_new_threads() -> Iterator[FileTracer]:
    """Trace every thread that starts inside."""
    tracer = FileTracer()
    threading.setprofile(tracer)
    try:
        yield tracer
    finally:
        threading.setprofile(None)


def read_named_files() -> set[str]:
    path, _, _ = (ROOT / "docs" / "flow.md").read_text(encoding="utf-8").partition("## Packages")
    return set(re.findall(r"`([\w/]+\.py)`", path))


def test_flow_names_the_files_of_a_chat_request(default_model: Path) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say hi."}],
        "tool_choice": "auto",
        "max_tokens": 16,
        "temperature": 0,
    }
    with trace_new_threads() as tracer, serve(default_model) as server:
        url = f"{server.url}/v1/chat/completions"
        for name in ("warm_up", "get_weather"):  # the first request fills caches of the process
            tracer.is_active = name == "get_weather"
            for stream in (False, True):
                fields = {"stream": stream, "tools": [make_tool(PARAMETERS, name)]}
                response = httpx.post(url, json=body | fields, timeout=60)
                assert response.status_code == 200
        tracer.is_active = False
    assert tracer.list_files() - PERIODIC == read_named_files() - PERIODIC
