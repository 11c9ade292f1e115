"""The GGUF engine in a child process: crashes, broken files, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from dragoman.engines.llamacpp.loading.load_plan import count_cores
from dragoman.engines.llamacpp.loading.server import (
    PREFIX,
    SocketFolder,
    remove_stale_folders,
)
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.errors import BadRequest, EngineDown, ModelBroken
from dragoman.types import DEFAULT_SAMPLING, Job, Sampling
from tests.support.gguf_files import finish_file
from tests.support.llama_engine import make_job
from tests.support.server_process import list_listening_addresses

pytestmark = pytest.mark.real_model

FACTORY = "dragoman.engines.llamacpp:create"
FAST = Timing(first_restart_delay=0.01)


def make_engine(path: Path, **settings: Any) -> SubprocessEngine:
    all_settings = {"path": str(path), "context": 256, "slots": 2, "threads": 1, **settings}
    return SubprocessEngine(FACTORY, all_settings, name="llama", timing=FAST)


@pytest.fixture(autouse=True)
def _use_own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the sockets of these engines apart from those of other test processes.

    `tmp_path` is too long for them; it is named here so that pytest creates it first.
    """
    with tempfile.TemporaryDirectory(prefix="sockets-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield
        monkeypatch.undo()


def list_folders() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}


def test_start_crash_and_close(default_model: Path) -> None:
    """It opens no port, a crash costs the running jobs, and nothing is left behind."""
    before = list_folders()

    async def go() -> int:
        engine = make_engine(default_model)
        await engine.start()
        assert engine.capabilities.context == 256
        prompt = await engine.tokenize("One, two, three,", False)
        assert engine.pid is not None
        assert list_listening_addresses(engine.pid) == []
        assert await crash_and_restart(engine, prompt) == 16
        pid = engine.pid
        await engine.aclose()
        assert pid is not None
        return pid

    pid = asyncio.run(go())
    assert not Path(f"/proc/{pid}").exists()
    assert list_folders() - before == set()


def test_a_long_temporary_directory_is_no_obstacle(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unix socket's path is short, and TMPDIR may be long (on macOS it is)."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)

    async def go() -> None:
        engine = make_engine(default_model)
        await engine.start()
        assert await engine.tokenize("One", False)
        await engine.aclose()

    asyncio.run(go())


async def crash_and_restart(engine: SubprocessEngine, prompt: list[int]) -> int:
    """Kill the process with 16 running jobs; return how many of them failed."""
    started = asyncio.Event()

    async def run_job() -> None:
        async for _ in engine.generate(make_job(prompt, max_tokens=200, ignore_eos=True)):
            started.set()

    jobs = [asyncio.create_task(run_job()) for _ in range(16)]
    await started.wait()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    async with asyncio.timeout(1):
        errors = await asyncio.gather(*jobs, return_exceptions=True)
    steps = [step async for step in engine.generate(make_job(prompt, max_tokens=3))]
    assert sum(step.tokens for step in steps) == 3
    assert engine.restarts == 1
    return sum(type(error) is EngineDown for error in errors)


def test_errors_reach_the_parent(default_model: Path) -> None:
    async def go() -> None:
        engine = make_engine(default_model)
        await engine.start()
        pid = engine.pid
        for grammar in ("root ::= (", "%llguidance {}\nstart: nosuch"):
            with pytest.raises(BadRequest) as rejected:
                await engine.admit(make_job([5], grammar=grammar))
            assert rejected.value.param == "grammar"
        vectors = await engine.embed([[5, 6], [7]])
        assert [len(vector) for vector in vectors] == [576, 576]
        assert engine.pid == pid
        await engine.aclose()

    asyncio.run(go())


def write_unknown_architecture(path: Path) -> Path:
    """Write a valid file of an architecture that no engine knows."""
    writer = GGUFWriter(str(path), "dromedary")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.add_token_types([1, 1])
    writer.add_token_merges(["a b"])
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype=np.float32))
    return finish_file(writer, path)


