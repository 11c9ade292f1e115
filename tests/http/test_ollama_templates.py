"""Templates in Go's language: of one request, and of models that are created with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.managed_models import serve_managed
from tests.support.ollama_api import ask_both_ways, check_error, send
from tests.support.scripted_chats import PARIS, THINKER, TOOLS
from tests.support.serving import RunningServer, serve_scripted

MARKUP = ("<|im_start|>", "<|im_end|>")
CHATML = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}<|im_start|>user
{{ .Prompt }}<|im_end|>
<|im_start|>assistant
{{ .Response }}<|im_end|>
"""


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    script = [Reply("<think>\nHm.\n</think>\n\nFine.", when="think"), Reply("Fine.")]
    return ScriptedEngine(script, tokens=True, context=4096, markup=MARKUP)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine, chat_template=THINKER) as running:
        yield running


def get_prompt(engine: ScriptedEngine) -> str:
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    assert engine.tokenizer is not None
    return engine.tokenizer.decode(prompt)


@pytest.mark.parametrize(
    ("template", "fields", "prompt"),
    [
        ("Q: {{ .Prompt }}\nA:", {}, "Q: hi\nA:"),
        ("{{ .System }}|{{ .Prompt }}|", {"system": "Be brief."}, "Be brief.|hi|"),
        (CHATML, {}, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ("{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}", {}, "<user>hi"),
        (
            "{{ range $i, $m := .Messages }}{{ $i }}{{ $m.Content }};{{ end }}{{ len .Messages }}",
            {"system": "S"},
            "0S;1hi;2",
        ),
        ("no prompt at all", {}, "no prompt at all"),
    ],
)
def test_template_of_a_request_renders_its_prompt(
    server: RunningServer,
    engine: ScriptedEngine,
    template: str,
    fields: dict[str, Any],
    prompt: str,
) -> None:
    answer = ask_both_ways(server, "generate", prompt="hi", template=template, **fields)
    assert answer["content"] == "Fine."
    assert get_prompt(engine) == prompt
    send(server, "generate", prompt="hi", stream=False)
    assert get_prompt(engine) != prompt  # the next request has the model's template again


def test_client_text_is_no_special_token_in_a_template(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    send(server, "generate", prompt="<|im_end|>", template=CHATML, stream=False)
    prompt, tokenizer = engine.jobs[-1].prompt, engine.tokenizer
    assert isinstance(prompt, list)
    assert tokenizer is not None
    specials = [tokenizer.pieces[number] for number in prompt if number >= 256]
    assert specials == [b"<|im_start|>", b"<|im_end|>", b"<|im_start|>"]
    assert tokenizer.decode(prompt).count("<|im_end|>") == 2


def test_reasoning_is_still_parsed(server: RunningServer) -> None:
    fields: dict[str, Any] = {"prompt": "think", "template": "{{ .Prompt }}"}
    answer = ask_both_ways(server, "generate", **fields)
    assert (answer["thinking"].strip(), answer["content"].strip()) == ("Hm.", "Fine.")


def test_switch_for_reasoning_is_in_the_template(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    template = "{{ .Prompt }}{{ if .IsThinkSet }}{{ if .Think }}/on{{ else }}/off{{ end }}{{ end }}"
    for think, end in ((True, "/on"), (False, "/off")):
        send(server, "generate", template=template, think=think, stream=False)
        assert get_prompt(engine) == f"hi{end}"


def test_context_precedes_a_prompt_with_a_template(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    fields: dict[str, Any] = {"template": "[{{ .Prompt }}]", "stream": False}
    context = send(server, "generate", **fields).json()["context"]
    send(server, "generate", **fields, context=context)
    assert get_prompt(engine).count("[hi]") == 2


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"template": "{{ .Prompt"}, "`{{` has no `}}`"),
        ({"template": "{{ .Wonders }}"}, "`.Wonders`"),
        ({"template": "{{ call .Prompt }}"}, "`call`"),
        ({"template": "{% for m in messages %}{% endfor %}"}, "not in Jinja"),
        ({"template": "{{ messages }}"}, "`messages`"),
        ({"template": "{{ .Prompt }}", "raw": True}, "cannot be combined with `raw`"),
        ({"template": "{{ .Prompt }}", "suffix": "x"}, "`suffix` has no place in `template`"),
        ({"template": "{{ .Suffix }}", "suffix": "x", "system": "s"}, "`system` cannot be"),
        ({"template": "{{ .Suffix }}{{ .Wonders }}", "suffix": "x"}, "`.Wonders`"),
        ({"template": "{{ if .System }}{{ .Suffix }}{{ end }}", "suffix": "x"}, "empty"),
        ({"template": "{{ if .System }}{{ .Prompt }}{{ end }}"}, "empty"),
        ({"template": 5}, "template"),
    ],
)
def test_template_that_cannot_be_used_is_refused(
    server: RunningServer, fields: dict[str, Any], problem: str
) -> None:
    assert problem in check_error(send(server, "generate", **fields), 400)


FILL_IN = (
    "{{ if .Suffix }}<PRE>{{ .Prompt }}<SUF>{{ .Suffix }}<MID>"
    "{{ else }}Q: {{ .Prompt }}\nA:{{ end }}{{ .Response }}"
)


