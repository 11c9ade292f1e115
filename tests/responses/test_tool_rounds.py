"""Remote tools in responses: listed, approved, called, and gone on from, by the real client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from dragoman.testing import Reply, ScriptedEngine
from tests.support.event_order import check_responses
from tests.support.mcp_servers import LocalServer, make_raw_app, answer_initialize, serve_app, serve_tools
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

THINKER = TEMPLATES / "thinker.jinja"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def write_call(name: str, **arguments: Any) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


SCRIPT = [
    Reply("It is five.", when="The sum is 5."),
    Reply(write_call("calc__add", a=2, b=3), when="Add"),
    Reply("It is on fire.", when="Error executing tool fail"),
    Reply(write_call("calc__fail"), when="Fail"),
    Reply(write_call("calc__look", at="home"), when="Look"),
    Reply("Nothing there.", when="nothing at home"),
    Reply("All right, I do not.", when="did not approve"),
    Reply(write_call("calc__add", a=1, b=1) + "\n" + write_call("weather", city="Rome"), when="Both"),
    Reply(write_call("weather", city="Rome") + "\n" + write_call("calc__add", a=1, b=1), when="Crossed"),
    Reply(write_call("calc__add", a=1, b=1) + "\n" + write_call("other__look", at="sea"), when="Two"),
    Reply(write_call("calc__add", a=1, b=1) + "\n" + write_call("calc__look", at="hill"), when="Mixed"),
    Reply("Two and the sea.", when="nothing at sea"),
    Reply("It rains.", when="rain"),
    Reply("It rains.", when="The sum is 2."),  # results stand in the order of their calls
    Reply("Enough.", when="No more remote calls"),
    Reply(write_call("calc__look", at="on"), when="For ever"),
    Reply(write_call("calc__look", at="on"), when="nothing at on"),
    Reply(write_call("calc__slow"), when="Slowly"),
    Reply("Too slow.", when="did not answer"),
    Reply(write_call("calc__odd", n=1), when="Odd"),
    Reply("Hello there!"),
]


@pytest.fixture(scope="module")
def tools() -> Iterator[LocalServer]:
    with serve_tools() as made:
        yield made


@pytest.fixture(scope="module")
def server(tools: LocalServer) -> Iterator[RunningServer]:
    options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp": [f"calc={tools.url}"]}
    options |= {"mcp_rounds": 3, "mcp_timeout": 20.0, "chat_template": THINKER}
    with serve_scripted(ScriptedEngine(SCRIPT, tokens=True, grammars=True), **options) as made:
        yield made


@pytest.fixture
def client(server: RunningServer, tools: LocalServer) -> Iterator[OpenAI]:
    tools.log.calls.clear()
    with make_client(server) as made:
        yield made


def make_client(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=30)


def make_mcp_tool(tools: LocalServer, label: str = "calc", **more: Any) -> Any:
    said = {"type": "mcp", "server_label": label, "server_url": tools.url}
    return said | {"require_approval": "never"} | more


def create(client: OpenAI, text: Any, *tools: Any, **more: Any) -> Response:
    made = client.responses.create(model="scripted", input=text, tools=list(tools), **more)
    assert isinstance(made, Response)
    return made


def stream(server: RunningServer, text: Any, *tools: Any, **more: Any) -> Any:
    """The resource that a stream ends with, its order checked."""
    body = {"model": "scripted", "input": text, "tools": tools, "stream": True, **more}
    got = httpx.post(f"{server.url}/v1/responses", json=body, timeout=30)
    assert got.status_code == 200, got.text
    blocks = [block for block in got.text.split("\n\n") if block and not block.startswith(":")]
    return check_responses([f"{block}\n\n".encode() for block in blocks])


def list_types(response: Response) -> list[str]:
    return [item.type for item in response.output]


def get_last_prompt(server: RunningServer) -> str:
    engine: Any = next(iter(server.app.runtime.services.models.list_loaded())).engine
    pieces = engine.tokenizer.pieces
    return b"".join(pieces[token] for token in engine.jobs[-1].prompt).decode()


def count_jobs(server: RunningServer) -> int:
    engine: Any = next(iter(server.app.runtime.services.models.list_loaded())).engine
    return len(engine.jobs)


def remove_ids(value: Any) -> Any:
    """Without what differs from one response to the next."""
    apart = {"id", "created_at", "completed_at", "background", "approval_request_id", "call_id"}
    if isinstance(value, dict):
        return {name: remove_ids(inner) for name, inner in value.items() if name not in apart}
    return [remove_ids(inner) for inner in value] if isinstance(value, list) else value


# The loop


def test_a_tool_is_listed_called_and_answered_from(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    before = count_jobs(server) if list(server.app.runtime.services.models.list_loaded()) else 0
    made = create(client, "Add two and three.", make_mcp_tool(tools))
    assert list_types(made) == ["mcp_list_tools", "mcp_call", "message"]
    assert made.output_text == "It is five."
    assert made.status == "completed"
    offered, called, _ = made.output
    assert offered.type == "mcp_list_tools"
    assert called.type == "mcp_call"
    assert {tool.name for tool in offered.tools} >= {"add", "look", "fail"}
    assert (called.name, called.server_label) == ("add", "calc")
    assert json.loads(called.arguments) == {"a": 2, "b": 3}
    assert (called.output, called.error, called.status) == ("The sum is 5.", None, "completed")
    assert tools.log.calls == ["add 2 3"]
    assert count_jobs(server) == before + 2
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()


def test_what_all_rounds_cost_is_told(client: OpenAI, tools: LocalServer) -> None:
    alone = create(client, "Hi").usage
    made = create(client, "Add two and three.", make_mcp_tool(tools)).usage
    assert alone is not None
    assert made is not None
    said = len(write_call("calc__add", a=2, b=3)) + len("It is five.")
    assert made.output_tokens == said + 2 * (alone.output_tokens - len("Hello there!"))
    assert made.total_tokens == made.input_tokens + made.output_tokens


@pytest.mark.parametrize("text", ["Add them.", "Fail!", "Look home.", "Both", "Two", "For ever"])
def test_a_stream_tells_the_same(
    server: RunningServer, client: OpenAI, tools: LocalServer, text: str
) -> None:
    said = make_mcp_tool(tools), make_mcp_tool(tools, "other", allowed_tools=["look"]), WEATHER
    told = stream(server, text, *said)
    whole = create(client, text, *said)
    assert remove_ids(told) == remove_ids(json.loads(whole.to_json()))


def test_in_the_background(server: RunningServer, client: OpenAI, tools: LocalServer) -> None:
    made = create(client, "Add them.", make_mcp_tool(tools), background=True)
    for _ in client.responses.retrieve(made.id, stream=True):
        pass
    kept = client.responses.retrieve(made.id)
    assert list_types(kept) == ["mcp_list_tools", "mcp_call", "message"]
    assert kept.output_text == "It is five."
    told = stream(server, "Add them.", make_mcp_tool(tools), background=True)
    assert remove_ids(told) == remove_ids(json.loads(kept.to_json()))


def test_a_tool_that_fails_is_told_to_the_model(client: OpenAI, tools: LocalServer) -> None:
    made = create(client, "Fail!", make_mcp_tool(tools))
    called = made.output[1]
    assert called.type == "mcp_call"
    assert called.status == "failed"
    assert called.output is None
    assert "Error executing tool fail" in str(called.error)
    assert made.output_text == "It is on fire."
    assert made.status == "completed"


def test_several_servers(server: RunningServer, client: OpenAI, tools: LocalServer) -> None:
    with serve_tools() as other:
        said = make_mcp_tool(other, "other", server_url=tools.url)
        made = create(client, "Two", make_mcp_tool(tools), said)
    assert list_types(made) == ["mcp_list_tools"] * 2 + ["mcp_call"] * 2 + ["message"]
    assert sorted(tools.log.calls) == ["add 1 1", "look sea"]
    assert made.output_text == "Two and the sea."


@pytest.mark.parametrize("text", ["Both", "Crossed"])
def test_calls_of_both_sides_in_one_round(
    server: RunningServer, client: OpenAI, tools: LocalServer, text: str
) -> None:
    """The remote call is made; the response ends with the client's, and goes on from there."""
    first = create(client, text, make_mcp_tool(tools), WEATHER)
    assert sorted(list_types(first)) == ["function_call", "mcp_call", "mcp_list_tools"]
    assert tools.log.calls == ["add 1 1"]
    (own,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": own.call_id, "output": "rain"}
    second = create(client, [result], make_mcp_tool(tools), WEATHER, previous_response_id=first.id)
    assert second.output_text == "It rains."
    assert list_types(second) == ["message"]  # the list is known
    assert "The sum is 2." in get_last_prompt(server)
    assert tools.log.calls == ["add 1 1"]


def test_a_list_is_asked_for_once(server: RunningServer, client: OpenAI, tools: LocalServer) -> None:
    first = create(client, "Hi", make_mcp_tool(tools))
    assert list_types(first) == ["mcp_list_tools", "message"]
    before = len(tools.log.requests)
    second = create(client, "Hi again", make_mcp_tool(tools), previous_response_id=first.id)
    assert list_types(second) == ["message"]
    items = [item.to_dict() for item in first.output]
    said: list[Any] = [{"role": "user", "content": "Hi"}, *items]
    third = create(client, [*said, {"role": "user", "content": "Hi again"}], make_mcp_tool(tools))
    assert list_types(third) == ["message"]
    assert len(tools.log.requests) == before
    assert "calc__add" in get_last_prompt(server)
    called = create(client, "Add them.", make_mcp_tool(tools), previous_response_id=second.id)
    assert called.output_text == "It is five."


# What the model may


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (["add"], {"add"}),
        (["add", "nothing"], {"add"}),
        ([], set()),
        ({"tool_names": ["look", "add"]}, {"look", "add"}),
        ({"read_only": True}, {"look"}),
        ({"read_only": True, "tool_names": ["add"]}, set()),
    ],
)
def test_the_model_knows_of_tools_that_are_allowed(
    server: RunningServer, client: OpenAI, tools: LocalServer, allowed: Any, names: set[str]
) -> None:
    create(client, "Hi", make_mcp_tool(tools, allowed_tools=allowed))
    prompt = get_last_prompt(server)
    known = {name for name in ("add", "look", "fail", "slow") if f"calc__{name}" in prompt}
    assert known == names


