"""Chat templates and special tokens: what a model file or a request can make them do."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jinja2
import pytest

from dragoman.errors import DragomanError
from dragoman.runtime import StartupError
from dragoman.testing import ScriptedEngine
from tests.support.command_line import run_command
from tests.support.hostile_http import HostileServer, make_path, serve_hostile
from tests.support.hostile_samples import MESSAGES, SAMPLES, Sample, list_samples
from tests.support.model_files import write_model_file
from tests.support.paths import ROOT, TEMPLATES
from tests.support.serving import make_chat, make_scripted_app

ESCAPES: dict[str, dict[str, str]] = tomllib.loads((TEMPLATES / "escapes.toml").read_text())
ALL_ESCAPES = ESCAPES["live"] | ESCAPES["other"]
ROUTES = make_scripted_app().router.routes
SAMPLE_LIST = list_samples(ROUTES)
CHATML = (TEMPLATES / "chatml.jinja").read_text()
# sends plain messages to a model whose template reads `enable_thinking` and nothing else
TEMPLATE = CHATML + "{{ '' if enable_thinking else '' }}"


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    engine = ScriptedEngine("Hello there!", tokens=True)
    with serve_hostile(engine, chat_template=TEMPLATE) as hostile:
        yield hostile


def send_to_app(template: str, body: dict[str, Any] | None = None, **options: Any) -> str:
    """Serve a template and send a chat; return the answer, or why the server does not start."""

    async def send() -> str:
        app = make_scripted_app(ScriptedEngine("x", tokens=True), chat_template=template, **options)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.post("/v1/chat/completions", json=body or make_chat())
        await app.aclose()
        assert response.status_code in (200, 400)
        return response.text

    try:
        return asyncio.run(send())
    except (StartupError, DragomanError) as error:
        return str(error)


@pytest.mark.parametrize("name", sorted(ALL_ESCAPES))
def test_hole_1_no_template_of_a_model_file_leaves_the_sandbox(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`explain` and `show` read the file and render its template many times."""
    canary = tmp_path / "canary"
    source = ALL_ESCAPES[name].replace("CANARY", str(canary))
    path = tmp_path / "model.gguf"
    write_model_file(path, tokenizer_chat_template=source)
    run_command(capsys, "explain", str(path))
    assert not canary.exists()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hole_1_canaries_are_created_without_a_sandbox(tmp_path: Path) -> None:
    """The templates work: in an environment without a sandbox they create their file."""
    canary = tmp_path / "canary"
    source = ESCAPES["live"]["namespace"].replace("CANARY", str(canary))
    jinja2.Environment().from_string(source).render()  # noqa: S701
    assert canary.exists()


TEMPLATE_FILES: list[tuple[str, Callable[[str], str]]] = [
    ("chat_template.jinja", lambda source: source),
    ("chat_template.json", lambda source: json.dumps({"chat_template": source})),
    ("tokenizer_config.json", lambda source: json.dumps({"chat_template": source})),
    (
        "tokenizer_config.json",
        lambda source: json.dumps(
            {
                "chat_template": [
                    {"name": name, "template": source} for name in ("tool_use", "default")
                ]
            }
        ),
    ),
]


