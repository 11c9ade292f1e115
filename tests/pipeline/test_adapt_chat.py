"""Reasoning fields and template variables that a model does not have: no effect, and a warning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.serving import RunningServer, serve_scripted

PLAIN = "{{ messages[0].content }}"
EFFORT = PLAIN + "{% if reasoning_effort %} {{ reasoning_effort }}{% endif %}"
SWITCH = (  # a switch by which templates of several models turn reasoning on
    PLAIN + "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)
OTHER_SWITCH = SWITCH.replace("enable_thinking", "thinking")
OFF, ON = "hi<think>\n\n</think>\n\n", "hi<think>\n"
READS_NONE = "This model's chat template does not read `{}`. It reads: none."


def make_case(*fields: Any) -> Any:
    return pytest.param(*fields, id=str(fields[1]))


# A template, fields of a chat request, the prompt, and the field and reason of the warning.
CASES = [
    make_case(PLAIN, {"reasoning_effort": "low"}, "hi", "reasoning_effort", "no reasoning effort"),
    make_case(None, {"reasoning_effort": "low"}, "hi", "reasoning_effort", "no reasoning effort"),
    make_case(PLAIN, {"reasoning_effort": "none"}, "hi", None, ""),  # it does not reason anyway
    make_case(PLAIN, {"reasoning": {"effort": "low"}}, "hi", "reasoning.effort", "no reasoning"),
    make_case(EFFORT, {"reasoning_effort": "low"}, "hi low", None, ""),
    make_case(SWITCH, {"reasoning_effort": "low"}, ON, None, ""),
    make_case(SWITCH, {"reasoning_effort": "none"}, OFF, None, ""),
    make_case(SWITCH, {"reasoning_effort": "huge"}, OFF, "reasoning_effort", "must be one of"),
    make_case(
        PLAIN,
        {"enable_thinking": False},
        "hi",
        "enable_thinking",
        READS_NONE.format("enable_thinking"),
    ),
    make_case(
        PLAIN,
        {"chat_template_kwargs": {"enable_thinking": True}},
        "hi",
        "chat_template_kwargs.enable_thinking",
        READS_NONE.format("enable_thinking"),
    ),
    make_case(
        None,
        {"chat_template_kwargs": {"colour": "red"}},
        "hi",
        "chat_template_kwargs.colour",
        "This model has no chat template.",
    ),
    make_case(
        SWITCH,
        {"chat_template_kwargs": {"colour": "red"}},
        OFF,
        "chat_template_kwargs.colour",
        "It reads: enable_thinking.",
    ),
    make_case(SWITCH, {"enable_thinking": True}, ON, None, ""),
    make_case(SWITCH, {"enable_thinking": False}, OFF, None, ""),
    make_case(SWITCH, {"chat_template_kwargs": {"enable_thinking": True}}, ON, None, ""),
    make_case(OTHER_SWITCH, {"enable_thinking": True}, ON, None, ""),
    make_case(OTHER_SWITCH, {"chat_template_kwargs": {"enable_thinking": True}}, ON, None, ""),
    make_case(OTHER_SWITCH, {"chat_template_kwargs": {"enable_thinking": False}}, OFF, None, ""),
    make_case(
        OTHER_SWITCH,
        {"chat_template_kwargs": {"enable_thinking": "yes"}},
        OFF,
        "chat_template_kwargs.enable_thinking",
        "It reads: thinking.",
    ),
    make_case(
        SWITCH,
        {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
        ON,
        None,
        "",
    ),
]


Servers: TypeAlias = dict[str | None, tuple[ScriptedEngine, RunningServer]]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Serve each template."""
    with ExitStack() as stack:
        running: Servers = {}
        for template in (None, PLAIN, EFFORT, SWITCH, OTHER_SWITCH):
            engine = ScriptedEngine("Yes.")
            server = stack.enter_context(serve_scripted(engine, chat_template=template))
            running[template] = engine, server
        yield running