def test_no_more_calls_than_allowed(client: OpenAI, tools: LocalServer) -> None:
    made = create(client, "For ever", make_mcp_tool(tools), max_tool_calls=2)
    assert list_types(made).count("mcp_call") == 2
    assert made.status == "completed"
    assert len(tools.log.calls) == 2


def test_no_more_rounds_than_the_operator_wants(client: OpenAI, tools: LocalServer) -> None:
    made = create(client, "For ever", make_mcp_tool(tools))
    calls = [item for item in made.output if item.type == "mcp_call"]
    assert [item.status for item in calls] == ["completed"] * 3 + ["failed"]
    assert made.output_text == "Enough."
    assert len(tools.log.calls) == 3


def test_the_limit_of_tokens_is_for_all_rounds(client: OpenAI, tools: LocalServer) -> None:
    said = len(write_call("calc__add", a=2, b=3))
    made = create(client, "Add them.", make_mcp_tool(tools), max_output_tokens=said + 6)
    assert made.status == "incomplete"
    assert list_types(made) == ["mcp_list_tools", "mcp_call", "message"]
    cut = create(client, "Add them.", make_mcp_tool(tools), max_output_tokens=said - 20)
    assert cut.status == "incomplete"
    assert tools.log.calls == ["add 2 3"]  # half a call is not made


