"""What an operator sets for requests, seen in the jobs of the engine and in response headers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import config, runtime
from dragoman.runtime import StartupError
from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import RunningServer, make_scripted_app, serve_scripted

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if colour is defined %}({{ colour }}){% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINKER = TEMPLATE + "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
APIS = ("chat/completions", "responses", "messages")
TEXT = "one two three four"


def make_body(api: str, *, system: str | None = None, text: str = "hi") -> dict[str, Any]:
    """Make a request with this system prompt in a wire API."""
    user = {"role": "user", "content": text}
    if api == "responses":
        body: dict[str, Any] = {"input": text, "instructions": system}
    elif api == "messages":
        body = {"messages": [user], "max_tokens": 9, "system": system}
    elif api == "completions":
        body = {"prompt": text}
    else:
        messages = [] if system is None else [{"role": "system", "content": system}]
        body = {"messages": [*messages, user]}
    return {"model": "scripted"} | {k: v for k, v in body.items() if v is not None}


class Served:
    """A server with an operator's options."""

    def __init__(self, engine: ScriptedEngine, server: RunningServer) -> None:
        self.engine = engine
        self.url = server.url

    def post(self, api: str, body: dict[str, Any]) -> httpx.Response:
        response = httpx.post(f"{self.url}/v1/{api}", json=body)
        assert response.status_code == 200, response.text
        return response

    def ask(self, **fields: Any) -> tuple[Any, list[str]]:
        """Send a chat request; return the sampling of its job, and the warnings."""
        response = self.post("chat/completions", make_body("chat/completions") | fields)
        return self.engine.jobs[-1].sampling, response.headers.get_list("x-dragoman-warning")

    def answer(self, **fields: Any) -> str:
        body = make_body("chat/completions") | fields
        choice = self.post("chat/completions", body).json()["choices"][0]
        return str(choice["message"]["content"])


