"""`list`, `show`, `ps`, `stop`, `rm`, `cp`, `explain` and `formats`."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import config
from dragoman.cli.main import build_parser
from dragoman.http.app import App
from dragoman.http.server import make_app
from dragoman.models.catalog import ModelSource
from dragoman.models.model import Model, ModelInfo
from dragoman.models.registry import ModelRegistry
from dragoman.prompt.renderer import PromptRenderer
from dragoman.runtime import build_runtime, make_policy, open_catalog
from dragoman.testing import Reply, ScriptedEngine
from tests.support.command_line import CommandResult, run_command
from tests.support.model_files import add_token_ids, write_model_file
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, run_app, serve_scripted
from tests.support.terminal import ENTER, Terminal

Run = Callable[..., CommandResult]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A models directory: two files, one split into two parts, one broken."""
    models = tmp_path / "models"
    write_model_file(models / "writer" / "writer-Q8_0.gguf", general_license="mit")
    write_model_file(models / "coder.gguf")
    for part in (1, 2):
        write_model_file(models / "large" / f"large-{part:05}-of-00002.gguf")
    write_model_file(models / "damaged.gguf", b"GGUFnonsense")
    return models


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with these models, where no server runs."""
    monkeypatch.setenv("DRAGOMAN_MODELS_DIR", str(root))
    monkeypatch.setenv("DRAGOMAN_PORT", "9")
    monkeypatch.chdir(root.parent)
    return lambda *arguments: run_command(capsys, *arguments)


async def load_scripted(source: ModelSource) -> Model:
    replies = [Reply("Once upon a time", when="story", hang_at=2), Reply("Hi.")]
    engine = ScriptedEngine(replies, slots=2)
    return Model(
        id=source.id,
        engine=engine,
        capabilities=engine.capabilities,
        info=ModelInfo(context=2048, size=source.size, created=source.created),
        renderer=PromptRenderer(None, None),
    )


def make_server_app(root: Path, **settings: Any) -> App:
    """Make the app of a server whose models are files but whose engines are scripted."""
    flags = {"models_dir": str(root), "port": 0, "log_level": "warning"} | settings
    loaded = config.load(flags)
    models = ModelRegistry(open_catalog(loaded), load_scripted, make_policy(loaded))
    return make_app(build_runtime(models, loaded), local=True)


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with run_app(make_server_app(root)) as running:
        yield running


@pytest.mark.parametrize("command", ["list", "ls"])
def test_list_as_a_table_and_as_json(run: Run, command: str) -> None:
    table = run(command).out.splitlines()
    assert table[0].split()[:4] == ["NAME", "ARCHITECTURE", "QUANTIZATION", "CONTEXT"]
    assert [line.split()[0] for line in table[1:]] == ["coder", "damaged", "large", "writer-Q8_0"]
    rows = {row["name"]: row for row in json.loads(run(command, "--json").out)}
    assert rows["coder"]["path"].endswith("coder.gguf")
    assert rows["coder"]["error"] is None
    assert rows["damaged"]["error"]


def test_show_describes_a_model_without_loading_it(run: Run) -> None:
    output = run("show", "writer").out
    for words in ("writer-Q8_0.gguf", "llama", "mit", "memory", "temperature", "none"):
        assert words in output
    data = json.loads(run("show", "writer", "--json").out)
    assert data["license"] == "mit"
    assert data["memory"]["total"] > data["size"]
    assert data["context"]["served"] <= data["context"]["trained"]
    assert run("show", "writer", "--license").out == "mit\n"
    assert "general.architecture" in run("show", "writer", "--metadata").out
    assert "--context" in run("show", "--help").out
    for flags in ([], ["--json"]):
        broken = run("show", "damaged", *flags)
        assert (broken.code, "error" in broken.out) == (1, True)
        assert "damaged cannot be loaded: " in broken.err
    missing = run("show", "writer", "--template")
    assert (missing.code, "chat template" in missing.err) == (1, True)


HUB_FILE = "hf:Owner/Some-Repo/sub/some-Q8_0.gguf"


@pytest.mark.parametrize(
    "name",
    [
        HUB_FILE,
        "Owner/Some-Repo/sub/some-Q8_0.gguf",
        "hf:Owner/Some-Repo",
        "hf:Owner/Some-Repo@main",
    ],
)
def test_commands_find_what_was_pulled_from_the_hub(run: Run, root: Path, name: str) -> None:
    assert "is not installed" in run("show", name).err
    file = root / "Owner--Some-Repo" / "sub" / "some-Q8_0.gguf"
    write_model_file(file)
    assert json.loads(run("show", name, "--json").out)["path"] == str(file)
    assert run("cp", name, "other").code == 0
    assert run("rm", "-y", "other").code == 0
    assert run("rm", "-y", name).code == 0
    assert not file.exists()


@pytest.mark.parametrize("name", ["hf:Owner/Some-Repo/../../coder.gguf", "hf:../x/coder.gguf"])
def test_names_of_the_hub_stay_in_their_directory(run: Run, name: str) -> None:
    assert run("show", name).code == 1


def test_show_prints_what_the_model_has(run: Run, default_model: Path) -> None:
    output = run("show", str(default_model), "--context", "1k").out
    assert "trained for 8192 tokens, served with 1024" in output
    assert "completion, chat, tools" in output
    assert "apache-2.0" in output
    template = run("show", str(default_model), "--template").out
    assert "<|im_start|>" in template


def test_show_tells_what_only_some_models_have(run: Run, root: Path, default_model: Path) -> None:
    tokens = {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}
    filler = add_token_ids(root / "filler.gguf", default_model, tokens)
    assert "infill" in json.loads(run("show", "filler", "--json").out)["capabilities"]
    filler.unlink()
    write_model_file(root / "long.gguf", llama_context_length=131072, llama_pooling_type=1)
    long = json.loads(run("show", "long", "--json", "--context", "2048").out)
    assert long["context"] == {"trained": 131072, "served": 2048}
    assert "embedding" in long["capabilities"]


def test_ps_and_stop_follow_a_model(run: Run, server: RunningServer) -> None:
    url = ("--url", server.url)
    assert "no model loaded" in run("ps", *url).out
    assert run("stop", "coder", *url).out == "coder is not loaded.\n"
    server.run_coroutine(server.app.runtime.services.models.load("coder"))
    [model] = json.loads(run("ps", "--json", *url).out)
    assert (model["id"], model["status"], model["context_length"]) == ("coder", "ready", 2048)
    assert model["slots_busy"] == 0
    assert "forever" in run("ps", *url).out
    assert run("stop", "coder", *url).out == "coder is unloaded.\n"
    assert "no model loaded" in run("ps", *url).out
    unknown = run("stop", "codr", *url)
    assert (unknown.code, "Did you mean `coder`" in unknown.err) == (1, True)


def test_model_in_use_is_unloaded_after_its_requests(run: Run, server: RunningServer) -> None:
    url = ("--url", server.url)
    body = {"model": "coder", "prompt": "A story:", "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        [row] = run("ps", *url).out.splitlines()[1:]
        assert "1 of 2" in row
        assert row.endswith("in use")
        assert "when its requests have finished" in run("stop", "coder", *url).out


def test_ps_says_until_when_a_model_stays(run: Run, root: Path) -> None:
    with run_app(make_server_app(root, keep_alive=3600)) as server:
        server.run_coroutine(server.app.runtime.services.models.load("coder"))
        assert "from now" in run("ps", "--url", server.url).out


def test_commands_find_a_server_by_its_port(run: Run, server: RunningServer) -> None:
    port = ["--port", str(server.port)]
    assert "no model loaded" in run("ps", *port).out
    body = {"model": "coder", "prompt": "Hi"}
    assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
    assert run("ps", *port).out.splitlines()[1].startswith("coder")
    assert run("stop", "coder", *port).code == 0
    assert "there is no flag --port" in run("show", "coder", *port).err  # it asks no server


@pytest.mark.parametrize("command", [["ps"], ["stop", "x"], ["show", "x", "--url", "{url}"]])
def test_command_says_that_no_server_runs(run: Run, command: list[str]) -> None:
    url = "http://127.0.0.1:9"
    result = run(*(word.format(url=url) for word in command))
    assert result.code == 1
    assert url in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("root_body", "message"),
    [
        (b'{"object": "dragoman"}', "does not understand"),
        (b'{"object": "other"}', "is not a dragoman server"),
        (b"<html>", "is not a dragoman server"),
    ],
)
def test_command_says_that_the_server_is_another_program(
    run: Run, root_body: bytes, message: str
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = root_body if self.path == "/" else b"<html>"
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        result = run("ps", "--url", f"127.0.0.1:{other.server_port}")
        other.shutdown()
        thread.join()
    assert (result.code, message in result.err) == (1, True)
    assert len(result.err.splitlines()) == 1


def test_show_asks_a_server(run: Run, server: RunningServer) -> None:
    output = run("show", "coder", "--url", server.url).out
    assert "unloaded" in output
    assert json.loads(run("show", "coder", "--url", server.url, "--json").out)["id"] == "coder"
    refused = run("show", "coder", "--url", server.url, "--template")
    assert (refused.code, "leave out --url" in refused.err) == (1, True)


def test_stop_needs_the_admin_key(run: Run) -> None:
    with serve_scripted("Hi.", api_key=("user",), admin_key=("admin",)) as server:
        url = ("--url", server.url, "--api-key", "user")
        assert "scripted" in run("ps", *url).out
        refused = run("stop", "scripted", *url)
        assert (refused.code, "--admin-key" in refused.err) == (1, True)
        accepted = run("stop", "scripted", *url, "--admin-key", "admin")
        assert "cannot be unloaded" in accepted.err  # an engine of a program


def test_stop_without_a_key_asks_for_the_admin_key(run: Run) -> None:
    with serve_scripted("Hi.", admin_key=("admin",)) as server:
        refused = run("stop", "scripted", "--url", server.url)
    assert (refused.code, "--admin-key" in refused.err, "--api-key" in refused.err) == (
        1,
        True,
        False,
    )


def test_rm_names_what_it_would_delete(run: Run) -> None:
    run("cp", "coder", "one")
    assert "and the name one?" in run("rm", "coder").err
    run("cp", "coder", "two")
    assert "and the names one, two?" in run("rm", "coder").err


def test_rm_deletes_files_and_empty_directories(run: Run, root: Path) -> None:
    asked = run("rm", "large")
    assert (asked.code, "Confirm it with -y" in asked.err) == (1, True)
    (root / "large" / ".cache" / "huggingface").mkdir(parents=True)
    (root / "writer" / "notes.txt").write_text("mine")
    result = run("rm", "-y", "large", "writer", "damaged")
    assert result.code == 0, result.err
    assert not (root / "large").exists()
    assert [path.name for path in (root / "writer").iterdir()] == ["notes.txt"]
    assert sorted(path.name for path in root.iterdir()) == ["coder.gguf", "writer"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("codr", "Did you mean `coder`"),
        ("../models/coder.gguf", "There is no file"),
        ("outside", "still there"),
    ],
)
def test_rm_deletes_only_models_of_the_directory(
    run: Run, root: Path, name: str, message: str
) -> None:
    other = write_model_file(root.parent / "outside.gguf")
    (root / "models.yaml").write_text(f"outside: {other}\n")
    (root / "linked").symlink_to(root.parent)
    result = run("rm", "-y", name)
    assert message in result.err + result.out
    assert other.exists()
    assert (root / "coder.gguf").exists()


def test_rm_refuses_what_the_server_has_loaded(run: Run, root: Path, server: RunningServer) -> None:
    server.run_coroutine(server.app.runtime.services.models.load("coder"))
    refused = run("rm", "-y", "coder", "--url", server.url)
    assert (refused.code, "`dragoman stop coder`" in refused.err) == (1, True)
    assert (root / "coder.gguf").exists()
    assert run("rm", "-y", "writer", "--url", server.url).code == 0


@pytest.mark.slow
def test_rm_asks_on_a_terminal(root: Path) -> None:
    for answer, exists in (("n", True), ("y", False)):
        terminal = Terminal(
            "rm", "coder", DRAGOMAN_MODELS_DIR=str(root), DRAGOMAN_PORT="9", HOME=str(root.parent)
        )
        terminal.until(r"coder\.gguf .*\[y/N\]")
        terminal.type(answer + ENTER)
        assert terminal.wait() == 0, terminal.raw
        assert (root / "coder.gguf").exists() is exists


def test_cp_adds_a_name_and_rm_removes_it(run: Run, root: Path) -> None:
    file = root / "models.yaml"
    file.write_text("# my models\nnovel: {path: writer/writer-Q8_0.gguf, context: 512}\n")
    assert run("cp", "coder", "gpt-4o").code == 0
    assert run("cp", "novel", "short story").code == 0
    assert file.read_text().startswith("# my models\nnovel: {path: writer/writer-Q8_0.gguf, ")
    assert 'gpt-4o: "coder.gguf"' in file.read_text()
    rows = {row["name"]: row for row in json.loads(run("list", "--json").out)}
    assert rows["novel"]["aliases"] == ["short story"]
    assert "coder" in rows["gpt-4o"]["aliases"]
    for name in ("coder", "NOVEL"):
        taken = run("cp", "large", name)
        assert (taken.code, "already" in taken.err) == (1, True)
    assert run("rm", "-y", "short story").code == 0
    assert (root / "writer" / "writer-Q8_0.gguf").exists()
    assert run("rm", "-y", "coder").code == 0
    assert "gpt-4o" not in file.read_text()
    assert "coder" not in run("list").out


def test_a_model_that_cannot_be_loaded_gets_no_other_name(run: Run, root: Path) -> None:
    for source in ("damaged", str(root / "damaged.gguf")):
        for command in (["cp", source, "other"], ["create", "other", "--from", source]):
            refused = run(*command)
            assert refused.code == 1, command
            assert "damaged" in refused.err, command
            assert "GGUF" in refused.err, command
    assert not (root / "models.yaml").exists()


def test_names_of_the_configuration_file_are_left_to_it(run: Run, root: Path) -> None:
    (root.parent / "dragoman.yaml").write_text(
        f"models:\n  novel: {{path: {root}/writer/writer-Q8_0.gguf, context: 512}}\n"
    )
    assert run("cp", "novel", "story").code == 0
    assert "512" in run("show", "story").out
    assert run("rm", "-y", "story").code == 0
    for command in (["rm", "-y", "novel"],):
        refused = run(*command)
        assert (refused.code, "configuration file" in refused.err) == (1, True)
    assert (root / "writer" / "writer-Q8_0.gguf").exists()


@pytest.mark.parametrize("alias", ["true", "null", "5", "1e3", "ß 😀", "- x", "a: b # c"])
def test_cp_quotes_a_name_that_yaml_would_read_otherwise(run: Run, root: Path, alias: str) -> None:
    assert run("cp", "coder", alias).code == 0
    assert alias in [row["name"] for row in json.loads(run("list", "--json").out)]
    assert run("rm", "-y", alias).code == 0
    assert (root / "coder.gguf").exists()


def test_path_that_is_not_utf8_is_broken(run: Run, root: Path) -> None:
    (root / "coder.gguf").rename(root / os.fsdecode(b"bad\xff.gguf"))
    rows = {row["name"]: row for row in json.loads(run("list", "--json").out)}
    assert "not UTF-8" in rows["bad\ufffd"]["error"]


@pytest.mark.parametrize("alias", ["", " ", "a\x1bb", "x" * 999, "models"])
def test_cp_rejects_a_name_that_cannot_be_typed(run: Run, alias: str) -> None:
    assert run("cp", "coder", alias).code == 1


def test_explain_begins_with_the_verdict(run: Run, default_model: Path, tmp_path: Path) -> None:
    lines = run("explain", str(default_model)).out.splitlines()
    assert lines[0].startswith("tool calls: hermes_json (generic prompt: ")
    assert lines[1] == "reasoning:  none"
    verdict = json.loads(run("explain", str(default_model), "--json").out)["verdict"]
    assert verdict.startswith("tool calls: hermes_json")
    assert verdict.endswith("; reasoning: none")
    thinker = run("explain", str(TEMPLATES / "thinker.jinja")).out.splitlines()
    assert thinker[:2] == [
        "tool calls: hermes_json (verified by round trip)",
        "reasoning:  think (verified by round trip)",
    ]
    (tmp_path / "t.jinja").write_text("{{ raise_exception('No.') }}")
    assert "does not render" in run("explain", str(tmp_path / "t.jinja")).out.splitlines()[0]


def test_formats_as_json(run: Run) -> None:
    formats = json.loads(run("formats", "--json").out)
    assert "hermes_json" in [entry["name"] for entry in formats["tools"]]
    assert all(entry["example"] for entry in formats["reasoning"])


COMMANDS = "serve run chat pull list ls show ps stop rm cp bench explain formats config"


@pytest.mark.parametrize("command", COMMANDS.split())
def test_help_of_every_command_has_examples(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert "examples:\n  dragoman " in result.out


def test_arguments_of_commands_are_not_mistaken_for_settings() -> None:
    settings = config.list_settings()
    [commands] = [action for action in build_parser()._actions if isinstance(action.choices, dict)]
    assert isinstance(commands.choices, dict)
    for parser in commands.choices.values():
        for action in parser._actions:
            field = settings.get(action.dest)
            assert field is None or config.name_flag(field) in action.option_strings


def test_create_reads_a_modelfile_and_flags(run: Run, root: Path) -> None:
    modelfile = root.parent / "Modelfile"
    modelfile.write_text('FROM coder\nSYSTEM "Be brief."\nPARAMETER temperature 0.25\n')
    assert run("create", "poet", "-f", str(modelfile)).out == "poet is created from coder.\n"
    loud = run("create", "poet:loud", "--from", "poet", "--parameter", "top_k=7")
    assert loud.code == 0, loud.err
    shown = json.loads(run("show", "poet:loud", "--json").out)
    assert (shown["system"], shown["sampling"]["top_k"]) == ("Be brief.", 7)
    assert shown["sampling"]["temperature"] == 0.25
    names = [row["name"] for row in json.loads(run("list", "--json").out)]
    assert {"coder", "poet", "poet:loud"} <= set(names)
    assert run("rm", "-y", "poet:loud", "poet").code == 0
    assert (root / "coder.gguf").exists()


def test_create_reads_the_modelfile_of_the_directory(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    (root.parent / "Modelfile").write_text("FROM coder\n")
    assert run("create", "poet").out == "poet is created from coder.\n"
    assert run("create", "scribe", "--from", "writer").out == "scribe is created from writer.\n"


def test_create_copies_files_into_the_models_directory(run: Run, root: Path) -> None:
    file = write_model_file(root.parent / "mine.gguf", general_license="own")
    made = run("create", "mine", "--from", str(file))
    assert made.code == 0, made.err
    file.unlink()
    assert json.loads(run("show", "mine", "--json").out)["license"] == "own"
    assert run("rm", "-y", "mine").code == 0
    assert list((root / "blobs").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["x"], "--from"),
        (["../x", "--from", "coder"], "invalid model name"),
        (["x", "--from", "nobody"], "nobody"),
        (["x", "--from", "coder", "--parameter", "top_k"], "NAME=VALUE"),
        (["x", "--from", "coder", "--parameter", "wonders=1"], "wonders"),
        (["coder", "--from", "writer"], "already"),
        (["x", "-f", "missing"], "No such file"),
    ],
)
def test_create_says_what_is_wrong(run: Run, arguments: list[str], problem: str) -> None:
    failed = run("create", *arguments)
    assert (failed.code, problem in failed.err) == (1, True), failed.err


def test_commands_that_change_models_are_in_the_audit_log(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = root.parent / "audit.log"
    monkeypatch.setenv("DRAGOMAN_AUDIT_LOG", str(audit))
    run("cp", "coder", "other")
    run("create", "poet", "--from", "coder", "--system", "x")
    run("rm", "-y", "other", "poet")
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["event"], line["model"], line["key"]) for line in lines] == [
        ("model_copied", "other", "command line"),
        ("model_created", "poet", "command line"),
        ("model_deleted", "other", "command line"),
        ("model_deleted", "poet", "command line"),
    ]


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"quant_method": "awq", "bits": 4}, "AWQ 4-bit"),
        ({"quant_method": "gptq", "bits": 8}, "GPTQ 8-bit"),
        ({"quant_method": "fp8"}, "FP8"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized"},
            "compressed-tensors (pack-quantized)",
        ),
        (None, "BF16"),
    ],
)
def test_directories_are_described(
    run: Run, root: Path, quantization: dict[str, object] | None, name: str
) -> None:
    folder = root / "hub"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    fields = {"quantization_config": quantization} if quantization else {}
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    [row] = [row for row in json.loads(run("list", "--json").out) if row["name"] == "hub"]
    assert row["quantization"] == name
    shown = run("show", str(folder)).out
    assert name in shown
    assert re.search(r"template +50 characters", shown)
    assert "chat" in json.loads(run("show", str(folder), "--json").out)["capabilities"]