@pytest.mark.parametrize("choice", ["required", {"type": "mcp", "server_label": "calc"}, "auto"])
def test_a_choice_is_for_the_first_round(client: OpenAI, tools: LocalServer, choice: Any) -> None:
    made = create(client, "Add them.", make_mcp_tool(tools), tool_choice=choice)
    assert made.output_text == "It is five."


# What the client must approve


def make_approval(made: Response, yes: bool, **more: Any) -> Any:
    (request,) = [item for item in made.output if item.type == "mcp_approval_request"]
    said = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": yes}
    return said | more


@pytest.mark.parametrize("by", ["previous", "conversation", "items"])
def test_a_call_waits_for_approval(
    server: RunningServer, client: OpenAI, tools: LocalServer, by: str
) -> None:
    said = make_mcp_tool(tools, require_approval="always")
    question: Any = {"role": "user", "content": "Add them."}
    more = {"conversation": client.conversations.create().id} if by == "conversation" else {}
    first = create(client, [question], said, **more)
    assert list_types(first) == ["mcp_list_tools", "mcp_approval_request"]
    assert tools.log.calls == []
    request = first.output[1]
    assert request.type == "mcp_approval_request"
    assert (request.name, request.server_label) == ("add", "calc")
    assert json.loads(request.arguments) == {"a": 2, "b": 3}
    told = [make_approval(first, True)]
    if by == "items":
        told = [question, *(item.to_dict() for item in first.output), *told]
    if by == "previous":
        more["previous_response_id"] = first.id
    second = create(client, told, said, **more)
    assert list_types(second) == ["mcp_call", "message"]
    called = second.output[0]
    assert called.type == "mcp_call"
    assert called.approval_request_id == request.id
    assert second.output_text == "It is five."
    assert tools.log.calls == ["add 2 3"]


