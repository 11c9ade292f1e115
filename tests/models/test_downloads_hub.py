"""`dragoman pull owner/repo` with the real `huggingface_hub`, and a server that acts as the hub."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.loopback_services import (
    BreakingHubHandler,
    serve_breaking_hub,
    serve_handler,
    serve_hub,
)
from tests.support.model_files import make_gguf
from tests.support.name_spaces import can_unshare, run_unshared
from tests.support.server_process import DRAGOMAN
from tests.support.upstream_servers import run_worker, write_tokenizer

pytestmark = pytest.mark.slow

DATA = make_gguf(1, {})
PROJECTORS = ["mmproj-F16.gguf", "mmproj-F32.gguf"]  # with which the model reads pictures
FILES = dict.fromkeys(["README.md", "m.Q2_K.gguf", "m.Q4_K_M.gguf", *PROJECTORS], DATA)


def pull(name: str, hub: Mapping[str, str], home: Path) -> subprocess.CompletedProcess[str]:
    return run_command(("pull", name), hub, home)


def run_command(
    arguments: Sequence[str], hub: Mapping[str, str], home: Path
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_HOME": str(home / "hf"), **hub}
    return subprocess.run(
        [*DRAGOMAN, *arguments, "--models-dir", str(home / "models")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=home,
        env=environment,
    )


@pytest.mark.parametrize("name", ["owner/repo", "hf:owner/repo/m.Q2_K.gguf"])
def test_model_is_downloaded(name: str, tmp_path: Path) -> None:
    with serve_hub(FILES) as hub:
        result = pull(name, hub, tmp_path)
    file = "m.Q2_K.gguf" if "Q2" in name else "m.Q4_K_M.gguf"
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "models" / "owner--repo" / file).read_bytes() == DATA
    assert file in result.stdout
    pulled = sorted(path.name for path in (tmp_path / "models" / "owner--repo").glob("*.gguf"))
    assert pulled == [file, PROJECTORS[0]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/missing", "Hugging Face has no model `owner/missing`"),
        ("owner/gated", "set HF_TOKEN"),
        ("hf:owner/repo/other.gguf", "`owner/repo` does not have this file."),
    ],
)
def test_error_of_the_hub_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    with serve_hub(FILES) as hub:
        result = pull(name, hub, tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert message in result.stderr


def test_hub_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    result = pull("owner/repo", {"HF_ENDPOINT": "http://127.0.0.1:9"}, tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "Hugging Face cannot be reached" in result.stderr


def test_download_that_breaks_off_continues_where_it_was(tmp_path: Path) -> None:
    """Within one command, and with the next one."""
    data = DATA + bytes(range(256)) * (200 << 10)  # 50 MiB: the library writes parts of 10 MiB
    limits, ranges = [12 << 20, 12 << 20, *[0] * 10], list[str]()
    with serve_breaking_hub({"m.gguf": data}, limits, ranges) as hub:
        failed = pull("hf:owner/repo/m.gguf", hub, tmp_path)
        assert failed.returncode == 1
        assert failed.stderr.splitlines()[-1].startswith("dragoman: ")
        assert ranges[:2] == ["bytes=0-", f"bytes={10 << 20}-"]
        limits.clear()
        ranges.clear()
        result = pull("hf:owner/repo/m.gguf", hub, tmp_path)
    assert result.returncode == 0, result.stderr
    assert ranges == [f"bytes={20 << 20}-"]
    assert (tmp_path / "models" / "owner--repo" / "m.gguf").read_bytes() == data


class RepeatingHubHandler(BreakingHubHandler):
    """A hub that sends a whole file where the rest of it was asked for."""

    def answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        super().answer(body[:start] + body, status, headers)


def test_download_that_got_too_much_begins_again(tmp_path: Path) -> None:
    files = {"m.gguf": DATA + bytes(12 << 20)}
    ranges: list[str] = []
    with serve_handler(partial(RepeatingHubHandler, files, [11 << 20], ranges)) as url:
        hub = {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}
        failed = pull("hf:owner/repo/m.gguf", hub, tmp_path)
    assert failed.returncode == 1
    assert ranges[1] == f"bytes={10 << 20}-"
    with serve_breaking_hub(files, [], ranges) as hub:
        result = pull("hf:owner/repo/m.gguf", hub, tmp_path)
    assert result.returncode == 0, result.stderr
    assert ranges[-1] == "bytes=0-"
    path = tmp_path / "models" / "owner--repo" / "m.gguf"
    assert path.read_bytes() == files["m.gguf"]


class BusyHub:
    """A hub with one file. The first requests for it fail, and downloads wait for all clients."""

    def __init__(self, failures: int = 0, clients: int = 1) -> None:
        self.ranges: list[str] = []  # of downloads
        self._failures, self._clients = failures, clients
        self._all_have_asked = threading.Event()

    def count_request(self, method: str) -> bool:
        """Count a request for the file; return whether it succeeds."""
        if self._failures:
            self._failures -= 1
            return False
        self._clients -= method == "HEAD"
        if self._clients <= 0:
            self._all_have_asked.set()
        return method == "HEAD" or self._all_have_asked.wait(60)

    @contextmanager
    def serve(self) -> Iterator[dict[str, str]]:
        handler = partial(BusyHubHandler, self, {"m.gguf": DATA}, [], self.ranges)
        with serve_handler(handler) as url:
            yield {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}


class BusyHubHandler(BreakingHubHandler):
    def __init__(self, hub: BusyHub, *arguments: Any) -> None:
        self.hub = hub
        super().__init__(*arguments)

    def answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        if "ETag" not in headers or self.hub.count_request(self.command):
            super().answer(body, status, headers)
        else:
            super().answer(b"", 503, {})


def test_two_commands_download_a_file_once(tmp_path: Path) -> None:
    hub = BusyHub(clients=2)
    with hub.serve() as variables, ThreadPoolExecutor() as threads:
        pulls = [
            threads.submit(pull, "hf:owner/repo/m.gguf", variables, tmp_path) for _ in range(2)
        ]
        assert [future.result().returncode for future in pulls] == [0, 0]
    assert len(hub.ranges) == 1
    assert (tmp_path / "models" / "owner--repo" / "m.gguf").read_bytes() == DATA


def test_hub_that_is_unavailable_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    with BusyHub(failures=1).serve() as variables:
        result = pull("hf:owner/repo/m.gguf", variables, tmp_path)
    assert result.returncode == 0, result.stderr


def test_file_that_the_library_has_in_its_cache_is_not_downloaded_again(tmp_path: Path) -> None:
    hub, command = (
        BusyHub(),
        "import huggingface_hub as h; h.hf_hub_download('owner/repo', 'm.gguf')",
    )
    with hub.serve() as variables:
        environment = os.environ | variables | {"HF_HOME": str(tmp_path / "hf")}
        subprocess.run([sys.executable, "-c", command], env=environment, check=True)
        assert len(hub.ranges) == 1
        result = pull("hf:owner/repo/m.gguf", variables, tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(hub.ranges) == 1
    assert (tmp_path / "models" / "owner--repo" / "m.gguf").read_bytes() == DATA


@pytest.mark.skipif(not can_unshare("mount"), reason="needs a mount name space")
def test_full_disk_is_one_line(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with serve_hub({"m.gguf": DATA + bytes(1 << 20)}) as hub:
        command = shlex.join([*DRAGOMAN, "pull", "hf:owner/repo/m.gguf"])
        settings = hub | {"HF_HOME": str(tmp_path / "hf"), "DRAGOMAN_MODELS_DIR": str(models)}
        result = run_unshared(
            "mount",
            *("env", "-u", "https_proxy"),
            *(f"{name}={value}" for name, value in settings.items()),
            *("sh", "-c", f"mount -t tmpfs -o size=256k none {models} && exec {command}"),
        )
    assert result.returncode == 1
    *progress, error = result.stderr.splitlines()
    assert error == "dragoman: There is no space left on the disk."
    assert all(line.startswith("downloading ") for line in progress), progress


def test_tokenizer_of_an_upstream_model_is_downloaded(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model")
    files = {file.name: file.read_bytes() for file in directory.iterdir()}
    with serve_hub(FILES | files) as hub, run_worker("vllm") as worker:
        arguments = ("explain", worker.url, "--tokenizer", "owner/repo")
        result = run_command(arguments, hub, tmp_path)
        again = run_command(arguments, {"HF_HUB_OFFLINE": "1"}, tmp_path)  # from the cache
        missing = run_command((*arguments[:-1], "owner/missing"), hub, tmp_path)
    assert result.returncode == again.returncode == 0, result.stderr + again.stderr
    assert "uses          tokens API" in result.stdout
    assert result.stdout == again.stdout
    assert missing.returncode == 1
    assert "Hugging Face has no model `owner/missing`" in missing.stdout
    downloaded = {path.name for path in (tmp_path / "hf").rglob("*") if "snapshots" in path.parts}
    assert "tokenizer.json" in downloaded
    assert not any(name.endswith(".gguf") for name in downloaded)