def write_truncated(path: Path, model: Path) -> Path:
    """Write the first half of a file."""
    shutil.copy(model, path)
    os.truncate(path, model.stat().st_size // 2)
    return path


@pytest.mark.parametrize("kind", ["unknown architecture", "truncated", "missing", "noise"])
def test_a_broken_file_is_reported_with_its_cause(
    default_model: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "model.gguf"
    if kind == "unknown architecture":
        write_unknown_architecture(file)
    elif kind == "truncated":
        write_truncated(file, default_model)
    elif kind == "noise":
        file.write_bytes(b"GGUF" + bytes(range(256)) * 40)

    async def go() -> ModelBroken:
        engine = make_engine(file)
        with pytest.raises(ModelBroken) as broken:
            await engine.start()
        assert engine.state == "stopped"
        assert engine.restarts == 0
        await engine.aclose()
        return broken.value

    error = asyncio.run(go())
    assert "/" not in error.message
    if kind == "unknown architecture":
        assert "dromedary" in error.message


def test_a_missing_adapter_is_reported(default_model: Path, tmp_path: Path) -> None:
    async def go() -> str:
        engine = make_engine(default_model, lora={"x": str(tmp_path / "none.gguf")})
        with pytest.raises(ModelBroken) as broken:
            await engine.start()
        await engine.aclose()
        return broken.value.message

    assert "/" not in asyncio.run(go())


def test_folders_of_dead_processes_are_removed() -> None:
    """Also where process ids say nothing, because containers share the directory."""
    code = (
        "import os, sys\n"
        "from dragoman.engines.llamacpp.loading.server import SocketFolder\n"
        "folder = SocketFolder()\n"
        "print(folder.path, flush=True)\n"
        "sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    other = Path(process.stdout.readline().strip())
    renamed = other.rename(other.with_name(f"{PREFIX}999999999-other"))
    own, unlocked = SocketFolder(), Path(tempfile.mkdtemp(prefix=PREFIX))
    (unlocked / "engine.sock").touch()
    try:
        remove_stale_folders()
        assert all(folder.exists() for folder in (renamed, unlocked, Path(own.path)))
        process.communicate("")
        remove_stale_folders()
        assert not renamed.exists()
        assert Path(own.path).exists()
    finally:
        own.remove()
        process.kill()
        process.wait()


def test_an_engine_without_its_socket_is_replaced(default_model: Path) -> None:
    """Whatever deletes old files in the temporary directory must not end the service."""

    async def go() -> None:
        engine = make_engine(default_model)
        await engine.start()
        try:
            for folder in list_folders():
                shutil.rmtree(Path(tempfile.gettempdir()) / folder)
            with pytest.raises(EngineDown):
                await engine.tokenize("The sea", False)
            assert await engine.tokenize("The sea is", False)
            assert engine.restarts_by_failure == {"died": 1}
        finally:
            await engine.aclose()

    asyncio.run(go())


def test_at_least_one_core_is_used() -> None:
    assert 1 <= count_cores() <= len(os.sched_getaffinity(0))


def test_a_job_reaches_the_child_unchanged(default_model: Path) -> None:
    async def go() -> list[list[int]]:
        engine = make_engine(default_model, lora={})
        await engine.start()
        prompt = await engine.tokenize("The sea is", False)
        sampling = Sampling(
            temperature=1.0, seed=2**40, logit_bias={300: 5.0, 400: -100.0}, max_tokens=4
        )
        job = Job(
            id="a",
            prompt=prompt,
            sampling=sampling.with_defaults(DEFAULT_SAMPLING),
            logprobs=2,
            n=2,
        )
        answers = []
        for _ in range(2):
            steps = [step async for step in engine.generate(job)]
            assert all(len(step.logprobs) == step.tokens for step in steps)
            answers.append([token for step in steps if step.choice == 1 for token in step.ids])
        await engine.aclose()
        return answers

    first, second = asyncio.run(go())
    assert first == second
