"""`dragoman run` in a terminal, in a pipe, with a server and without."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from dragoman.cli.conversation.parameters import list_parameters
from dragoman.protocols.chat.decode import ChatRequest
from dragoman.testing import Reply, ScriptedEngine
from tests.support.command_line import CommandResult, run_command
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, poll_until, serve_scripted
from tests.support.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    ENTER,
    HOME,
    LEFT,
    TAB,
    UP,
    ask,
    open_terminal,
)

pytestmark = pytest.mark.slow
SCRIPT = [
    Reply("<think>Let me see.</think>It is \x1b[31m42\x07\x9b.", when="number"),
    Reply("Once upon a time there was", when="story", hang_at=4),
    Reply("Fine.", when="fail", raise_at=0),
    Reply("Hello there!"),
]
Scripted = tuple[ScriptedEngine, RunningServer]
Run = Callable[..., CommandResult]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    engine = ScriptedEngine(SCRIPT, cached=3)
    options = {"chat_template": TEMPLATES / "chatml.jinja", "reasoning_format": "think"}
    with serve_scripted(engine, log_level="warning", **options) as server:
        yield engine, server


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command in this process, with a file as its input."""

    def run(*arguments: str, text: str | None = None) -> CommandResult:
        file = tmp_path / "input"
        file.write_text(text or "", errors="surrogateescape")
        with (file if text is not None else Path(os.devnull)).open() as source:
            monkeypatch.setattr("sys.stdin", source)
            return run_command(capsys, "run", *arguments)

    return run


def get_last_prompt(engine: ScriptedEngine) -> str:
    return str(engine.jobs[-1].prompt)


def test_line_editor_edits_recalls_and_takes_several_lines(
    scripted: Scripted, tmp_path: Path
) -> None:
    engine, server = scripted
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with open_terminal("run", "scripted", "--url", server.url, **state) as terminal:
        terminal.until(">>>")
        ask(terminal, f"world{HOME}Hello, {LEFT}", "Hello there!")
        assert get_last_prompt(engine).count("Hello, world") == 1
        terminal.type(f"first{ALT_ENTER}second")
        ask(terminal, "", "Hello there!")
        assert "first\nsecond" in get_last_prompt(engine)
        terminal.type('"""one' + ENTER)
        terminal.until(r"\.\.\.")
        ask(terminal, 'two"""', "Hello there!")
        assert "one\ntwo" in get_last_prompt(engine)
        assert '"""' not in get_last_prompt(engine)
        terminal.type("never sent" + CTRL_C)
        terminal.until(">>>")
        terminal.type(f"/sys{TAB}")
        terminal.until("/system")
        ask(terminal, " Be brief.", "system: Be brief.")
        terminal.type(CTRL_D)
    history = tmp_path / "dragoman" / "history"
    assert history.stat().st_mode & 0o077 == 0
    with open_terminal("run", "scripted", "--url", server.url, **state) as terminal:
        terminal.until(">>>")
        ask(terminal, UP * 6 + "!", "Hello there!")  # two of the entries have two lines
        assert "Hello, world!" in get_last_prompt(engine)
        terminal.type("/exit" + ENTER)
    assert not any("never sent" in str(job.prompt) for job in engine.jobs)