def test_what_was_approved_is_done_once(client: OpenAI, tools: LocalServer) -> None:
    """A client that sends all of it again does not have it done again."""
    said = make_mcp_tool(tools, require_approval="always")
    question: Any = {"role": "user", "content": "Add them."}
    first = create(client, [question], said, store=False)
    told = [question, *(item.to_dict() for item in first.output), make_approval(first, True)]
    second = create(client, told, said, store=False)
    told += [*(item.to_dict() for item in second.output), {"role": "user", "content": "Thanks"}]
    third = create(client, told, said, store=False)
    assert third.output_text == "Hello there!"
    assert tools.log.calls == ["add 2 3"]


def test_what_is_not_approved_is_not_done(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    said = make_mcp_tool(tools, require_approval="always")
    first = create(client, "Add them.", said)
    denied = make_approval(first, False, reason="It is late.")
    second = create(client, [denied], said, previous_response_id=first.id)
    assert second.output_text == "All right, I do not."
    assert "It is late." in get_last_prompt(server)
    assert tools.log.calls == []


def test_an_approval_in_a_stream(server: RunningServer, client: OpenAI, tools: LocalServer) -> None:
    said = make_mcp_tool(tools, require_approval="always")
    told = stream(server, "Add them.", said)
    assert [item["type"] for item in told["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    yes = {"type": "mcp_approval_response", "approve": True}
    yes |= {"approval_request_id": told["output"][1]["id"]}
    after = stream(server, [yes], said, previous_response_id=told["id"])
    assert [item["type"] for item in after["output"]] == ["mcp_call", "message"]


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (None, True),
        ({"never": {"tool_names": ["add"]}}, False),
        ({"never": {"read_only": True}}, True),
        ({"always": {"tool_names": ["look"]}, "never": {"tool_names": ["add"]}}, False),
        ({"always": {"tool_names": ["add"]}}, True),
    ],
)
def test_which_calls_are_to_be_approved(
    client: OpenAI, tools: LocalServer, wanted: Any, asked: bool
) -> None:
    made = create(client, "Add them.", make_mcp_tool(tools, require_approval=wanted))
    assert ("mcp_approval_request" in list_types(made)) == asked
    assert (tools.log.calls == []) == asked


def test_one_call_is_made_and_another_waits(client: OpenAI, tools: LocalServer) -> None:
    said = make_mcp_tool(tools, require_approval={"never": {"tool_names": ["add"]}})
    made = create(client, "Mixed", said)
    assert list_types(made) == ["mcp_list_tools", "mcp_call", "mcp_approval_request"]
    assert tools.log.calls == ["add 1 1"]


def test_an_approval_of_nothing_is_refused(client: OpenAI, tools: LocalServer) -> None:
    yes = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, [yes], make_mcp_tool(tools))
    assert refused.value.param == "input[0].approval_request_id"
    first = create(client, "Add them.", make_mcp_tool(tools, require_approval="always"))
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, [make_approval(first, True)], previous_response_id=first.id)
    assert refused.value.param == "tools"


