"""Model files, downloads and open ports."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp import gguf
from dragoman.errors import DragomanError
from dragoman.models.downloads.hub import pull_from_hub
from tests.engines.test_gguf import HOSTILE, VALID
from tests.support.command_line import run_command
from tests.support.model_files import write_model_file
from tests.support.server_process import (
    list_child_pids,
    list_listening_addresses,
    read_until,
    run_server,
)


@pytest.mark.real_model
def test_hole_85_one_port_is_open(default_model: Path) -> None:
    """The server and its engine, with the default settings: one port, of this machine alone."""
    flags = ("--context", "256", "--slots", "1", "--threads", "1")
    with run_server(str(default_model), *flags) as (process, url):
        read_until(process, "Serving")
        pids = [process.pid, *list_child_pids(process.pid)]
        assert len(pids) > 1
        [address] = list_listening_addresses(*pids)
    assert address.startswith("0100007F:")  # 127.0.0.1
    assert address.endswith(f"{int(url.rpartition(':')[2]):04X}")


@pytest.mark.parametrize("name", HOSTILE)
def test_hole_87_hostile_headers_are_rejected(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explain` and `show` say what is wrong in one line, and no engine starts."""
    path = tmp_path / "model.gguf"
    path.write_bytes(HOSTILE[name][0])
    for command in ("explain", "show"):
        result = run_command(capsys, command, str(path))
        assert result.code != 0 or "\nerror " in result.out, result
        assert "Traceback" not in result.err


def mutate(data: bytes, chooser: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(chooser.randint(1, 6)):
        start, width = chooser.randrange(len(mutated)), chooser.choice((1, 1, 4, 8))
        extremes = (0, 1, 0x7F, 0x80, 0xFF, chooser.randrange(256))
        mutated[start : start + width] = bytes([chooser.choice(extremes)]) * width
    if chooser.random() < 0.2:
        del mutated[chooser.randrange(len(mutated)) :]
    return bytes(mutated)


def check_mutants(count: int, seed: int) -> None:
    """Read mutated headers: each is read or rejected; none has a tensor beyond its end.

    The file is in memory: writing one on a disk takes twenty times as long as reading its header.
    """
    chooser = random.Random(seed)
    with open(os.memfd_create("model.gguf"), "wb", buffering=0) as file:
        path = f"/proc/self/fd/{file.fileno()}"
        for _ in range(count):
            data = mutate(VALID, chooser)
            file.truncate(len(data))
            os.pwrite(file.fileno(), data, 0)
            try:
                header = gguf.read_header(path)
            except DragomanError:
                continue
            assert header.size == len(data)
            assert header.tensors.bytes <= len(data)


def test_hole_87_mutated_headers_are_read_or_rejected(count_cases: Callable[[int], None]) -> None:
    """`tests/hostile/heavy` reads a million."""
    check_mutants(500, seed=87)
    count_cases(500)


def test_hole_88_tensors_end_where_the_file_ends(
    tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    """Every length below the whole file is rejected, whatever its header says."""
    path = tmp_path / "model.gguf"
    path.write_bytes(VALID)
    gguf.read_header(path)
    for length in range(len(VALID)):
        path.write_bytes(VALID[:length])
        with pytest.raises(DragomanError):
            gguf.read_header(path)
    count_cases(len(VALID))


class RecordingHub:
    """Records the revision of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def model_info(self, repo: str, *, revision: str | None, timeout: float) -> Any:
        self.calls.append(("model_info", revision))
        names = [f"m-{part:05}-of-00003.gguf" for part in range(1, 4)]
        return type("Info", (), {"siblings": [type("File", (), {"rfilename": n})() for n in names]})

    def hf_hub_download(
        self, repo: str, filename: str, *, revision: str | None = None, local_dir: str
    ) -> str:
        self.calls.append((filename, revision))
        return f"{local_dir}/{filename}"


@pytest.mark.parametrize("name", ["owner/repo", "owner/repo/m-00001-of-00003.gguf"])
def test_hole_91_every_download_names_the_revision(name: str, tmp_path: Path) -> None:
    repo, _, file = name.partition("/m-")
    full = f"hf:{repo}@abc123" + (f"/m-{file}" if file else "")
    hub = RecordingHub()
    pull_from_hub(full, tmp_path, hub)
    assert len(hub.calls) == 4
    assert {revision for _, revision in hub.calls} == {"abc123"}


@pytest.mark.parametrize(
    "name", ["hf:a/b/../../c.gguf", "hf:../../a", "hf:a/../b/c.gguf", "hf:a/b/x/../../../y.gguf"]
)
def test_hole_91_downloads_stay_in_the_models_directory(name: str, tmp_path: Path) -> None:
    hub = RecordingHub()
    with pytest.raises(DragomanError):
        pull_from_hub(name, tmp_path, hub)
    assert not hub.calls


opened: list[str] | None = None  # while files are recorded


def record_open(event: str, arguments: tuple[Any, ...]) -> None:
    if opened is not None and event == "open" and isinstance(arguments[0], str | bytes):
        path = arguments[0]
        opened.append(path.decode("utf-8", "replace") if isinstance(path, bytes) else path)


@contextmanager
def record_opened_files() -> Iterator[list[str]]:
    """Record the files that this process opens; audit hooks cannot be removed, so there is one."""
    global opened
    if not getattr(sys, "_records_open", False):
        sys.addaudithook(record_open)
        sys._records_open = True  # type: ignore[attr-defined]
    files: list[str] = []
    opened = files
    try:
        yield files
    finally:
        opened = None


def test_hole_93_model_files_cannot_name_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths in every text of a header: none of them is opened."""
    secret = tmp_path / "secret"
    secret.mkdir()
    canary = secret / "canary.json"
    canary.write_text("{}")
    model = tmp_path / "model" / "model.gguf"
    texts = {
        name: str(canary)
        for name in (
            "tokenizer_chat_template",
            "general_name",
            "general_base_model",
            "general_file",
        )
    }
    texts |= {"tokenizer_huggingface": str(canary), "general_source_url": f"file://{canary}"}
    write_model_file(model, None, 1, **texts)
    (model.parent / "tokenizer_config.json").write_text(
        f'{{"vocab_file": "{canary}", "auto_map": {{"AutoTokenizer": "{canary}"}}}}'
    )
    with record_opened_files() as files:
        run_command(capsys, "explain", str(model))
        run_command(capsys, "show", str(model))
    assert any("model.gguf" in name for name in files)
    assert not [name for name in files if "canary" in name]


def test_hole_90_code_beside_a_model_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w').close()\n"
    for name in ("modeling_x.py", "tokenization_x.py", "configuration_x.py", "__init__.py"):
        (tmp_path / name).write_text(code)
    auto_map = '{"auto_map": {"AutoConfig": "configuration_x.X", "AutoModel": "modeling_x.X"}}'
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        (tmp_path / name).write_text(auto_map)
    write_model_file(tmp_path / "model.gguf")
    for path in (tmp_path, tmp_path / "model.gguf"):
        run_command(capsys, "explain", str(path))
        run_command(capsys, "show", str(path))
    assert not canary.exists()
