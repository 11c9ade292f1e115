"""`dragoman pull owner/repo` with the real `huggingface_hub`, and a server that acts as the hub."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.model_files import make_gguf
from tests.support.server_process import DRAGOMAN

pytestmark = pytest.mark.slow

DATA = make_gguf(1, {})
FILES = ["README.md", "m.Q2_K.gguf", "m.Q4_K_M.gguf"]
ERRORS = {"missing": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}


class FakeHub(BaseHTTPRequestHandler):
    """Answers as huggingface.co does, as far as the library asks."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        for repo, (status, code) in ERRORS.items():
            if f"owner/{repo}" in self.path:
                self.answer(b"", status, {"X-Error-Code": code, "X-Error-Message": code})
                return
        if self.path.startswith("/api/models/owner/repo"):
            files = [{"rfilename": file} for file in FILES]
            body = {"id": "owner/repo", "sha": "0" * 40, "siblings": files}
            self.answer(json.dumps(body).encode(), 200, {"Content-Type": "application/json"})
        elif self.path.rpartition("/")[2] in FILES:
            self.answer(DATA, 200, {"X-Repo-Commit": "0" * 40, "ETag": '"abc"'})
        else:
            self.answer(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "0" * 40})

    def answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve_hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def pull(name: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [*DRAGOMAN, "pull", name, "--models-dir", str(home / "models")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=home,
        env=environment,
    )


@pytest.mark.parametrize("name", ["owner/repo", "hf:owner/repo/m.Q2_K.gguf"])
def test_model_is_downloaded(name: str, tmp_path: Path) -> None:
    with serve_hub() as endpoint:
        result = pull(name, endpoint, tmp_path)
    file = "m.Q2_K.gguf" if "Q2" in name else "m.Q4_K_M.gguf"
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "models" / "owner--repo" / file).read_bytes() == DATA
    assert file in result.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/missing", "Hugging Face has no model `owner/missing`"),
        ("owner/gated", "set HF_TOKEN"),
        ("hf:owner/repo/other.gguf", "`owner/repo` does not have this file."),
    ],
)
def test_error_of_the_hub_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    with serve_hub() as endpoint:
        result = pull(name, endpoint, tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert message in result.stderr


def test_hub_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    result = pull("owner/repo", "http://127.0.0.1:9", tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Hugging Face cannot be reached" in result.stderr