# What goes wrong


def test_a_server_that_is_not_there_breaks_nothing(server: RunningServer, client: OpenAI) -> None:
    with serve_tools() as gone:
        host = gone.host
    places = server.app.settings.mcp_hosts
    assert host not in places
    said = {"type": "mcp", "server_label": "gone", "server_url": "https://nothing.invalid/mcp"}
    made = create(client, "Hi", said)
    assert list_types(made) == ["mcp_list_tools", "message"]
    offered = made.output[0]
    assert offered.type == "mcp_list_tools"
    assert offered.tools == []
    assert "not a public host" in str(offered.error)
    assert made.output_text == "Hello there!"
    told = stream(server, "Hi", said)
    assert told["output"][0]["error"]
    again = create(client, "Hi", said, previous_response_id=made.id)
    assert list_types(again) == ["mcp_list_tools", "message"]  # it is asked anew


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]"])
def test_a_request_may_not_name_this_machine(
    server: RunningServer, client: OpenAI, host: str
) -> None:
    with serve_tools() as inside:
        url = inside.url.replace("127.0.0.1", host)
        said = {"type": "mcp", "server_label": "calc", "server_url": url}
        made = create(client, "Hi", said)
        assert inside.log.requests == []
    assert made.output[0].type == "mcp_list_tools"
    assert made.output[0].error


def test_the_operator_s_servers_are_named_by_label(client: OpenAI, tools: LocalServer) -> None:
    said: Any = {"type": "mcp", "server_label": "calc", "require_approval": "never"}
    said["headers"] = {"x-tenant": "anna"}
    before = len(tools.log.requests)
    assert create(client, "Add them.", said).output_text == "It is five."
    assert all(one["x-tenant"] == "anna" for one in tools.log.requests[before:])
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, "Hi", said | {"server_label": "nobody"})
    assert "nobody" in refused.value.message


def test_what_a_server_is_told_is_not_told_again(client: OpenAI, tools: LocalServer) -> None:
    before = len(tools.log.requests)
    made = create(client, "Add them.", make_mcp_tool(tools, authorization="s3cret", headers={"x-key": "k3y"}))
    sent = tools.log.requests[before:]
    assert all(one["authorization"] == "Bearer s3cret" for one in sent)
    assert all(one["x-key"] == "k3y" for one in sent)
    for told in (made, client.responses.retrieve(made.id)):
        assert "s3cret" not in told.to_json()
        assert "k3y" not in told.to_json()


def test_too_many_servers_are_refused(client: OpenAI, tools: LocalServer) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, "Hi", *(make_mcp_tool(tools, f"s{number}") for number in range(40)))
    assert refused.value.param == "tools"


SCHEMAS: list[Any] = [
    ({"type": "object", "properties": {"n": {"$ref": "http://127.0.0.1:1/x.json"}}}, True),
    ({"type": "object", "properties": {"n": {"type": "no such type"}}}, True),
    ({"type": "object", "properties": {"n": {"pattern": "(?<=a)b(?!c)\\1"}}}, False),
    ({"type": "object", "properties": {"n": {"$ref": "#/nowhere"}}}, True),
    ({"type": "object", "not": {}, "if": {"const": 1}, "then": False, "$dynamicRef": "#x"}, True),
    ({"type": "object"}, False),
]


