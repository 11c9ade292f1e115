"""The GGUF engine in a process of its own: how it dies, what it leaves, what it opens."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from dragoman.engines.llamacpp.server import PREFIX, count_cores, remove_stale_folders
from dragoman.engines.subprocess.engine import SubprocessEngine, Timing
from dragoman.errors import BadRequest, EngineDown, ModelBroken
from dragoman.types import DEFAULT_SAMPLING, Job, Sampling
from tests.support.llama_engine import make_job
from tests.support.server_process import list_listening_addresses

FACTORY = "dragoman.engines.llamacpp:create"
FAST = Timing(first_restart_delay=0.01)


def make_engine(path: Path, **settings: Any) -> SubprocessEngine:
    said = {"path": str(path), "context": 256, "slots": 2, "threads": 1, **settings}
    return SubprocessEngine(FACTORY, said, name="llama", timing=FAST)


def list_folders() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}


def test_its_life(default_model: Path) -> None:
    """Started once: what it opens, what its death costs, what it leaves behind."""
    before = list_folders()

    async def go() -> int:
        engine = make_engine(default_model)
        await engine.start()
        assert engine.capabilities.context == 256
        prompt = await engine.tokenize("One, two, three,", False)
        assert engine.pid is not None
        assert list_listening_addresses(engine.pid) == []
        assert await all_die_and_one_goes_on(engine, prompt) == 16
        pid = engine.pid
        await engine.aclose()
        assert pid is not None
        return pid

    pid = asyncio.run(go())
    assert not Path(f"/proc/{pid}").exists()
    assert list_folders() - before == set()


async def all_die_and_one_goes_on(engine: SubprocessEngine, prompt: list[int]) -> int:
    """Kill the process with 16 jobs in flight; how many were told."""
    moving = asyncio.Event()

    async def one() -> None:
        async for _ in engine.generate(make_job(prompt, max_tokens=200, ignore_eos=True)):
            moving.set()

    jobs = [asyncio.create_task(one()) for _ in range(16)]
    await moving.wait()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    async with asyncio.timeout(1):
        ended = await asyncio.gather(*jobs, return_exceptions=True)
    steps = [step async for step in engine.generate(make_job(prompt, max_tokens=3))]
    assert sum(step.tokens for step in steps) == 3
    assert engine.restarts == 1
    return sum(type(error) is EngineDown for error in ended)


def test_errors_come_through(default_model: Path) -> None:
    async def go() -> None:
        engine = make_engine(default_model)
        await engine.start()
        pid = engine.pid
        for grammar in ("root ::= (", "%llguidance {}\nstart: nosuch"):
            with pytest.raises(BadRequest) as refused:
                await engine.admit(make_job([5], grammar=grammar))
            assert refused.value.param == "grammar"
        vectors = await engine.embed([[5, 6], [7]])
        assert [len(vector) for vector in vectors] == [576, 576]
        assert engine.pid == pid
        await engine.aclose()

    asyncio.run(go())


def strange(path: Path) -> Path:
    """A sound file of a kind that no engine knows."""
    writer = GGUFWriter(str(path), "dromedary")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.add_token_types([1, 1])
    writer.add_token_merges(["a b"])
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def short(path: Path, model: Path) -> Path:
    """The first half of a file."""
    shutil.copy(model, path)
    os.truncate(path, model.stat().st_size // 2)
    return path


@pytest.mark.parametrize("kind", ["strange", "short", "missing", "noise"])
def test_a_broken_file_is_told_with_its_cause(
    default_model: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "model.gguf"
    if kind == "strange":
        strange(file)
    elif kind == "short":
        short(file, default_model)
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
    if kind == "strange":
        assert "dromedary" in error.message


def test_an_adapter_that_is_none_is_told(default_model: Path, tmp_path: Path) -> None:
    async def go() -> str:
        engine = make_engine(default_model, lora={"x": str(tmp_path / "none.gguf")})
        with pytest.raises(ModelBroken) as broken:
            await engine.start()
        await engine.aclose()
        return broken.value.message

    assert "/" not in asyncio.run(go())


def test_folders_of_the_dead_are_swept() -> None:
    gone = Path(tempfile.mkdtemp(prefix=f"{PREFIX}999999999-"))
    mine = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        remove_stale_folders()
        assert not gone.exists()
        assert mine.exists()
    finally:
        shutil.rmtree(mine)


def test_at_least_one_core_is_used() -> None:
    assert 1 <= count_cores() <= len(os.sched_getaffinity(0))


def test_a_job_crosses_unchanged(default_model: Path) -> None:
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