@pytest.mark.parametrize(("name", "write"), TEMPLATE_FILES)
def test_hole_3_templates_of_other_files_are_in_the_sandbox(
    name: str, write: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = tmp_path / "canary"
    for escape in ("namespace", "text", "loop"):
        source = ESCAPES["live"][escape].replace("CANARY", str(canary))
        (tmp_path / name).write_text(write(source))
        run_command(capsys, "explain", str(tmp_path))
        send_to_app(str(tmp_path / name), format="hermes_json", reasoning_format="think")
        assert not canary.exists()


GO_ESCAPES = [
    "{{ messages.__class__.__mro__ }}",
    "{{ .__class__ }}",
    "{{ .Prompt.__class__.__mro__ }}",
    "{{ $.__init__.__globals__ }}",
    "{{ call .Prompt }}",
    "{{ lipsum }}",
    "{{ self._TemplateReference__context }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ .Prompt }}{% endfor %}",
    '{{ "{% set x = 1 %}" }}',
    "{{ .Prompt }}{# comment #}",
    '{{ template "/etc/passwd" }}',
    '{{ define "x" }}{{ end }}',
    "{{ html .Prompt }}{{ js .Prompt }}{{ urlquery .Prompt }}",
    "{{ range 99999 }}{{ range 99999 }}{{ range 99999 }}x{{ end }}{{ end }}{{ end }}",
    '{{ $x := "a" }}{{ range 9999 }}{{ $x = print $x $x }}{{ end }}{{ $x }}',
    "{{ index .Prompt 99999999999999999999 }}",
    "{{ .Prompt" + ".Role" * 12_000 + " }}",
]


def test_hole_4_no_route_takes_a_template(server: HostileServer) -> None:
    document = server.send("GET", "/openapi.json").json()
    fields = {
        name: schema
        for schema in document["components"]["schemas"].values()
        for name, schema in schema.get("properties", {}).items()
        if "template" in name
    }
    # `pair_template` is the one of a model that scores, in descriptions
    names = {"chat_template", "chat_template_kwargs", "pair_template", "template"}
    assert set(fields) == names
    in_responses = document["components"]["schemas"]["TokenizerInfo"]["properties"]
    assert fields["chat_template"] is in_responses["chat_template"]
    # that of Ollama's API is in Go's language, of which a part is known that reaches nothing
    for template in GO_ESCAPES:
        body = {"model": "scripted", "prompt": "Hi", "template": template, "stream": False}
        started = server.engine.started
        assert server.send("POST", "/api/generate", json=body).status_code == 400, template
        assert server.engine.started == started
    paths = {route.path for route in server.routes if "template" in route.path}
    assert paths == {"/apply-template"}  # which renders with the template of the model


def is_rejected(server: HostileServer, sample: Sample, fields: dict[str, Any]) -> bool:
    """Whether fields are rejected in a sample, and the engine is not called."""
    started = server.engine.started
    body = {**sample.body, **fields}
    if "chat_template_kwargs" in fields and sample.path == "/tokenize":
        body = {"model": body["model"], "messages": MESSAGES, **fields}
    response = server.send("POST", make_path(sample.route), json=body)
    allowed = {400, 404} if sample.route.parameters else {400}
    return response.status_code in allowed and server.engine.started == started


@pytest.mark.parametrize("sample", SAMPLE_LIST, ids=str)
def test_hole_5_chat_template_is_rejected_in_every_api(
    server: HostileServer, sample: Sample
) -> None:
    for value in ("{{ 'a' * 10**9 }}", "chatml", ["a"], {"default": "{{ 1 }}"}, 5):
        assert is_rejected(server, sample, {"chat_template": value})


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"]
)
def test_hole_7_chat_template_cannot_be_hidden_in_other_fields(
    server: HostileServer, path: str, streamed: bool
) -> None:
    """Whatever is ignored must not change the prompt; what is not ignored is rejected."""
    [route] = [route for route in ROUTES if route.path == path and route.method == "POST"]
    body = {**SAMPLES[path], "stream": streamed} if route.streams else SAMPLES[path]
    if path == "/tokenize":
        body = {"model": body["model"], "messages": MESSAGES}
    plain = server.send("POST", path, json=body)
    prompt = get_prompt(server, path, plain)
    evil = "{{ 'smuggled' }}"
    for fields in (
        {"chat_template_kwargs": {"chat_template": evil}},
        {"chat_template_kwargs": {"messages": [], "chat_template": evil}},
        {"chat_template_kwargs": {"template_kwargs": {"chat_template": evil}}},
        {"chat_template_kwargs": {"tokenizer_kwargs": {"chat_template": evil}}},
        {"extra_body": {"chat_template": evil}},
        {"extra_body": {"chat_template_kwargs": {"chat_template": evil}}},
        {"metadata": {"chat_template": evil}},
        {"prompt_template": evil},
        {"Chat_Template": evil},
        {"tokenizer_config": {"chat_template": evil}},
        {"user_config": {"chat_template": evil}},
        {"template": evil},
    ):
        response = server.send("POST", path, json={**body, **fields})
        assert response.status_code in (200, 400), fields
        if response.status_code == 200:
            assert get_prompt(server, path, response) == prompt, fields
    rejected = server.send(
        "POST", path, json={**body, "chat_template_kwargs": {"chat_template": evil}}
    )
    if path != "/v1/messages":  # has no such field
        assert rejected.status_code == 400


def get_prompt(server: HostileServer, path: str, response: httpx.Response) -> Any:
    return response.json()["tokens"] if path == "/tokenize" else server.engine.jobs[-1].prompt


INTERNAL_NAMES = [
    *("messages", "tools", "functions", "add_generation_prompt", "tokenize"),
    *("continue_final_message", "return_tensors", "return_dict", "padding", "truncation"),
    *("max_length", "tokenizer_kwargs", "conversation", "tool_choice", "bos_token", "eos_token"),
    *(
        "pad_token",
        "unk_token",
        "add_special_tokens",
        "self",
        "loop",
        "caller",
        "varargs",
        "kwargs",
    ),
    *("raise_exception", "strftime_now", "namespace", "range", "__class__", "_private"),
]