@pytest.mark.parametrize(("schema", "unusable"), SCHEMAS, ids=range(len(SCHEMAS)))
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_schemas_of_strangers_break_nothing(schema: Any, unusable: bool, choice: Any) -> None:
    def answer(message: dict[str, Any]) -> Any:
        tools = [{"name": "odd", "inputSchema": schema}]
        result = {"content": [{"type": "text", "text": "rain"}]}
        known: dict[str, Any] = {"tools/list": {"tools": tools}, "tools/call": result}
        return known.get(message["method"]) or answer_initialize(message)

    with serve_app(make_raw_app(answer)) as odd:
        engine = ScriptedEngine(SCRIPT, tokens=True, grammars=True)
        options: Any = {"chat_template": THINKER, "mcp_hosts": [odd.host]}
        with serve_scripted(engine, **options) as server, make_client(server) as client:
            raw = client.responses.with_raw_response.create(
                model="scripted", input="Odd", tools=[make_mcp_tool(odd)], tool_choice=choice
            )
    assert raw.parse().output_text == "It rains."
    warned = "The schema of the remote tool `calc__odd` is not used."
    assert (warned in raw.headers.get("x-dragoman-warning", "")) == unusable


def test_whoever_leaves_takes_the_call_along(server: RunningServer, tools: LocalServer) -> None:
    seen = tools.log
    seen.slow_started.clear()
    seen.slow_cancelled.clear()
    body = {"model": "scripted", "input": "Slowly", "tools": [make_mcp_tool(tools)], "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=30):
        assert seen.slow_started.wait(20)
    assert seen.slow_cancelled.wait(20)


def test_a_background_response_is_cancelled_in_its_call(client: OpenAI, tools: LocalServer) -> None:
    seen = tools.log
    seen.slow_started.clear()
    seen.slow_cancelled.clear()
    made = create(client, "Slowly", make_mcp_tool(tools), background=True)
    assert seen.slow_started.wait(20)
    began = time.monotonic()
    ended = client.responses.cancel(made.id)
    assert time.monotonic() - began < 5
    assert ended.status == "cancelled"
    assert seen.slow_cancelled.wait(20)


def test_an_output_leaves_room_in_the_context(tools: LocalServer) -> None:
    """However much a tool says, and whatever the operator allows."""
    script = [Reply(write_call("calc__big", size=100_000), when="Say"), Reply("A lot.")]
    engine = ScriptedEngine(script, tokens=True, context=6000)
    options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp_output": 1_000_000}
    options["chat_template"] = THINKER
    with serve_scripted(engine, **options) as server, make_client(server) as client:
        made = create(client, "Say a lot.", make_mcp_tool(tools, allowed_tools=["big"]), truncation="auto")
    called = made.output[1]
    assert called.type == "mcp_call"
    assert (called.output or "").endswith("3,000 of 100,000 characters are shown.]")


def test_a_tool_that_takes_too_long_is_told(tools: LocalServer) -> None:
    options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp_timeout": 0.5}
    options["chat_template"] = THINKER
    engine = ScriptedEngine(SCRIPT, tokens=True)
    with serve_scripted(engine, **options) as server, make_client(server) as client:
        assert create(client, "Slowly", make_mcp_tool(tools)).output_text == "Too slow."


def test_while_a_tool_is_called_the_engine_is_for_others() -> None:
    script = [Reply("One, two", when="Hang", hang_at=1), *SCRIPT]
    engine = ScriptedEngine(script, tokens=True, slots=1)
    with serve_tools() as tools:
        options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp_timeout": 1.0, "queue": 0}
        with (
            serve_scripted(engine, chat_template=THINKER, **options) as server,
            make_client(server) as client,
            ThreadPoolExecutor() as pool,
        ):
            asking = pool.submit(create, client, "Slowly", make_mcp_tool(tools))
            assert tools.log.slow_started.wait(20)
            with httpx.stream(
                "POST", f"{server.url}/v1/chat/completions", json=make_chat("Hang", stream=True)
            ) as other:
                assert other.status_code == 200
                gate = server.get_gate()
                poll_until(lambda: gate.waiting == 1)  # no queue is too long for what has begun
            assert asking.result(30).output_text == "Too slow."
