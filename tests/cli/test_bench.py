"""`dragoman bench` measures what a client sees."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dragoman.testing import ScriptedEngine
from tests.support.command_line import run_command
from tests.support.serving import serve_scripted


@pytest.mark.parametrize("tokens", [True, False], ids=["token ids", "text"])
def test_bench_of_a_server(capsys: pytest.CaptureFixture[str], tokens: bool) -> None:
    engine = ScriptedEngine("a b c d e f g h", tokens=tokens, slots=3)
    with serve_scripted(engine, log_level="warning") as server:
        arguments = ("scripted", "--url", server.url, "--prompt", "8,16", "--tokens", "5")
        result = run_command(capsys, "bench", *arguments, "--json")
        assert result.code == 0, result.err
        rows = json.loads(result.out)["results"]
        assert [row["streams"] for row in rows] == [1, 3, 1, 3]
        assert [row["completion_tokens"] for row in rows] == [5, 15, 5, 15]
        assert all(row["first_token"] > 0 and row["prompt_rate"] > 0 for row in rows)
        if tokens:
            assert [row["prompt_tokens"] for row in rows] == [8, 8, 16, 16]
        assert engine.peak <= 3
        jobs = list(engine.jobs)
        assert not any(job.cache_prompt for job in jobs)
        three = [str(job.prompt) for job in jobs[2:5]]
        assert len(set(three)) == 3
        table = run_command(capsys, "bench", *arguments, "--streams", "2").out.splitlines()
    headings = "PROMPT|STREAMS|FIRST TOKEN|PROMPT TOKENS/S|TOKENS/S|PER STREAM"
    assert re.sub(r"  +", "|", table[1]) == headings
    assert len(table) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "0"], "--prompt: expected a whole number of at least 1, got '0'"),
        (["--streams", "1,x"], "--streams: expected a whole number of at least 1, got 'x'"),
        (["--streams", "999"], "at most"),
        (["--prompt", "900"], "context"),
    ],
)
def test_bench_names_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    engine = ScriptedEngine("a b c d", tokens=True, context=512)
    with serve_scripted(engine, log_level="warning") as server:
        result = run_command(capsys, "bench", "scripted", "--url", server.url, *arguments)
    assert result.code != 0
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.slow
@pytest.mark.real_model
def test_bench_loads_a_model_that_the_server_lacks(
    default_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running server does not have this model."""
    monkeypatch.setenv("DRAGOMAN_THREADS", "1")
    arguments = ["--prompt", "32", "--tokens", "4", "--streams", "1,2", "--json"]
    with serve_scripted(log_level="warning") as server:
        monkeypatch.setenv("DRAGOMAN_PORT", str(server.port))
        monkeypatch.setenv("DRAGOMAN_CONTEXT", "512")
        result = run_command(capsys, "bench", str(default_model), *arguments)
    assert result.code == 0, result.err
    assert "does not have" in result.err
    one, two = json.loads(result.out)["results"]
    assert (one["prompt_tokens"], one["completion_tokens"]) == (32, 4)
    assert (two["streams"], two["completion_tokens"]) == (2, 8)
    assert one["rate"] > 0