class Servers:
    """Servers by their options; tests with the same options share one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._served: dict[str, Served] = {}

    def get(self, template: str = TEMPLATE, tokens: bool = False, **options: Any) -> Served:
        key = repr((template, tokens, options))
        if key not in self._served:
            engine = ScriptedEngine([Reply(TEXT)], tokens=tokens)
            serving = serve_scripted(engine, chat_template=template, **options)
            self._served[key] = Served(engine, self._stack.enter_context(serving))
        return self._served[key]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


# The system prompt


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("option", "sent", "prompt"),
    [
        ("Be kind.", None, "[system]Be kind.[user]hi[assistant]"),
        ("Be kind.", "Be brief.", "[system]Be brief.[user]hi[assistant]"),
        (
            {"override": "Be kind.", "force": True},
            "Be brief.",
            "[system]Be kind.[system]Be brief.[user]hi[assistant]",
        ),
        ({"override": "Be kind.", "force": True}, None, "[system]Be kind.[user]hi[assistant]"),
        ({"override": None, "force": False}, None, "[user]hi[assistant]"),
    ],
)
def test_system_prompt(
    servers: Servers, api: str, option: Any, sent: str | None, prompt: str
) -> None:
    served = servers.get(system=option)
    response = served.post(api, make_body(api, system=sent))
    assert served.engine.jobs[-1].prompt == prompt
    assert "x-dragoman-warning" not in response.headers


def test_system_prompt_does_not_touch_raw_completions(servers: Servers) -> None:
    served = servers.get(system="Be kind.")
    served.post("completions", make_body("completions"))
    assert served.engine.jobs[-1].prompt == "hi"


@pytest.mark.parametrize("force", [(), ("system",)])
def test_system_prompt_is_counted_and_replayed(force: tuple[str, ...]) -> None:
    """Later turns of a conversation continue the prompt that the model has seen."""
    template = (
        "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}<e>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant:{% endif %}"
    )
    options = {"system": "Be kind.", "force": force, "chat_template": template}
    engine = ScriptedEngine(TEXT, tokens=True, markup=("<s>", "<e>"))
    with serve_scripted(engine, **options) as server:
        served = Served(engine, server)
        messages = [{"role": "user", "content": "hi"}]
        body: dict[str, Any] = {"model": "scripted", "messages": messages}
        answer = served.post("chat/completions", body).json()["choices"][0]["message"]
        first = served.engine.jobs[-1].prompt
        body["messages"] += [answer, {"role": "user", "content": "and?"}]
        response = served.post("chat/completions", body)
        second = served.engine.jobs[-1].prompt
        assert second[: len(first)] == first
        assert "recalled=1" in response.headers["x-dragoman-prompt"]
        counted = served.post("messages/count_tokens", body | {"max_tokens": 1}).json()
        assert counted["input_tokens"] == len(second)


# Stop strings


@pytest.mark.parametrize("api", ["chat/completions", "completions"])
@pytest.mark.parametrize(
    ("option", "sent", "text", "warned"),
    [
        ("two", None, "one ", False),
        (["two"], ["three"], "one two ", False),
        ({"override": ["three"], "additive": True}, ["two"], "one ", False),
        ({"override": ["two"], "additive": True}, ["three"], "one ", False),
        ({"override": ["three"], "force": True}, ["two"], "one two ", True),
        ({"override": ["three"], "force": True}, ["three"], "one two ", False),
        ({"override": ["three"], "force": True, "additive": True}, ["two"], "one two ", True),
        ({"override": [], "force": True}, ["two"], TEXT, True),
        ({"override": [], "force": False}, ["two"], "one ", False),
    ],
)
def test_stop_strings_of_the_operator_are_a_default_added_or_forced(
    servers: Servers, api: str, option: Any, sent: list[str] | None, text: str, warned: bool
) -> None:
    served = servers.get(stop=option)
    response = served.post(api, make_body(api) | {"stop": sent})
    choice = response.json()["choices"][0]
    assert (choice["text"] if api == "completions" else choice["message"]["content"]) == text
    warnings = response.headers.get_list("x-dragoman-warning")
    expected = ["`stop` has no effect: the operator of this server has set it."]
    assert warnings == expected * warned


@pytest.mark.parametrize(
    ("source", "options", "sent", "text"),
    [
        ("{% set stop_strings = ['two'] %}", {}, None, "one "),
        ("{%- set stop_strings = 'two' -%}", {}, None, "one "),
        ("{% set stop_strings = [eos_token, 'thr' ~ 'ee'] %}", {}, None, "one two "),
        ("{% if true %}{% set stop_strings = ['two'] %}{% endif %}", {}, None, "one "),
        ("{% set stop_strings = ['three'] %}", {}, ["two"], "one "),
        ("{% set stop_strings = ['two'] %}", {}, ["three"], "one "),
        ("{% set stop_strings = ['two'] %}", {"stop": ["three"]}, None, "one "),
        (
            "{% set stop_strings = ['two'] %}",
            {"stop": {"override": ["three"], "force": True}},
            None,
            "one two ",
        ),
        ("{% set stop_strings = 7 %}", {}, None, TEXT),
        ("{% for stop_strings in ['two'] %}{% endfor %}", {}, None, TEXT),
    ],
)
def test_stop_strings_of_a_template(
    servers: Servers, source: str, options: dict[str, Any], sent: Any, text: str
) -> None:
    served = servers.get(source + TEMPLATE, **options)
    assert served.answer(stop=sent) == text
    raw = served.post("completions", make_body("completions")).json()["choices"][0]["text"]
    assert raw == ("one two " if options else TEXT)  # not for prompts that are not chats


def test_special_tokens_among_stop_strings_end_the_answer() -> None:
    engine = ScriptedEngine("one <end>", tokens=True, markup=("<end>",))
    template = "{% set stop_strings = ['<end>', 'x'] %}" + TEMPLATE
    with serve_scripted(engine, chat_template=template) as server:
        Served(engine, server).ask()
    assert engine.tokenizer is not None
    assert engine.jobs[-1].sampling.stop_token_ids == (engine.tokenizer.specials["<end>"],)


# Template variables


@pytest.mark.parametrize(
    ("option", "force", "sent", "colour", "warned"),
    [
        ({"colour": "red"}, (), None, "red", False),
        ({"colour": "red"}, (), {"colour": "blue"}, "blue", False),
        ({"colour": "red"}, ("colour",), {"colour": "blue"}, "red", True),
        ({"colour": {"override": 0, "force": True}}, (), {"colour": "blue"}, "0", True),
        ({"colour": {"override": "red", "force": True}}, (), {"colour": "red"}, "red", False),
    ],
)
def test_template_variables(
    servers: Servers, option: Any, force: tuple[str, ...], sent: Any, colour: str, warned: bool
) -> None:
    served = servers.get(template_vars=option, force=force)
    _, warnings = served.ask(chat_template_kwargs=sent)
    assert served.engine.jobs[-1].prompt == f"[user]hi({colour})[assistant]"
    name = "chat_template_kwargs.colour"
    assert warnings == [f"`{name}` has no effect: the operator of this server has set it."] * warned


ON, OFF = "[user]hi[assistant]<think>", "[user]hi[assistant]<think></think>"


@pytest.mark.parametrize("variable", ["enable_thinking", "thinking"])
@pytest.mark.parametrize(
    ("option", "sent", "prompt", "warned"),
    [
        (True, {}, ON, None),
        (True, {"reasoning_effort": "none"}, OFF, None),
        (False, {"reasoning_effort": "low"}, ON, None),
        (False, {"enable_thinking": True}, ON, None),
        ({"override": False, "force": True}, {}, OFF, None),
        (
            {"override": False, "force": True},
            {"reasoning_effort": "low"},
            OFF,
            "reasoning_effort",
        ),
        ({"override": False, "force": True}, {"enable_thinking": True}, OFF, "enable_thinking"),
        ({"override": False, "force": True}, {"enable_thinking": False}, OFF, None),
        ({"override": True, "force": True}, {"reasoning_effort": "none"}, ON, "reasoning_effort"),
    ],
)
def test_reasoning_switch(
    servers: Servers,
    variable: str,
    option: Any,
    sent: dict[str, Any],
    prompt: str,
    warned: str | None,
) -> None:
    """`enable_thinking` works whatever name the template has for it."""
    template = THINKER.replace("enable_thinking", variable)
    served = servers.get(template, template_vars={"enable_thinking": option})
    _, warnings = served.ask(**sent)
    assert served.engine.jobs[-1].prompt == prompt
    assert [warning.split("`")[1] for warning in warnings] == ([warned] if warned else [])


def test_variable_that_the_template_does_not_read_is_logged(
    servers: Servers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = servers.get(template_vars={"enable_thinking": False})
    assert served.ask()[1] == []
    assert "does not read `enable_thinking`" in caplog.text


# Sampling


@pytest.mark.parametrize(
    ("option", "sent", "field", "value", "warned"),
    [
        ({"temperature": 0.2}, {}, "temperature", 0.2, None),
        ({"temperature": 0.2}, {"temperature": 0.9}, "temperature", 0.9, None),
        ({"temperature": 0.2}, {"temperature": 0}, "temperature", 0, None),
        ({"temp": 0.2}, {}, "temperature", 0.2, None),
        ({"top_k": {"override": 0, "force": True}}, {"top_k": 5}, "top_k", 0, "top_k"),
        ({"top_k": {"override": -1, "force": True}}, {"top_k": 5}, "top_k", 0, "top_k"),
        ({"top_k": {"override": 0, "force": True}}, {"top_k": 0}, "top_k", 0, None),
        ({"temp": {"override": 0, "force": True}}, {"temperature": 2}, "temperature", 0, ""),
        (
            {"ignore_eos": {"override": False, "force": True}},
            {"ignore_eos": True},
            "ignore_eos",
            False,
            "ignore_eos",
        ),
        (
            {"stop_token_ids": {"override": [], "force": True}},
            {"stop_token_ids": [3]},
            "stop_token_ids",
            (),
            "stop_token_ids",
        ),
        (
            {"stop_token_ids": {"override": [1], "additive": True}},
            {"stop_token_ids": [2, 1]},
            "stop_token_ids",
            (1, 2),
            None,
        ),
        ({"stop_token_ids": [1]}, {"stop_token_ids": [2]}, "stop_token_ids", (2,), None),
        (
            {"logit_bias": {"override": {5: -3}, "additive": True}},
            {"logit_bias": {"6": 2}},
            "logit_bias",
            {5: -3.0, 6: 2.0},
            None,
        ),
        ({"logit_bias": {5: -3}}, {"logit_bias": {"6": 2}}, "logit_bias", {6: 2.0}, None),
        ({"rep_pen": 1.2}, {"repeat_penalty": 1.5}, "repetition_penalty", 1.5, None),
        (
            {"repetition_penalty": {"override": 1.2, "force": True}},
            {"rep_pen": 1.5},
            "repetition_penalty",
            1.2,
            "rep_pen",
        ),
        (
            {"logit_bias": {"override": {"a": 2}, "force": True}},
            {"logit_bias": {"b": 5}},
            "logit_bias",
            {97: 2.0},
            "logit_bias",
        ),
        (
            {"logit_bias": {"override": {"a": 2}, "force": True}},
            {"banned_tokens": [5]},
            "logit_bias",
            {97: 2.0},
            "banned_tokens",
        ),
        (
            {"logit_bias": {"override": {"a": 2}, "force": True}},
            {"logit_bias": {"a": 2}},
            "logit_bias",
            {97: 2.0},
            None,
        ),
        ({"logit_bias": {"override": {"a": 2}, "force": True}}, {}, "logit_bias", {97: 2.0}, None),
        ({"max_tokens": 3}, {}, "max_tokens", 3, None),
        ({"max_tokens": 3}, {"max_tokens": 4}, "max_tokens", 4, None),
        ({"temperature": {"override": None, "force": True}}, {"seed": 1}, "seed", 1, None),
    ],
)
def test_sampling_of_the_operator_is_a_default_or_forced(
    servers: Servers, option: Any, sent: dict[str, Any], field: str, value: Any, warned: str | None
) -> None:
    served = servers.get(tokens=True, sampling=option)
    sampling, warnings = served.ask(**sent)
    assert getattr(sampling, field) == value
    name = field if warned == "" else warned
    expected = f"`{name}` has no effect: the operator of this server has set it."
    assert warnings == ([] if warned is None else [expected])


@pytest.mark.parametrize("api", ["completions", *APIS])
def test_sampling_applies_in_every_wire_api(servers: Servers, api: str) -> None:
    served = servers.get(sampling={"top_p": 0.3, "top_k": {"override": 7, "force": True}})
    response = served.post(api, make_body(api) | {"top_k": 5})
    sampling = served.engine.jobs[-1].sampling
    assert (sampling.top_p, sampling.top_k) == (0.3, 7)
    assert "`top_k`" in response.headers["x-dragoman-warning"]


@pytest.mark.parametrize(
    ("api", "sent"),
    [
        ("chat/completions", {"max_tokens": 5, "stop": ["b"]}),
        ("chat/completions", {"max_completion_tokens": 5}),
        ("responses", {"max_output_tokens": 5, "stop": ["b"]}),
        ("messages", {"max_tokens": 5, "stop_sequences": ["b"]}),
    ],
)
def test_warnings_name_fields_as_the_client_does(
    servers: Servers, api: str, sent: dict[str, Any]
) -> None:
    served = servers.get(stop=["a"], sampling={"max_tokens": 7}, force=("stop", "max_tokens"))
    response = served.post(api, make_body(api) | sent)
    warnings = response.headers.get_list("x-dragoman-warning")
    assert {warning.split("`")[1] for warning in warnings} == set(sent)
    assert served.engine.jobs[-1].sampling.max_tokens == 7


def test_default_length_of_completions_yields_to_the_operator(servers: Servers) -> None:
    served = servers.get()
    served.post("completions", make_body("completions"))
    assert served.engine.jobs[-1].sampling.max_tokens == 16
    served = servers.get(sampling={"max_tokens": 99})
    served.post("completions", make_body("completions"))
    assert served.engine.jobs[-1].sampling.max_tokens == 99


def test_model_list_shows_the_defaults(servers: Servers) -> None:
    served = servers.get(sampling={"temperature": 0.2, "top_k": {"override": 3, "force": True}})
    [card] = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert card["default_sampling"] == {"temperature": 0.2, "top_k": 3}
    assert "sampling_source" not in card  # an engine that a program brings has its own


# Preset files, flags and mistakes

TABBY = """
max_tokens: {override: 150, force: false}
stop: {override: [two], force: false, additive: true}
token_healing: {override: false, force: false}
temperature: {override: 0.5, force: true}
temperature_last: {override: true, force: false}
min_temp: {override: 1.0, force: false}
max_temp: {override: 1.0, force: false}
smoothing_factor: {override: 0.0, force: false}
top_k: {override: 0, force: true}
top_a: {override: 0.0, force: false}
tfs: {override: 1.0, force: false}
typical: {override: 1.0, force: false}
repetition_decay: {override: 0, force: false}
penalty_range: {override: -1, force: false}
mirostat_mode: {override: 0, force: false}
mirostat_tau: {override: 1.5, force: false}
add_bos_token: {override: true, force: false}
ban_eos_token: {override: false, force: false}
logit_bias: {override: , force: false}
cfg_scale: {override: 1.0, force: false}
negative_prompt: {override: , force: false}
"""


def test_preset_file_of_tabbyapi(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "preset.yml"
    file.write_text(TABBY)
    served = servers.get(sampling_preset=str(file))
    sampling, warnings = served.ask(temperature=1, top_k=40, max_tokens=20)
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.5, 0, 20)
    assert (sampling.repeat_last_n, sampling.ignore_eos) == (-1, False)
    assert {warning.split("`")[1] for warning in warnings} == {"temperature", "top_k"}
    assert served.ask()[0].max_tokens == 150
    assert served.answer(stop=["three"]) == "one "
    served = servers.get(sampling_preset=str(file), sampling={"temperature": 0.1}, stop="three")
    assert served.ask(temperature=1)[0].temperature == 1  # options win over the file
    assert served.answer() == "one two "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": {"temprature": 1}}, "`temprature`. Did you mean `temperature`?"),
        ({"sampling": {"temperature": "hot"}}, "`temperature` must be a number"),
        ({"sampling": {"temperature": -1}}, "`temperature` must be at least 0"),
        ({"sampling": {"temperature": 1, "temp": 2}}, "mean the same"),
        ({"sampling": {"model": "x"}}, "no sampling field `model`"),
        ({"sampling": {"top_a": 0.5}}, "`top_a` is not supported"),
        ({"sampling": {"add_bos_token": False}}, "`add_bos_token` is not supported"),
        ({"sampling": {"top_k": {"override": 1, "forced": True}}}, "`top_k` takes a value"),
        ({"sampling": {"mirostat": 2}}, "engine does not support the sampling field `mirostat`"),
        ({"sampling": {"banned_strings": ["x"]}}, "sampling field `banned_strings`"),
        ({"stop": {"override": 3}}, "`stop` must be text"),
        ({"system": {"override": 3}}, "`system` must be text"),
        ({"force": ("temperature",)}, "`force` names `temperature`, which has no value"),
        ({"sampling_preset": "missing.yml"}, "missing.yml: No such file"),
    ],
)
def test_mistakes_are_errors_at_startup(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError) as caught:
        make_scripted_app(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", ["- a", "{", "3: x", "temprature: 1"])
def test_invalid_preset_file_is_an_error_at_startup(content: str, tmp_path: Path) -> None:
    file = tmp_path / "preset.yml"
    file.write_text(content)
    with pytest.raises(StartupError, match=r"preset|temperature"):
        make_scripted_app(sampling_preset=str(file))


def test_flags_and_environment_set_the_same_options(tmp_path: Path) -> None:
    flags = {
        "sampling": ["temperature=0.3", "top_k={override: 0, force: true}"],
        "template_vars": ['{"enable_thinking": false}', "colour=red"],
        "stop": ["a,b", "c"],
        "system": "Be kind.",
        "force": ["system"],
    }
    settings = config.load(flags, {})
    assert settings.sampling == {"temperature": 0.3, "top_k": {"override": 0, "force": True}}
    assert settings.template_vars == {"enable_thinking": False, "colour": "red"}
    assert (settings.stop, settings.system, settings.force) == (
        ["a,b", "c"],
        "Be kind.",
        ("system",),
    )
    environment = {
        "DRAGOMAN_SAMPLING": "temperature=0.3,top_k=0",
        "DRAGOMAN_TEMPLATE_VARS": '{"enable_thinking": false, "colour": "red"}',
        "DRAGOMAN_STOP": "a",
    }
    settings = config.load({}, environment)
    assert settings.sampling == {"temperature": 0.3, "top_k": 0}
    assert settings.template_vars == {"enable_thinking": False, "colour": "red"}
    assert settings.stop == "a"
    options = runtime.make_model_options(config.load({"sampling": ["top_k=3"]}, {}))
    assert options.sampling == {"top_k": 3}