def test_reasoning_is_dim_and_control_characters_are_escaped(
    scripted: Scripted, run: Run, tmp_path: Path
) -> None:
    _, server = scripted
    command = ("run", "scripted", "--url", server.url)
    with open_terminal(*command, XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.until(">>>")
        output = ask(terminal, "Which number?", r"42\S*\n")
        terminal.type(CTRL_D)
    assert "\x1b[2mThinking" in terminal.raw
    assert "thinking.\r\n\r\n\x1b[0mIt is ␛[31m42␇\ufffd.\r\n" in terminal.raw
    assert "Let me see." in output
    with open_terminal(*command, "Which number?", NO_COLOR="1") as terminal:
        terminal.until("42")
    assert "Let me see." in terminal.raw
    assert "\x1b" not in terminal.raw
    piped = run(*command[1:], "Which number?")
    assert piped.out == "It is \x1b[31m42\x07\x9b.\n"


@pytest.fixture(params=["handled", "ignored"])
def _inherited_interrupt(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make programs inherit what an interactive shell does with Ctrl-C, or what a job does."""
    ignored = request.param == "ignored"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_inherited_interrupt")
def test_ctrl_c_stops_the_answer_on_the_server_and_not_the_program(
    scripted: Scripted, tmp_path: Path
) -> None:
    engine, server = scripted
    with open_terminal(
        "run", "scripted", "--url", server.url, XDG_STATE_HOME=str(tmp_path)
    ) as terminal:
        terminal.until(">>>")
        terminal.type("Tell a story." + ENTER)
        terminal.until("a time")
        terminal.type(CTRL_C)
        terminal.until(">>>")
        poll_until(lambda: engine.cancelled == 1)
        ask(terminal, "Go on.", "Hello there!")
        assert "Once upon a time" in get_last_prompt(engine)
        ask(terminal, "Now fail.", "fail")
        ask(terminal, "Again.", "Hello there!")
        assert "Now fail." not in get_last_prompt(engine)
        terminal.type(CTRL_D)


def test_slash_commands(scripted: Scripted, tmp_path: Path) -> None:
    engine, server = scripted
    saved = tmp_path / "chat.json"
    (tmp_path / "other.txt").write_text("mine")
    (tmp_path / "empty.json").write_text('[{"role": "system"}]')
    parts = [{"type": "text", "text": "Be kind."}]
    (tmp_path / "parts.json").write_text(json.dumps([{"role": "system", "content": parts}]))
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    picture = tmp_path / "photo.png"
    picture.write_bytes(b"png")
    steps = [
        ("/stats", "There is no answer yet"),
        ("/help", r"/save FILE"),
        ("/set temperature 0.3", r"temperature +0\.3"),
        ("/set temprature 1", "Did you mean `temperature`"),
        ("/set temperature warm", "takes a number"),
        ("/set parameter num_predict 5", r"max_tokens +5"),
        ("/set max_tokens default", "verbose"),
        ("/set stop Z 'two words'", r"two words"),
        ("/set num_ctx 5", "use --context"),
        ("/set verbose maybe", "on or off"),
        ("/set format /no/such", "Cannot read"),
        ("/save ~nobody-here/x", "Cannot write"),
        (f"/set format {schema}", "json_schema"),
        ("/set noformat", "verbose"),
        ("See ~nobody-here/x.png" + "x" * 300 + ".png", "Hello there!"),
        ("/clear", "empty"),
        ('/system """Be brief."""', "system: Be brief."),
        ("/system default", "system: not set"),
        ("/system Be brief.", "system: Be brief."),
        ("/set verbose default", "verbose +off"),
        ("/sav x", "Did you mean `/save`"),
        ("/", "There is no command `/`"),
        ("Hi.", "Hello there!"),
        ("/stats", r"3 of them cached(?s:.)*2 answers"),
        ("/save", "needs the name"),
        (f"/save {tmp_path / 'other.txt'}", "not a saved conversation"),
        (f"/save {saved}", "Saved 3 messages"),
        (f"/save {saved}", "Saved 3 messages"),
        ("/clear", "empty"),
        (f"/load {tmp_path / 'other.txt'}", "is not JSON"),
        (f"/load {tmp_path / 'empty.json'}", r"messages\[0\].content must be text"),
        (f"/load {tmp_path / 'parts.json'}", "Loaded 1 message\\."),
        ("/system", "system: Be kind."),
        (f"/load {saved}", "Loaded 3 messages"),
        ("And again.", "Hello there!"),
        ("/model", r"\* scripted"),
        ("/model script", "Did you mean `scripted`"),
        ("/show", r"model +scripted"),
        (f"What is in {picture}?", "does not read images"),
        (f"{tmp_path}/nothing.png is a path.", "Hello there!"),
    ]
    with open_terminal(
        "run", "scripted", "--url", server.url, XDG_STATE_HOME=str(tmp_path)
    ) as terminal:
        terminal.until(">>>")
        for text, answer in steps:
            ask(terminal, text, answer)
        terminal.type(CTRL_D)
    content = json.loads(saved.read_text())
    assert [message["role"] for message in content["messages"]] == ["system", "user", "assistant"]
    assert content["parameters"] == {"temperature": 0.3, "stop": ["Z", "two words"]}
    _, first, again, _ = engine.jobs
    assert first.sampling.temperature == 0.3
    assert str(again.prompt).startswith(str(first.prompt)[:20])
    assert "Be brief." in str(again.prompt)
    assert "Hello there!" in str(again.prompt)


@pytest.mark.parametrize(
    ("arguments", "text", "output"),
    [
        (["Hi."], None, "Hello there!\n"),
        ([], "Hi.\n", "Hello there!\n"),
        ([], "Invalid: \udcff\n", "Hello there!\n"),
        (["Is", "this", "it:"], "a number?\n", "It is \x1b[31m42\x07\x9b.\n"),
        (["--set", "max_tokens=2", "--set", "think=off", "Hi."], None, "Hello there\n"),
    ],
)
def test_a_prompt_is_answered_once(
    scripted: Scripted, run: Run, arguments: list[str], text: str | None, output: str
) -> None:
    result = run("--url", scripted[1].url, "scripted", *arguments, text=text)
    assert (result.out, result.code) == (output, 0), result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scripte", "Hi.", "--url", "{url}"], "Did you mean `scripted`"),
        (["scripted", "Now fail.", "--url", "{url}"], "fail"),
        (["scripted", "--url", "{url}"], "The prompt is empty"),
        (["scripted", "Hi.", "--url", "{closed}"], "Cannot reach a server at {closed}"),
        (["scripted", "Hi.", "--url", "ftp://x"], "is not the URL of a server"),
        (["scripted", "Hi.", "--url", "http://[::1"], "is not the URL of a server"),
        (["scripted", "Hi.", "--url", "{url}", "--context", "5"], "--context is for a model"),
        (["scripted", "Hi.", "--url", "{url}", "--set", "temperature"], "NAME=VALUE"),
        (["scripted", "Hi.", "--url", "{url}", "--temperature", "x"], "takes a number"),
        (["scripted", "Hi.", "--url", "{url}", "--temperature", "99"], "temperature"),
    ],
)
def test_error_is_one_line_and_the_exit_code(
    scripted: Scripted, run: Run, arguments: list[str], message: str
) -> None:
    urls = {"url": scripted[1].url, "closed": "http://127.0.0.1:9"}
    result = run(*(argument.format(**urls) for argument in arguments))
    assert result.code == 1
    assert message.format(**urls) in result.err
    assert result.err.startswith("dragoman: ")
    assert len(result.err.splitlines()) == 1


def test_every_sampling_parameter_is_a_field_of_the_chat_api() -> None:
    assert set(list_parameters()) <= set(ChatRequest.__struct_fields__)


def test_key_of_the_server_is_sent(run: Run) -> None:
    with serve_scripted("Hello!", api_key=("secret",), log_level="warning") as server:
        refused = run("scripted", "Hi.", "--url", server.url)
        accepted = run("scripted", "Hi.", "--url", server.url, "--api-key", "secret")
    assert "--api-key" in refused.err
    assert refused.code == 1
    assert accepted.out == "Hello!\n"


def test_answer_that_reaches_its_limit_says_so(scripted: Scripted, run: Run) -> None:
    result = run("scripted", "Hi.", "--url", scripted[1].url, "--set", "max_tokens=1", "--verbose")
    assert "token limit" in result.err
    assert "1 tokens" in result.err


@pytest.mark.real_model
def test_without_a_server_the_model_is_loaded_here(default_model: Path, tmp_path: Path) -> None:
    arguments = ["--threads", "1", "--context", "1024", "--temperature", "0"]
    with open_terminal(
        "run", str(default_model), *arguments, XDG_STATE_HOME=str(tmp_path), DRAGOMAN_PORT="9"
    ) as terminal:
        terminal.until(">>>")
        terminal.type("Write a very long story about a fox, with many chapters." + ENTER)
        terminal.until(r"chapters\.\s+\w+ \w+ \w+")
        terminal.type(CTRL_C)
        terminal.until(">>>")
        ask(terminal, "/set max_tokens 8", "max_tokens")
        ask(terminal, "Say hello.", r"hello\.\s+\w+")
        ask(terminal, "/stats", r"\d\d+ of them cached")
        terminal.type(CTRL_D)


def test_running_server_is_found_at_its_address(scripted: Scripted) -> None:
    """The default address comes from the same settings as the server's own."""
    port = str(httpx.URL(scripted[1].url).port)
    with open_terminal("run", "scripted", "Hi.", DRAGOMAN_PORT=port) as terminal:
        terminal.until("Hello there!")