def to_responses_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return chat fields as a Responses request has them."""
    fields = dict(fields)
    if "reasoning_effort" in fields:
        fields["reasoning"] = {"effort": fields.pop("reasoning_effort")}
    return fields


@pytest.mark.parametrize("api", ["chat/completions", "responses"])
@pytest.mark.parametrize(("template", "fields", "prompt", "field", "reason"), CASES)
def test_what_the_model_does_not_have_is_dropped_with_a_warning(
    template: str | None,
    fields: dict[str, Any],
    prompt: str,
    field: str | None,
    reason: str,
    api: str,
    servers: Servers,
) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    if api == "responses":
        body = {"model": "scripted", "input": "hi"}
        fields = to_responses_fields(fields)
        field = "reasoning.effort" if field == "reasoning_effort" else field
    engine, server = servers[template]
    response = httpx.post(f"{server.url}/v1/{api}", json=body | fields)
    assert response.status_code == 200, response.text
    warnings = response.headers.get_list("x-dragoman-warning")
    assert engine.jobs[-1].prompt == prompt
    if field is None:
        assert warnings == []
    else:
        [warning] = warnings
        assert warning.startswith(f"`{field}` has no effect: ")
        assert reason in warning


def test_chat_also_has_a_switch_of_its_own() -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    with serve_scripted("Yes.", chat_template=PLAIN) as server:
        url = f"{server.url}/v1/chat/completions"
        response = httpx.post(url, json=body | {"reasoning": {"enabled": True}})
    assert response.headers["x-dragoman-warning"].startswith("`reasoning.enabled` has no effect: ")


@pytest.mark.parametrize("path", ["/tokenize", "/v1/responses/input_tokens"])
def test_counting_tokens_drops_the_same_fields(path: str) -> None:
    body: dict[str, Any] = {"model": "scripted", "chat_template_kwargs": {"colour": "red"}}
    if path == "/tokenize":
        body["messages"] = [{"role": "user", "content": "hi"}]
    else:
        body["input"] = "hi"
    with serve_scripted(ScriptedEngine("x", tokens=True), chat_template=PLAIN) as server:
        response = httpx.post(server.url + path, json=body)
    assert response.status_code == 200, response.text
    assert (response.json().get("count") or response.json()["input_tokens"]) == 2


@pytest.mark.parametrize(
    ("fields", "template", "param"),
    [
        ({"response_prefix": "Sure"}, None, "response_prefix"),
        (
            {"response_prefix": "x", "continue_final_message": True},
            PLAIN,
            "response_prefix",
        ),
        ({"response_prefix": "x"}, "{{ messages[0].content }}", "response_prefix"),
        ({"continue_final_message": True}, PLAIN, "continue_final_message"),
    ],
)
def test_errors_name_the_field_that_was_sent(
    fields: dict[str, Any], template: str | None, param: str
) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **fields}
    with serve_scripted("x", chat_template=template) as server:
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert f"`{param}`" in error["message"] or "last message" in error["message"]


@pytest.mark.parametrize(
    ("adds_prompt", "prompt", "warned"),
    [(None, "hi:Sure", False), (True, "hi:Sure", False), (False, "hi", True)],
)
def test_response_prefix_needs_a_generation_prompt(
    adds_prompt: bool | None, prompt: str, warned: bool
) -> None:
    template = (
        "{% for m in messages %}{{ ':' if m.role == 'assistant' }}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}:{% endif %}"
    )
    engine = ScriptedEngine(", I can.")
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hi"}],
        "response_prefix": "Sure",
        "add_generation_prompt": adds_prompt,
    }
    with serve_scripted(engine, chat_template=template) as server:
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert engine.jobs[-1].prompt == prompt
    warnings = response.headers.get_list("x-dragoman-warning")
    assert ["`response_prefix` has no effect" in warning for warning in warnings] == [True] * warned
