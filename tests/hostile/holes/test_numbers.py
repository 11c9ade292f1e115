"""Numbers, sizes and fields: every numeric field and every list of every request type."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from websockets.sync.client import connect

from dragoman.testing import Reply, ScriptedEngine
from tests.support.hostile_http import HostileServer, check_no_leaks, make_path, serve_hostile
from tests.support.hostile_numbers import (
    BOUNDARIES,
    NOT_NUMBERS,
    NumericField,
    list_numeric_fields,
    pick_values,
)
from tests.support.hostile_samples import (
    MESSAGES,
    MODEL,
    SAMPLES,
    Sample,
    list_samples,
    make_websocket_message,
)
from tests.support.serving import make_scripted_app, parse_events

ROUTES = make_scripted_app().router.routes
GENERATING = [sample for sample in list_samples(ROUTES) if sample.route.streams]
NUMERIC_FIELDS = list_numeric_fields(ROUTES)


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    engine = ScriptedEngine("Hello there!", tokens=True, context=4096, embeddings=4)
    with serve_hostile(engine) as hostile:
        yield hostile


def send_text(server: HostileServer, path: str, text: str) -> tuple[int, Any]:
    """Send a body as it is, since encoders cannot write every one of these."""
    headers = {"content-type": "application/json"}
    response = server.send("POST", path, content=text.encode(), headers=headers)
    return response.status_code, response


def check_rejected(server: HostileServer, path: str, text: str) -> Any:
    """Check that a body gets 400 and that the engine is not called; return the error."""
    started = server.engine.started
    status, response = send_text(server, path, text)
    assert status == 400, (path, text[:200], response.text[:200])
    assert server.engine.started == started
    error = response.json()["error"]
    return {"message": error} if isinstance(error, str) else error


def write_body(body: dict[str, Any], field: str, raw: str) -> str:
    """Write a body in which a field has a value that is given as JSON."""
    rest = json.dumps({name: value for name, value in body.items() if name != field})
    return f'{{"{field}": {raw}{", " if len(rest) > 2 else ""}{rest[1:]}'


def test_every_numeric_field_is_found() -> None:
    """The fields come from the OpenAPI document, so a new one is tested the day it is added."""
    names = {(field.path, field.name) for field in NUMERIC_FIELDS}
    assert {("/v1/chat/completions", "temperature"), ("/v1/completions", "best_of")} <= names
    assert {("/v1/messages", "thinking.budget_tokens"), ("/v1/embeddings", "dimensions")} <= names
    assert len(names) > 250


@pytest.mark.parametrize("field", NUMERIC_FIELDS, ids=str)
def test_hole_31_no_numeric_field_takes_what_its_schema_does_not(
    server: HostileServer, field: NumericField, count_cases: Callable[[int], None]
) -> None:
    """Values outside of the schema in the OpenAPI document get 400; others never a 5xx."""
    values = pick_values(field, 7)
    for index, raw in enumerate(values):
        started = server.engine.started
        body = {**SAMPLES[field.path], **({"stream": True} if index % 2 and field.streams else {})}
        status, response = send_text(server, field.path, field.write(body, raw))
        assert status in (200, 400), (raw, response.text)
        if not field.accepts(raw):
            assert status == 400, (field, raw)
            assert server.engine.started == started
    count_cases(len(values))


# Counts that multiply the work of a request.
COUNTS = ["0", "129", "1000000", "1000000000000000000", "1e9", "2.5", "true", "-1", '"5"', "[1]"]
COUNT_FIELDS = [
    *(("/v1/chat/completions", name) for name in ("n", "top_logprobs")),
    *(("/v1/completions", name) for name in ("n", "best_of", "logprobs")),
    *(("/v1/responses", name) for name in ("n", "top_logprobs")),
    *(("/infill", name) for name in ("n", "n_probs")),
]
MAY_BE_ZERO = ("top_logprobs", "logprobs", "n_probs")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "field"), COUNT_FIELDS)
def test_hole_28_counts_are_bounded(
    server: HostileServer,
    path: str,
    field: str,
    streamed: bool,
    count_cases: Callable[[int], None],
) -> None:
    values = [raw for raw in COUNTS if raw != "0" or field not in MAY_BE_ZERO]
    for raw in values:
        check_rejected(server, path, write_body({**SAMPLES[path], "stream": streamed}, field, raw))
    count_cases(len(values))


# Lists that multiply the work of a request, each with one entry more than is allowed.
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
LONG_LISTS: list[tuple[str, str, Any, int]] = [
    ("/v1/chat/completions", "messages", MESSAGES[0], 100_001),
    ("/v1/chat/completions", "tools", TOOL, 1025),
    ("/v1/chat/completions", "stop", "a", 65),
    ("/v1/chat/completions", "bad_words", "a", 257),
    ("/v1/chat/completions", "stop_token_ids", 1, 1025),
    ("/v1/chat/completions", "lora", {"name": "a"}, 33),
    ("/v1/chat/completions", "choice", "a", 1001),
    ("/v1/chat/completions", "allowed_token_ids", 1, 200_001),
    ("/v1/completions", "prompt", "a", 2049),
    ("/v1/completions", "prompt", [1], 2049),
    ("/v1/completions", "prompt", 1, 1_000_001),
    ("/v1/embeddings", "input", "a", 2049),
    ("/v1/embeddings", "input", [1], 2049),
    ("/v1/messages", "messages", MESSAGES[0], 100_001),
    ("/v1/messages", "stop_sequences", "a", 65),
    ("/v1/messages", "tools", {"name": "f", "input_schema": {"type": "object"}}, 1025),
    ("/v1/messages", "system", {"type": "text", "text": "a"}, 100_001),
    ("/v1/messages/count_tokens", "messages", MESSAGES[0], 100_001),
    ("/v1/responses", "input", {"role": "user", "content": "a"}, 20_001),
    ("/v1/responses", "tools", {"type": "function", "name": "f", "parameters": {}}, 1025),
    ("/v1/responses", "include", "message.output_text.logprobs", 65),
    ("/v1/responses/input_tokens", "input", {"role": "user", "content": "a"}, 20_001),
    ("/v1/responses/compact", "input", {"role": "user", "content": "a"}, 20_001),
    ("/v1/conversations", "items", {"role": "user", "content": "a"}, 20_001),
    ("/tokenize", "tools", TOOL, 1025),
    ("/tokenize", "messages", MESSAGES[0], 100_001),
    ("/detokenize", "tokens", 1, 1_000_001),
    ("/infill", "input_extra", {"text": "a"}, 4097),
]


@pytest.mark.parametrize(("path", "field", "entry", "count"), LONG_LISTS)
def test_hole_28_lists_are_bounded(
    server: HostileServer, path: str, field: str, entry: Any, count: int
) -> None:
    body = {name: value for name, value in SAMPLES[path].items() if name not in ("prompt", field)}
    if path == "/tokenize" and field != "messages":
        body["messages"] = MESSAGES
    elif path == "/v1/completions":
        body["prompt"] = "a"
    # written by hand: the encoder would block this process, and the server with it
    entries = ",".join([json.dumps(entry)] * count)
    check_rejected(server, path, write_body(body, field, f"[{entries}]"))


def test_hole_28_maps_are_bounded(server: HostileServer) -> None:
    for field, value in (
        ("logit_bias", {str(i): 1 for i in range(4097)}),
        ("metadata", {str(i): "a" for i in range(17)}),
        ("metadata", {"a" * 65: "a"}),
        ("metadata", {"a": "a" * 513}),
    ):
        for path in ("/v1/chat/completions", "/v1/responses"):
            check_rejected(server, path, json.dumps({**SAMPLES[path], field: value}))


@pytest.mark.parametrize("raw", COUNTS)
def test_hole_29_best_of_is_bounded(server: HostileServer, raw: str) -> None:
    for fields in ({}, {"n": 2}, {"n": 128, "prompt": ["a"] * 2048}):
        body = {**SAMPLES["/v1/completions"], **fields}
        check_rejected(server, "/v1/completions", write_body(body, "best_of", raw))


EMPTY_PROMPTS: list[tuple[str, str, str]] = [
    *(
        ("/v1/completions", "prompt", raw)
        for raw in ("[]", "[[]]", "null", "[null]", "{}", "[[[]]]")
    ),
    *(("/v1/completions", "prompt", raw) for raw in ("[[1],[]]", "[-1]", "[1e9]", "[999999999]")),
    *(("/v1/chat/completions", "messages", raw) for raw in ("[]", "null", "[null]", "[{}]", '""')),
    *(("/v1/messages", "messages", raw) for raw in ("[]", "null", "[{}]", '""')),
    ("/v1/messages", "messages", '[{"role": "user", "content": []}]'),
    *(
        ("/v1/embeddings", "input", raw)
        for raw in ("[]", "[[]]", "null", "[null]", '["", 1]', "{}")
    ),
    *(("/v1/responses", "input", raw) for raw in ("null", "[null]", "[{}]", "{}")),
    *(("/tokenize", "prompt", raw) for raw in ("[]", "null", "{}")),
    *(("/detokenize", "tokens", raw) for raw in ("null", "[null]", "[[]]", "[-1]", "[999999999]")),
    *(("/infill", "input_prefix", raw) for raw in ("null", "[]", "5")),
]


@pytest.mark.parametrize(("path", "field", "raw"), EMPTY_PROMPTS)
def test_hole_30_empty_and_malformed_prompts_are_rejected(
    server: HostileServer, path: str, field: str, raw: str
) -> None:
    check_rejected(server, path, write_body(SAMPLES[path], field, raw))


@pytest.mark.parametrize("text", ["", " ", "\n", "\u200b", "\0"])
@pytest.mark.parametrize("sample", GENERATING, ids=str)
def test_hole_30_prompts_without_words_get_a_response(
    server: HostileServer, sample: Sample, text: str
) -> None:
    body = json.dumps(sample.body).replace('"Hi"', json.dumps(text))
    assert send_text(server, sample.path, body)[0] in (200, 400)


OUT_OF_RANGE = [
    *(("temperature", raw) for raw in ("999999", "-0.1", "2.0001")),
    *(("top_p", raw) for raw in ("-1", "1.5", "1000")),
    *(("repeat_penalty", raw) for raw in ("0", "-5", "1000000")),
    *(("top_k", raw) for raw in ("-2", "2147483648", "0.5")),
    *(("min_p", raw) for raw in ("-1", "2")),
    *(("presence_penalty", raw) for raw in ("-2.1", "1e30")),
    *(("max_tokens", raw) for raw in ("-1", "2147483648", "0.5")),
    *(("mirostat", raw) for raw in ("3", "-1")),
    *(("seed", raw) for raw in ("9223372036854775808", "0.5")),
    *(("logit_bias", raw) for raw in ('{"1": 101}', '{"1": 1e400}', '{"1": "a"}', "[[1]]", "5")),
    *(("stop", raw) for raw in ("[[]]", "5", "[5]", "{}")),
]


@pytest.mark.parametrize(("field", "raw"), OUT_OF_RANGE)
def test_hole_32_sampling_values_out_of_range_name_the_field(
    server: HostileServer, field: str, raw: str
) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        for streamed in (False, True):
            body = {**SAMPLES[path], "stream": streamed}
            error = check_rejected(server, path, write_body(body, field, raw))
            assert (error["param"] or "").startswith(field)
            assert field in error["message"]


# Fields of llama-server, vLLM and others that steer the engine itself.
NATIVE_FIELDS = [
    *(
        "n_discard",
        "n_keep",
        "n_ctx",
        "n_batch",
        "cache_prompt",
        "id_slot",
        "slot_id",
        "n_gpu_layers",
    ),
    *(
        "t_max_predict_ms",
        "return_tokens",
        "post_sampling_probs",
        "speculative.n_max",
        "rope_scale",
    ),
    *(
        "kv_transfer_params",
        "cache_salt",
        "priority",
        "request_id",
        "data_parallel_rank",
        "add_bos",
    ),
    *(
        "mm_hashes",
        "worker_id",
        "bootstrap_host",
        "return_hidden_states",
        "detokenize",
        "logits_all",
    ),
    *("spaces_between_special_tokens", "skip_special_tokens", "truncate_prompt_tokens", "use_beam"),
]
HOSTILE_VALUES: list[Any] = [-1, 10**18, "../../etc/passwd", {"a": [None]}, [1e308], True, None, ""]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_hole_33_unknown_fields_never_reach_the_engine(
    server: HostileServer, path: str, count_cases: Callable[[int], None]
) -> None:
    """A job with 1,000 unknown fields equals the job without; field by field for native ones."""
    assert send_text(server, path, json.dumps(SAMPLES[path]))[0] == 200
    plain = describe_job(server)
    chooser = random.Random(33)
    names = [f"{chooser.choice(NATIVE_FIELDS)}_{index}" for index in range(1000)]
    bodies = [dict(zip(names, HOSTILE_VALUES * 125, strict=True))]
    bodies += [{name: value} for name in NATIVE_FIELDS for value in HOSTILE_VALUES[:2]]
    for fields in bodies:
        started = server.engine.started
        status, _ = send_text(server, path, json.dumps({**SAMPLES[path], **fields}))
        if status == 200:
            assert describe_job(server) == plain, fields
        else:
            assert server.engine.started == started
    count_cases(1000 + len(bodies))


def describe_job(server: HostileServer) -> str:
    """Describe the last job, without what differs between equal requests."""
    job = server.engine.jobs[-1]
    return repr({name: getattr(job, name) for name in job.__struct_fields__ if name != "id"})


def test_hole_34_fields_that_the_engine_does_not_list_are_rejected(server: HostileServer) -> None:
    listed = server.engine.capabilities.sampling
    for field, raw in (("mirostat", 2), ("xtc_probability", 0.5), ("dry_multiplier", 0.8)):
        assert field not in listed
        error = check_rejected(
            server, "/v1/completions", json.dumps({**SAMPLES["/v1/completions"], field: raw})
        )
        assert field in error["message"]


FAILURES = {
    "raises": Reply("Half an answer", when="poison", raise_at=1, error="RuntimeError"),
    "out of memory": Reply("Half", when="poison", raise_at=0, error="MemoryError"),
    "bad id": Reply("Half an answer", when="poison", garbage="bad_token"),
    "NaN logprobs": Reply("Half an answer", when="poison", garbage="nan_logprob"),
    "another choice": Reply("Half an answer", when="poison", garbage="bad_choice"),
}


def check_only_one_fails(failure: str, **fields: Any) -> None:
    """Send poison among other requests: it fails alone, streamed and whole."""
    engine = ScriptedEngine([FAILURES[failure], Reply("Fine.")], tokens=True, pace=0.001)
    with serve_hostile(engine) as server, ThreadPoolExecutor(8) as pool:

        def send(index: int) -> Any:
            text = "poison" if index % 4 == 0 else f"hello {index}"
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
            body["stream"] = index % 8 < 4
            return server.send("POST", "/v1/chat/completions", json=body, allowed={500, 503})

        responses = list(pool.map(send, range(16)))
        for index, response in enumerate(responses):
            check_no_leaks(response.text)
            failed = response.status_code >= 500 or '"error"' in response.text
            assert failed == (index % 4 == 0), (index, response.text)
            assert failed or join_text(response) == "Fine."


def join_text(response: Any) -> str:
    """Join the text of an answer, streamed or whole."""
    if response.headers["content-type"] == "application/json":
        return str(response.json()["choices"][0]["message"]["content"])
    deltas = [event["choices"][0]["delta"] for event in parse_events(response)]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("failure", ["raises", "out of memory"])
def test_hole_34_a_request_that_breaks_the_engine_fails_alone(failure: str) -> None:
    check_only_one_fails(failure)


@pytest.mark.parametrize("failure", ["bad id", "another choice"])
def test_hole_36_ids_outside_of_the_vocabulary_end_one_request(failure: str) -> None:
    check_only_one_fails(failure)


def test_hole_38_invalid_logprobs_end_one_request() -> None:
    check_only_one_fails("NaN logprobs", logprobs=True, top_logprobs=2)


TENSOR_FIELDS = [
    *("prompt_embeds", "inputs_embeds", "input_embeds", "image_data", "audio_data", "video_data"),
    *("multi_modal_data", "mm_processor_kwargs", "media_io_kwargs", "extra_body"),
]


@pytest.mark.parametrize("field", TENSOR_FIELDS)
@pytest.mark.parametrize("sample", list_samples(ROUTES), ids=str)
def test_hole_35_tensors_and_media_of_other_servers_are_rejected(
    server: HostileServer, sample: Sample, field: str
) -> None:
    """They would change the answer, so they are not ignored."""
    path = make_path(sample.route)
    error = check_rejected(server, path, json.dumps({**sample.body, field: "gASVIAAAAAAAAACM"}))
    assert f"`{field}`" in error["message"]


def test_hole_37_limits_hold_over_a_websocket(server: HostileServer) -> None:
    """The same limits as over HTTP; the WebSocket stays open."""
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    sample = make_websocket_message(SAMPLES["/v1/responses"])
    cases = [(field, raw) for field in ("n", "top_logprobs", "max_output_tokens") for raw in COUNTS]
    cases += [(field, raw) for field, raw in OUT_OF_RANGE if field != "max_tokens"]
    cases += [("tools", "[" + ",".join(["{}"] * 1025) + "]"), ("chat_template", '"x"')]
    with connect(url, max_size=None) as websocket:
        for field, raw in cases:
            allowed = field in ("top_logprobs", "max_output_tokens") and raw in (
                "0",
                "129",
                "1000000",
                "1e9",
            )
            if allowed:
                continue
            started = server.engine.started
            websocket.send(write_body(sample, field, raw))
            event = json.loads(websocket.recv(10))
            assert event["type"] == "error", (field, raw, event)
            assert event["status"] == 400
            check_no_leaks(json.dumps(event))
            assert server.engine.started == started
        websocket.send(json.dumps(sample))
        assert json.loads(websocket.recv(10))["type"] == "response.created"


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_hole_37_limits_hold_without_v1(server: HostileServer, prefix: str) -> None:
    for path, field in COUNT_FIELDS:
        if path.startswith("/v1"):
            check_rejected(server, prefix + path[3:], write_body(SAMPLES[path], field, "1000000"))


def test_boundaries_are_invalid_where_the_schema_says_so() -> None:
    """The expectation of hole 31 comes from the schema alone; here is what it must say."""
    [field] = [f for f in NUMERIC_FIELDS if str(f) == "/v1/chat/completions n"]
    accepted = {raw for raw in BOUNDARIES if field.accepts(raw)}
    assert accepted == {"1", "1.0", "2", "20", "21", "100", "101", "128"}
    assert not any(field.accepts(raw) for raw in NOT_NUMBERS)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(129, field.schema)