@pytest.mark.parametrize(
    ("template", "fields", "prompt"),
    [
        (FILL_IN, {"suffix": "b"}, "<PRE>hi<SUF>b<MID>"),
        (FILL_IN, {"suffix": "b", "prompt": ""}, "<PRE><SUF>b<MID>"),
        (FILL_IN, {"suffix": "{{ .Prompt }}{% x %}"}, "<PRE>hi<SUF>{{ .Prompt }}{% x %}<MID>"),
        (FILL_IN, {}, "Q: hi\nA:"),
        (
            "{{ if .Messages }}{{ range .Messages }}{{ .Content }}{{ end }}"
            "{{ else }}{{ .Prompt }}^{{ .Suffix }}{{ .System }}{{ end }}",
            {"suffix": "b"},
            "hi^b",
        ),
        ("{{ .Suffix }}{{ range .Messages }}[{{ .Content }}]{{ end }}", {}, "[hi]"),
    ],
)
def test_template_of_a_request_has_a_place_for_the_suffix(
    server: RunningServer,
    engine: ScriptedEngine,
    template: str,
    fields: dict[str, Any],
    prompt: str,
) -> None:
    answer = ask_both_ways(server, "generate", **{"prompt": "hi", "template": template} | fields)
    assert answer["content"] == "Fine."
    assert get_prompt(engine) == prompt


def test_suffix_is_no_special_token_in_a_template(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    template = "<|im_start|>{{ .Prompt }}<|im_end|>{{ .Suffix }}"
    fields: dict[str, Any] = {"prompt": "<|im_start|>", "suffix": "<|im_end|>", "stream": False}
    send(server, "generate", template=template, **fields)
    prompt, tokenizer = engine.jobs[-1].prompt, engine.tokenizer
    assert isinstance(prompt, list)
    assert tokenizer is not None
    assert tokenizer.decode(prompt) == "<|im_start|><|im_start|><|im_end|><|im_end|>"
    specials = [tokenizer.pieces[number] for number in prompt if number >= 256]
    assert specials == [b"<|im_start|>", b"<|im_end|>"]


def test_model_with_a_place_for_the_suffix_fills_in() -> None:
    """Its own template is used, as in Ollama, also where the model has no tokens for this."""
    engine = ScriptedEngine([Reply("Fine.")], tokens=True, context=4096, markup=MARKUP)
    with serve_scripted(engine, chat_template=FILL_IN) as server:
        answer = ask_both_ways(server, "generate", prompt="a", suffix="b")
        assert answer["content"] == "Fine."
        assert get_prompt(engine) == "<PRE>a<SUF>b<MID>"
        send(server, "generate", prompt="a", stream=False)
        assert get_prompt(engine) == "Q: a\nA:"
        body = {"prompt": "a", "suffix": "b", "max_tokens": 5}
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
        assert get_prompt(engine) == "<PRE>a<SUF>b<MID>"


def test_costly_template_is_stopped(server: RunningServer) -> None:
    loops = "{{ range 99999 }}" * 4 + "x" + "{{ end }}" * 4
    check_error(send(server, "generate", template=loops), 400)


def test_model_is_created_with_a_template_of_go(tmp_path: Path) -> None:
    """It is shown as it was sent, and renders whole conversations."""
    with (
        serve_managed(tmp_path / "models") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        recipe = {"model": "poet", "from": "writer", "template": CHATML, "stream": False}
        assert client.post("/api/create", json=recipe).json() == {"status": "success"}
        assert client.post("/api/show", json={"model": "poet"}).json()["template"] == CHATML
        messages = [
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "Two"},
            {"role": "user", "content": "Three"},
        ]
        debug = {"x-dragoman-debug": "prompt"}
        body = {"model": "poet", "messages": messages}
        answer = client.post("/v1/chat/completions", json=body, headers=debug).text
        for text in ("One<|im_end|>", "Two<|im_end|>", "Three<|im_end|>"):
            assert answer.count(text) == 1
        nested = {"model": "loud", "from": "poet", "system": "Shout.", "stream": False}
        assert client.post("/api/create", json=nested).json() == {"status": "success"}
        assert client.post("/api/show", json={"model": "loud"}).json()["template"] == CHATML


def test_tools_are_written_by_a_template_of_go() -> None:
    template = """{{- if .Tools }}<tools>{{ range .Tools }}
{"type": "function", "function": {{ .Function }}}{{ end }}
</tools>{{ end }}
{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}{{ range .ToolCalls }}<tool_call>
{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
</tool_call>{{ end }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
    engine = ScriptedEngine(PARIS, tokens=True, context=4096, markup=MARKUP)
    with serve_scripted(engine, chat_template=template) as server:
        messages = [{"role": "user", "content": "Weather?"}]
        answer = ask_both_ways(server, "chat", messages=messages, tools=TOOLS)
    assert [call["function"]["name"] for call in answer["tool_calls"]] == ["weather"]
    prompt = get_prompt(engine)
    assert '"function": {"name":"weather"' in prompt
    assert "generic" not in prompt
