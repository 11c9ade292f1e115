"""`dragoman explain URL`, and other commands about models that other servers run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import main
from tests.support.upstream_servers import (
    Answer,
    list_models,
    make_chat_frames,
    run_table,
    run_worker,
    serve_upstream,
    write_tokenizer,
)

QUIET = ("--log-level", "error")
CHAT: dict[str, Answer] = {
    "/v1/models": list_models("gpt", "other"),
    "/v1/chat/completions": make_chat_frames({"content": "a"}, finish="length"),
}


def run_command(*arguments: str) -> None:
    main([*arguments, *QUIET])


def read_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_explains_a_token_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_tokenizer(tmp_path / "model")
    with run_worker("vllm", model=str(directory)) as worker:
        run_command("explain", worker.url, "--models-dir", str(tmp_path))
        text = capsys.readouterr().out
        run_command("explain", worker.url, "--json", "--models-dir", str(tmp_path))
        report = read_json(capsys)
    assert text.startswith(f"upstream      vLLM 0.32.0 at {worker.url}\nmodel         model\n")
    assert "tool calls: hermes_json" in text  # the formats, as for any other model
    assert "uses          tokens API" in text
    assert "not honoured  " in text
    assert report["api"] == "tokens"
    assert report["upstream"]["version"] == "0.32.0"
    assert "typical_p" in report["not_honoured"]
    assert report["formats"]["tools"]["format"] == "hermes_json"


def test_explains_a_chat_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_table(CHAT) as server:
        run_command("explain", server.url, "--models-dir", str(tmp_path))
    text = capsys.readouterr().out
    assert "other models  other" in text
    assert "uses          chat API" in text
    assert "does not hold It is used through its chat API" in text
    assert "but not enforced" in text


def test_explains_why_a_server_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_tokenizer(tmp_path / "model")
    with run_worker("sglang") as worker:
        worker.token_offset = 1
        with pytest.raises(SystemExit, match="cannot be used as it is"):
            run_command(
                *("explain", worker.url, "--tokenizer", str(directory)),
                *("--models-dir", str(tmp_path)),
            )
    text = capsys.readouterr().out
    assert "upstream      SGLang 0.5.23" in text  # what was found is shown all the same
    assert "cannot serve  The tokenizer (model) is not that of the model" in text


def test_explains_entries_of_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_table(CHAT) as server:
        (tmp_path / "models.yaml").write_text(f"chatty: {server.url}\n")
        run_command("explain", "chatty", "--models-dir", str(tmp_path))
        assert "OpenAI-compatible server" in capsys.readouterr().out
        run_command("show", "chatty", "--json", "--models-dir", str(tmp_path))
        assert read_json(capsys)["format"] == "remote"
        run_command("show", "chatty", "--models-dir", str(tmp_path))
        assert f"OpenAI-compatible server at {server.url}" in capsys.readouterr().out
        run_command("list", "--models-dir", str(tmp_path))
        assert f"at {server.url}" in capsys.readouterr().out


def test_lists_what_the_server_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_table(CHAT) as upstream:
        run_command("list", "--json", "--upstream", upstream.url, "--models-dir", str(tmp_path))
        assert [row["name"] for row in read_json(capsys)] == ["gpt", "other"]
        with serve_upstream(upstream.url, tmp_path) as server:
            run_command("ps", "--url", server.url)
            assert "on OpenAI-compatible server, chat API" in capsys.readouterr().out
            run_command("show", "gpt", "--url", server.url)
            assert "on OpenAI-compatible server, chat API" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "http://127.0.0.1:1"), "cannot be reached"),
        (
            ("serve", "--upstream", "http://127.0.0.1:1", "--port", "0", "--upstream-wait", "0"),
            "cannot be reached",
        ),
        (("serve", "--upstream", "127.0.0.1:1"), "a URL that begins with http://"),
        (("explain", "http://h:1", "--upstream", "http://h:1"), "Name the server once"),
    ],
)
def test_says_what_is_wrong(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        run_command(*arguments, "--models-dir", str(tmp_path))


def test_keys_are_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_UPSTREAM_KEY", "topsecret")
    with run_table(CHAT, api_key="topsecret") as server:
        run_command("explain", server.url, "--models-dir", str(tmp_path))
    run_command("config")
    assert "topsecret" not in capsys.readouterr().out
