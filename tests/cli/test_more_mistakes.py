"""Mistakes that newcomers make: flags of other servers, wrong files, wrong addresses, odd places.

Each is one line that says what to do, and a non-zero exit, before anything is loaded.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import check_line, run_command
from tests.support.model_files import make_gguf, write_model_file
from tests.support.server_process import DRAGOMAN

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 98362432\n"
CONTENTS = {
    "zero.gguf": b"",
    "short.gguf": b"GG",
    "page.gguf": b"<!doctype html><html>404</html>",
    "pointer.gguf": LFS_POINTER,
    "newer.gguf": b"GGUF" + (99).to_bytes(4, "little") + bytes(100),
    "swapped.gguf": b"GGUF" + (3).to_bytes(4, "big") + bytes(100),
    "cut.gguf": make_gguf(9, {})[:-40],
    "cut-header.gguf": make_gguf(9, {})[:50],
    "model.safetensors": b"\x08" + bytes(7) + b"{}      ",
    "model.bin": b"PK\x03\x04" + bytes(50),
    "open.jinja": b"{{ x ",
    "empty.txt": b"\n\n",
    "latin.txt": b"caf\xe9",
    "cert.pem": b"no certificate",
    "bad.yaml": b"entries: [{name: a, kye: b}]",
}


@pytest.fixture
def files(place: Path) -> Path:
    """The files that commands are given by mistake."""
    for name, content in CONTENTS.items():
        (place / name).write_bytes(content)
    write_model_file(place / "mixed" / "a.gguf")
    (place / "mixed" / "b.gguf").write_bytes(b"bad")
    (place / "loop.gguf").symlink_to("loop.gguf")
    (place / "bad").mkdir()
    (place / "bad" / "b.gguf").write_bytes(b"bad")
    return place


COMMANDS = [
    ("sevre", "there is no command 'sevre'. Did you mean `serve`? See `dragoman --help`."),
    ("xyzzy", "there is no command 'xyzzy'. See `dragoman --help`."),
    # commands of other programs
    ("start", "there is no command 'start'. Use `dragoman serve`."),
    ("delete good", "there is no command 'delete'. Use `dragoman rm`."),
    ("load good", "there is no command 'load'. Use `dragoman run`."),
    ("version", "there is no command 'version'. Use `dragoman --version`."),
    ("lst", "there is no command 'lst'. Did you mean `list`?"),
    ("keys delete x", "invalid choice: 'delete' (choose from"),
    ("formats x", "unexpected argument 'x'"),
    ("--versoin", "there is no flag --versoin. Did you mean `--version`? See `dragoman --help`."),
    ("--port 9000 serve", "there is no flag --port. Write the flags of a command after it."),
    ("stop", "the following arguments are required: MODEL"),
    ("cp good", "the following arguments are required: ALIAS"),
    # flags of other servers
    ("serve --model good", "there is no flag --model. Name the model without a flag."),
    ("serve -m good", "there is no flag -m. Name the model without a flag."),
    ("serve -hf owner/repo", "there is no flag -hf. Name the model without a flag."),
    ("serve --jinja", "there is no flag --jinja. Leave it out: templates, tool calls"),
    ("serve --enable-auto-tool-choice", "Leave it out: templates, tool calls"),
    ("serve --dtype auto", "Use `--engine-arg dtype=NAME`."),
    ("serve --n-ctx 4096", "there is no flag --n-ctx. Use `--context`."),
    ("serve --max-model-len=4096", "there is no flag --max-model-len. Use `--context`."),
    ("serve --served-model-name x", "Use `--served-name`."),
    ("serve --tool-call-parser hermes", "Use `--format`."),
    ("serve --tensor-parallel-size 2", "Use `--engine-arg tensor_parallel_size=COUNT`."),
    ("serve -v", "there is no flag -v. Use `--log-level debug`."),
    ("ps --max-model-len 1", "there is no flag --max-model-len. See `dragoman ps --help`."),
    ("serve -n 5", "there is no flag -n. Use `--sampling max_tokens=NUMBER`."),
    ("run good -n 5", "there is no flag -n. Use `--set max_tokens=NUMBER`."),
    ("serve --temp 0.5", "there is no flag --temp. Use `--sampling temperature=NUMBER`."),
    ("run good --temp 0.5", "there is no flag --temp. Use `--temperature`."),
    ("serve good -tp 2", "there is no flag -tp. Use `--engine-arg tensor_parallel_size=COUNT`."),
    ("serve good --enforce-eager", "Use `--engine-arg enforce_eager=true`."),
    ("serve good --metrics", "there is no flag --metrics. Leave it out: it is always on."),
    ("serve good --embeddings", "Leave it out: the file of the model says whether it embeds"),
    ("serve good --disable-log-requests", "Use `--log-level warning`."),
    ("run good --hidethinking hi", "Use `--hide-reasoning`."),
    ("run good --format json hi", "For answers in JSON, use --set format=json."),
    # nothing is similar
    ("serve good --override-kv a=b", "there is no flag --override-kv. See `dragoman serve"),
    ("serve good --no-webui", "there is no flag --no-webui. See `dragoman serve"),
    ("ps --temp", "there is no flag --temp. See `dragoman ps"),
    ("serve -port 80", "there is no flag -port. Did you mean `--port`?"),
    ("serve --api_key x", "Did you mean `--api-key`?"),
    ("serve --port", "argument --port: expected one argument"),
    ("serve --port --host 127.0.0.1", "argument --port: expected one argument"),
    ("serve hf.co/owner/repo:Q8_0", "Download it from Hugging Face with `dragoman pull hf:owner"),
    ("run https://hf.co/owner/repo hi", "Download it from Hugging Face with `dragoman pull hf:own"),
    ("run good", "The prompt is empty. Write the prompt after the name of the model."),
    ("engine", "the following arguments are required: install, list or remove."),
    ("keys", "the following arguments are required: new or hash, NAME."),
    # units
    ("serve --threads 1000000", "--threads: must be at most 512, got 1000000"),
    ("serve --threads-batch 513", "--threads-batch: must be at most 512, got 513"),
    ("serve --context 8kb", "a number of tokens such as 8192 or 8k, got '8kb'"),
    ("serve --context 8,192", "a number of tokens such as 8192 or 8k, got '8,192'"),
    ("serve --memory 50%", "a size such as 512MiB or 4GB, got '50%'"),
    ("serve --drain 1:30", "a duration such as 30s, 5m or 1h30m, got '1:30'"),
    ("serve --port=", "--port: expected a whole number, got ''"),
    ("serve --gpu-layers all", "--gpu-layers: expected a whole number, got 'all'"),
    ("serve --tensor-split a,b", "--tensor-split: expected a number, or a list of these"),
    ("serve --cache-type-k q3", "--cache-type-k: expected f32, f16, bf16"),
    ("serve --rope-scaling yarm", "Did you mean `yarn`?"),
    # files that are no models
    ("serve zero.gguf", "zero.gguf: The file is not a GGUF file."),
    ("serve short.gguf", "short.gguf: The file is not a GGUF file."),
    ("serve page.gguf", "page.gguf: The file is not a GGUF file, but a web page: download the"),
    (
        "serve pointer.gguf",
        "The file is not a GGUF file, but a Git LFS pointer: run `git lfs pull`.",
    ),
    ("serve newer.gguf", "GGUF version 99 is not supported; 2 and 3 are."),
    ("serve swapped.gguf", "The file has the wrong byte order."),
    ("serve cut.gguf", "The file is truncated. Download it again."),
    ("serve model.safetensors", "belongs to a safetensors model: name its directory."),
    ("serve C:\\Users\\me\\x.gguf", " In WSL, it is /mnt/c/Users/me/x.gguf. `dragoman list`"),
    ("serve D:/x.gguf", " In WSL, it is /mnt/d/x.gguf."),
    ("serve llama3.2", "`dragoman list` lists the installed models, `dragoman pull` downloads"),
    ("serve empty", "in the directory 'empty', and no config.json of a safetensors model."),
    ("serve cut-header.gguf", "The file is"),
    ("run --local cut.gguf hi", "cut.gguf: The file is truncated"),
    ("bench --local cut.gguf", "cut.gguf: The file is truncated"),
    ("show cut.gguf", "cannot be loaded: The file is truncated"),
    ("explain cut-header.gguf", "The file is"),
    ("serve model.bin", "model.bin: The file is not a GGUF file."),
    ("serve bad", "bad/b.gguf: The file is not a GGUF file."),
    ("explain bad", "The file is not a GGUF file."),
    ("serve models/good.gguf/x.gguf", "'models/good.gguf/x.gguf' cannot be read: Not a directory."),
    ("show loop.gguf", "The model 'loop.gguf' cannot be read: Too many levels of symbolic links."),
    ("serve ./nowhere", "There is no file './nowhere'."),
    ("show https://huggingface.co/a/b", "'hf:a/b' is not installed. Download it from Hugging"),
    ("serve ~/nowhere.gguf", "There is no file '~/nowhere.gguf'"),
    ("serve ~nobody-here/x.gguf", "There is no file '~nobody-here/x.gguf'"),
    ("serve --models-file ~/x.yaml", "--models-file: there is no file '{tmp}/home/x.yaml'"),
    ("serve good --mmproj nowhere.gguf", "there is no file '{tmp}/nowhere.gguf' (mmproj)."),
    ("serve good --mmproj models/good.gguf", "The file is not a projector."),
    ("serve good --mmproj zero.gguf", "The file is not a GGUF file. Replace the file, or set"),
    ("serve good --draft-model zero.gguf", "zero.gguf (draft model): The file is not a GGUF"),
    ("serve good --chat-template open.jinja", "open.jinja (chat_template): The model's chat"),
    ("serve mixed --chat-template nowhere", "model `a`: there is no file '{tmp}/nowhere'"),
    ("list --models-dir empty.txt", "--models-dir: 'empty.txt' is not a directory."),
    ("serve good --models-dir nowhere", "There is no model 'good'."),
    # addresses, certificates, keys
    ("serve good --host 127.0.0.1:8000", "is not an address of this machine. Set the port with"),
    ("serve good --host http://127.0.0.1", "'http://127.0.0.1' is not an address of this"),
    ("serve good --host [::1] --api-key k", "'[::1]' is not an address of this machine."),
    ("serve good --tls-cert cert.pem", "--tls-cert: 'cert.pem' contains no PEM certificate."),
    ("serve good --tls-key cert.pem", "--tls-key needs a certificate: set --tls-cert."),
    ("serve good --tls-cert nowhere", "--tls-cert: cannot read 'nowhere': No such file"),
    ("serve good --tls-client-ca cert.pem", "--tls-client-ca needs a certificate"),
    ("serve good --api-key-file bad", "--api-key-file: cannot read 'bad': Is a directory."),
    ("serve good --api-key-file bad.yaml", "bad.yaml:1"),
    ("serve good --audit-log bad", "--audit-log: cannot write 'bad': Is a directory."),
    ("serve good --audit-log no/a.log", "--audit-log: cannot write 'no/a.log': No such file"),
    ("serve good --store state.db", "that of a file is sqlite:///PATH"),
    ("serve good --store sqlite:///bad", "sqlite:///bad cannot be opened: Is a directory."),
    ("serve good --store sqlite:///empty.txt", "cannot be opened: file is not a database."),
    ("serve good --media-hosts http://x/", "--media-hosts: `http://x/` is not HOST or HOST:PORT"),
    ("serve --upstream 127.0.0.1:9", "--upstream: expected a URL that begins with http://"),
    ("serve --upstream http://127.0.0.1:9 --upstream-wait 0", "cannot be reached"),
    ("explain http://127.0.0.1:9", "cannot be reached: Connection refused."),
    # the running server
    ("stop good --url http://127.0.0.1:9", "Cannot reach a server at http://127.0.0.1:9"),
    ("ps --port 9", "No server is running at http://127.0.0.1:9. `dragoman serve` starts one"),
    ("health --port 9", "Cannot reach a server at http://127.0.0.1:9: Connection refused."),
    ("run good hi --url http://127.0.0.1:9", "Cannot reach a server at http://127.0.0.1:9"),
    # models
    ("run nowhere hi --port 9", "There is no model 'nowhere'."),
    ("run good --think maybe hi", "`think` takes on, off, low, medium or high, not 'maybe'."),
    ("run good --set temprature=1 hi", "Did you mean `temperature`?"),
    ("bench good --streams 0", "argument --streams: expected a whole number of at least 1"),
    ("rm -y nowhere", "There is no model 'nowhere'."),
    ("rm -y ../..", "There is no model '../..'."),
    ("rm -y ./cut.gguf", "There is no model './cut.gguf'."),
    ("cp nowhere a", "There is no model 'nowhere'."),
    ("cp good good", "There is a model `good` already."),
    ("pull llama3:8b", "`llama3:8b` cannot be downloaded. Use `smollm2-135m`, or `hf:owner"),
    ("pull https://example.com/x.gguf", "cannot be downloaded. Use `smollm2-135m`"),
    (
        "pull ./cut.gguf",
        "'./cut.gguf' is a file that you have: `dragoman serve` and `dragoman run`",
    ),
    ("pull hf:", "Write it as `hf:owner/repo`"),
    ("create x", "Name the model to start from with --from"),
    ("create x --from good --parameter temprature=1", "Did you mean `temperature`?"),
    ("create x --from good --template open.jinja", "`template`: The model's chat template is"),
    ("create x --from good --adapter models/good.gguf", "is not an adapter."),
    ("create x -f nowhere", "No such file or directory: nowhere"),
    ("create x -f latin.txt", "latin.txt is not UTF-8 text."),
    ("create x --from good --template latin.txt", "latin.txt is not UTF-8 text."),
    ("serve good --sampling foo=1", "There is no sampling field `foo`.\n"),
    ("engine install sglang", "There is no engine 'sglang' to install. Engines: vllm."),
    ("engine install vllm --device tpu", "Unknown device 'tpu'. Devices: cpu, cuda."),
    ("engine remove vllm", "The engine vllm is not installed."),
    ("keys new a/b", "NAME: `name` must be at most 64 letters"),
    ("new-format x zero.gguf", "NAME must be 2 to 40 lower-case letters"),
    ("new-format my_model nowhere", "nowhere"),
    ("explain nowhere", "nowhere"),
]


@pytest.mark.parametrize(("command", "message"), COMMANDS)
def test_mistake(
    command: str,
    message: str,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        result = run_command(capsys, *command.split())
    check_line(result, message.format(tmp=files))
    assert not result.err.endswith(("?.\n", "..\n"))
    if not command.startswith("show"):
        assert result.out == ""


def test_prompt_in_the_place_of_a_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dragoman.cli.run.read_prompt", lambda words: None)  # as in a terminal
        result = run_command(capsys, "run", "What is 2 + 2?", "--local")
    check_line(result, "There is no model 'What is 2 + 2?'.")
    assert result.err.endswith(" Write the prompt after the name of the model.\n")


FORBIDDEN = [
    ("serve good", "The file cannot be opened: Permission denied."),
    ("serve empty", "The directory 'empty' cannot be read: Permission denied."),
    ("explain models/good.gguf", "The file cannot be opened: Permission denied."),
    ("engine install vllm --device cpu", "Choose another directory with --engines-dir."),
]


@pytest.mark.parametrize(("command", "message"), FORBIDDEN)
def test_files_of_another_user(
    command: str,
    message: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tests may run as root, whom no permission stops, so the system's answer is given here."""

    def refuse(path: object, *arguments: object, **options: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for name in ("open", "listdir", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    result = run_command(capsys, *command.split())
    assert result.code == 1
    assert message in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


SETTINGS = [
    ("server:\n\tport: 1", "dragoman.yaml:2: invalid YAML"),
    ("server: {port: 1, port: 2}", "`port` is already set in line 1"),
    ("models:\n  a: models/good.gguf\n  a: models/good.gguf", "dragoman.yaml:3: "),
    ("models: {a: {path: models/good.gguf, sampling: {top_q: 1}}}", "`top_q`"),
    ("models: {a: {path: models/good.gguf, context: lots}}", "`context`: expected a number of"),
    ("models: {a: {path: models/good.gguf, mmproj: nowhere}}", "(mmproj)"),
    ("models: {a: {path: ''}}", "model `a`"),
    ("models: {'': models/good.gguf}", "dragoman.yaml:1: "),
    ("server: *nowhere", "dragoman.yaml:1: invalid YAML"),
    ("server: !!python/object:os.system {}", "dragoman.yaml:1: invalid YAML"),
    ("limits: {queue: yes}", "`limits.queue`: expected a whole number, got True"),
    ("server: {port: 8000.5}", "`server.port`: expected a whole number, got 8000.5"),
    ("server: {port: null, host: [a]}", "`server.host`: expected text"),
    ("- server", "dragoman.yaml: expected a mapping"),
    ("\x00", "dragoman.yaml"),
]


@pytest.mark.parametrize(("content", "message"), SETTINGS)
def test_mistake_in_the_configuration_file(
    content: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "dragoman.yaml").write_text(content + "\n")
    check_line(run_command(capsys, "serve"), message)


@pytest.mark.parametrize("words", [["help"], ["help", "serve"]])
def test_help_as_a_word(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    result = run_command(capsys, *words)
    assert result.code == 0
    assert result.out.startswith(" ".join(["usage: dragoman", *words[1:]]))


def test_usage_of_every_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line.split()[0] for line in run_command(capsys, "help").out.splitlines() if line]
    for name in {"serve", "list", "show", "rm", "explain", "create", "keys"} & {*commands}:
        lines = run_command(capsys, "help", name).out.splitlines()
        assert lines[0].startswith(f"usage: dragoman {name}")
        assert lines[1] == ""


def test_listing_creates_no_directory(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "list", "--models-dir", "nowhere").code == 0
    assert not (place / "nowhere").exists()


STREAMS = [
    ("run good <&-", "The prompt is empty."),
    ("list >/dev/full", "No space left on device"),
    ("LC_ALL=C serve n\u00f6 ", "There is no model"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "message"), STREAMS)
def test_closed_streams_full_devices_and_plain_locales(
    command: str, message: str, place: Path
) -> None:
    variables, separator, rest = command.rpartition("LC_ALL=C ")
    process = subprocess.run(
        ["/bin/sh", "-c", f'{variables}{separator}exec "$0" "$1" "$2" {rest}', *DRAGOMAN],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=place,
        env={**os.environ},
    )
    assert process.returncode == 1
    (line,) = process.stderr.decode().splitlines()
    assert line.startswith("dragoman: ")
    assert message in line