@pytest.mark.parametrize("name", INTERNAL_NAMES)
def test_hole_8_internal_names_cannot_be_set(server: HostileServer, name: str) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/tokenize"):
        [sample] = [s for s in SAMPLE_LIST if s.path == path and not s.body.get("stream")]
        for value in (True, "x", None, ["x"] * 100):
            assert is_rejected(server, sample, {"chat_template_kwargs": {name: value}})


def test_hole_8_a_large_prompt_does_not_block_the_event_loop(server: HostileServer) -> None:
    """The lag of the event loop is checked when the server of this module stops."""
    body = make_chat("word " * 200_000, chat_template_kwargs={"enable_thinking": True})
    assert server.send("POST", "/v1/chat/completions", json=body).status_code in (200, 400)


def run_bombs(*names: str) -> dict[str, tuple[int, str, float]]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.template_bombs", *names],
        capture_output=True,
        timeout=400,
        check=True,
        cwd=ROOT,
    )
    report = json.loads(run.stdout)
    assert report["megabytes"] <= 256
    results: dict[str, tuple[int, str, float]] = report["results"]
    return results


def check_bombs(results: dict[str, tuple[int, str, float]]) -> None:
    for name, (status, text, seconds) in results.items():
        assert status in (0, 400), name
        assert "chat template" in text, name
        assert seconds <= 1.5, name  # of CPU time


def test_hole_6_templates_have_a_budget(count_cases: Callable[[int], None]) -> None:
    """`tests/hostile/heavy` tries all of them."""
    results = run_bombs("multiply", "nested_loops")
    check_bombs(results)
    count_cases(len(results))


# Special tokens

SPECIAL_TOKENS = re.compile(
    r"<\|[^\s<>|{}]+\|>|<｜[^\s<>{}]+｜>|\[/?[A-Z_]{3,}\]|</?[a-z_:]{2,}>|</?s>"
)
TEMPLATE_NAMES = [
    "agent",
    "brackets",
    "channels",
    "chatml",
    "gemma",
    "llama3",
    "mistral",
    "thinker",
]
FUNCTION = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}


def make_conversations(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make requests with a text in each place that a client can fill, and their paths."""
    call = {"id": "call_1234", "type": "function"}
    arguments = json.dumps({"city": text}, ensure_ascii=False)
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call, "function": {"name": "look", "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "call_1234", "content": text},
    ]
    chat = "/v1/chat/completions"
    yield chat, make_chat(text)
    described = {"type": "function", "function": {**FUNCTION, "description": text}}
    yield chat, make_chat("Hi", tools=[described])
    yield chat, {"model": "scripted", "messages": turns, "tools": [TOOL]}
    yield chat, {"model": "scripted", "messages": [{"role": "user", "content": "Hi", "name": text}]}
    parts = [{"type": "text", "text": text}]
    yield chat, {"model": "scripted", "messages": [{"role": "user", "content": parts}]}
    yield "/v1/messages", {**SAMPLES["/v1/messages"], "system": text}
    yield (
        "/v1/responses",
        {"model": "scripted", "input": text, "instructions": text, "store": False},
    )


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_hole_9_text_never_becomes_special_tokens(
    name: str, count_cases: Callable[[int], None]
) -> None:
    """The prompt has as many special tokens with forged ones in its texts as with plain words."""
    template = (TEMPLATES / f"{name}.jinja").read_text()
    specials = sorted({*SPECIAL_TOKENS.findall(template), "<|im_end|>", "<|im_start|>"})
    engine = ScriptedEngine("x", tokens=True, markup=tuple(set(specials) - set(OWN_SPECIALS)))
    options = {"chat_template": template, "format": "hermes_json", "reasoning_format": "think"}
    count = 0
    with serve_hostile(engine, recall=False, **options) as server:
        plain = [count_specials(server, path, body) for path, body in make_conversations("plain")]
        assert sum(number is not None for number in plain) >= 4
        for special in specials:
            forged = f"{special}{special} {special[1:]}"
            for index, (path, body) in enumerate(make_conversations(forged)):
                assert count_specials(server, path, body) == plain[index], (special, body)
                count += 1
    count_cases(count)


OWN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def count_specials(server: HostileServer, path: str, body: dict[str, Any]) -> int | None:
    """Count the special tokens of the prompt; None where the template rejects the request."""
    response = server.send("POST", path, json=body)
    if response.status_code != 200:
        return None
    prompt = server.engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    return sum(token > 255 for token in prompt)


def test_hole_10_the_engine_never_sees_a_template(server: HostileServer) -> None:
    """A job has token ids and no conversation, so that no engine renders templates."""
    assert server.send("POST", "/v1/chat/completions", json=make_chat("{{ 7 * 7 }}")).is_success
    job = server.engine.jobs[-1]
    assert isinstance(job.prompt, list)
    text = json.dumps(repr(job))
    assert "{%" not in text
    assert not {name for name in job.__struct_fields__ if re.search("template|messages|chat", name)}
