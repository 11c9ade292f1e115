"""Decoding requests: every field is decoded, and errors name the field that caused them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest, DragomanError, Unsupported
from dragoman.prompt.conversation import flatten_content
from dragoman.protocols import completions, embeddings, responses, tokenize
from dragoman.protocols.chat import decode as chat
from dragoman.types import Adapter, Chat, Prompt, Request, Sampling, make_text_content
from tests.support.text_only_model import check_media

MINIMAL_CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def make_body(**fields: Any) -> bytes:
    return json.dumps(MINIMAL_CHAT | fields).encode()


def decode_chat(**fields: Any) -> Request:
    return chat.decode_request(make_body(**fields))


def make_completion_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi"} | fields).encode()


SAMPLING = [
    ("temperature", 0.25, "temperature", 0.25),
    ("temperature", 0, "temperature", 0.0),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_p", 0, "top_p", 0.0),
    ("top_k", 7, "top_k", 7),
    ("top_k", 0, "top_k", 0),
    ("top_k", -1, "top_k", 0),
    ("min_p", 0.05, "min_p", 0.05),
    ("typical_p", 0.9, "typical_p", 0.9),
    ("presence_penalty", -1.5, "presence_penalty", -1.5),
    ("frequency_penalty", 1.5, "frequency_penalty", 1.5),
    ("repetition_penalty", 1.1, "repetition_penalty", 1.1),
    ("repeat_penalty", 1.2, "repetition_penalty", 1.2),
    ("repeat_last_n", 32, "repeat_last_n", 32),
    ("seed", 42, "seed", 42),
    ("seed", 0, "seed", 0),
    ("logit_bias", {"5": -100, "7": 3.5}, "logit_bias", {5: -100.0, 7: 3.5}),
    ("max_tokens", 9, "max_tokens", 9),
    ("max_completion_tokens", 11, "max_tokens", 11),
    ("min_tokens", 3, "min_tokens", 3),
    ("ignore_eos", True, "ignore_eos", True),
    ("stop_token_ids", [1, 2], "stop_token_ids", (1, 2)),
]


@pytest.mark.parametrize(("field", "value", "name", "expected"), SAMPLING)
def test_every_sampling_field_is_decoded(field: str, value: Any, name: str, expected: Any) -> None:
    sampling_expected = Sampling(**{name: expected})
    assert decode_chat(**{field: value}).sampling == sampling_expected
    assert decode_chat(**{field: value}, stream=True).sampling == sampling_expected
    if field != "max_completion_tokens":
        sampling = completions.decode_request(make_completion_body(**{field: value})).sampling
        assert getattr(sampling, name) == expected


def test_absent_sampling_fields_stay_unset() -> None:
    assert decode_chat().sampling == Sampling()
    nulls = {field: None for field, *_ in SAMPLING}
    assert decode_chat(**nulls).sampling == Sampling()
    completion = completions.decode_request(make_completion_body())
    assert completion.sampling == Sampling()
    assert completion.api_defaults == Sampling(max_tokens=16)


def test_max_completion_tokens_overrides_max_tokens() -> None:
    assert decode_chat(max_tokens=5, max_completion_tokens=6).sampling.max_tokens == 6


@pytest.mark.parametrize(
    ("value", "expected"),
    [("END", ("END",)), (["a", "b"], ("a", "b")), ([], ()), (["", "x"], ("x",)), (None, ())],
)
def test_stop_is_a_string_or_a_list(value: Any, expected: tuple[str, ...]) -> None:
    assert decode_chat(stop=value).stop == expected
    assert completions.decode_request(make_completion_body(stop=value)).stop == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("poet", (Adapter("poet", 1.0),)),
        ([{"name": "a", "scale": 0.5}, {"name": "b"}], (Adapter("a", 0.5), Adapter("b", 1.0))),
        ([], ()),
        (None, None),
    ],
)
def test_lora_is_a_name_or_a_list_with_scales(value: Any, expected: Any) -> None:
    assert decode_chat(lora=value).lora == expected


def test_standard_fields_are_never_unknown() -> None:
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "k",
        "verbosity": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 1,
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "tool_choice": "none",
        "modalities": ["text"],
        "prediction": {"type": "content", "content": "x"},
    }
    request = chat.decode_request(make_body(**harmless), strict=True)
    assert request.include_usage
    assert request.logprobs == 2


def test_unknown_fields_are_ignored_unless_the_server_is_strict() -> None:
    assert decode_chat(client_metadata={"x": 1}) == decode_chat()
    with pytest.raises(BadRequest) as caught:
        chat.decode_request(make_body(client_metadata={}), strict=True)
    assert caught.value.param == "client_metadata"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "The body is empty; send a JSON object."),
        (b" \n", "The body is empty; send a JSON object."),
        (b'{"model": "m" "messages": []}', "at byte 14: expected ',' or '}'."),
        (b"{'model': 'm'}", "at byte 1: object keys must be strings."),
        (b'{"model": "m", "messages": [', "it ends too early."),
    ],
)
def test_invalid_json_is_explained(raw: bytes, problem: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat.decode_request(raw)
    assert caught.value.code == "invalid_json"
    assert caught.value.message.endswith(problem)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","messages":[{"role":"user","content":"hi","odd":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"odd":"\xc3("}',
        b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    ],
)
def test_invalid_utf8_is_rejected_anywhere_in_the_body(raw: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        chat.decode_request(raw)
    assert caught.value.code == "invalid_json"


def test_a_body_of_nested_lists_is_rejected_before_it_is_decoded() -> None:
    lists = ",".join(["[]"] * 500_001)
    raw = b'{"model":"m","input":[{"type":"odd","data":[%b]}]}' % lists.encode()
    with pytest.raises(BadRequest, match="50,000 lists and objects"):
        responses.decode_request(raw)


def test_an_image_in_a_tool_result_becomes_a_sentence_with_a_warning() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}, image]},
    ]
    request = decode_chat(messages=messages)
    (chat_prompt,) = request.prompts
    assert isinstance(chat_prompt, Chat)
    text = flatten_content(chat_prompt.messages[-1].content)
    assert text == "a[image_url: not shown, only text is supported]"
    assert [warning for warning in check_media(request) if "`image_url`" in warning]
    with pytest.raises(Unsupported):
        check_media(decode_chat(messages=[{"role": "user", "content": [image]}]))


@pytest.mark.parametrize("fields", [{"verbosity": "low"}, {"moderation": {"model": "x"}}])
def test_fields_without_effect_are_warned_about(fields: dict[str, Any]) -> None:
    assert [
        warning
        for warning in decode_chat(**fields).warnings
        if f"`{next(iter(fields))}`" in warning
    ]


BAD_CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
        "messages[0].content[0].type",
    ),
    ({"model": 5}, "model"),
    ({"model": "x" * 513}, "model"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": "nan"}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"top_k": -2}, "top_k"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 10**18}, "n"),
    ({"n": 1e9}, "n"),
    ({"n": True}, "n"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**70}, "seed"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"a": True}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": [[1]]}, "logit_bias[0]"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop[0]"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": False, "stream_options": {}}, "stream_options"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools[1].function.name"),
    ({"lora": [{"scale": 1}]}, "lora[0].name"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT)
def test_an_invalid_field_is_a_400_that_names_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert "Struct" not in caught.value.message
    assert "$" not in caught.value.message


UNSUPPORTED = [
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"web_search_options": {}}, "web_search_options"),
]


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED)
def test_unsupported_fields_are_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        decode_chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "audio_url"])
def test_media_for_a_text_model_is_rejected(kind: str) -> None:
    request = decode_chat(messages=[{"role": "user", "content": [{"type": kind}]}])
    with pytest.raises(Unsupported) as caught:
        check_media(request)
    assert caught.value.param == "messages[0].content[0]"


def test_content_may_be_parts_for_every_role() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    roles = ["system", "developer", "user", "assistant", "tool"]
    request = decode_chat(
        messages=[{"role": role, "content": parts, "tool_call_id": "1"} for role in roles]
    )
    conversation = request.prompts[0]
    assert isinstance(conversation, Chat)
    assert [message.content for message in conversation.messages] == [make_text_content("ab")] * 5


def test_an_earlier_call_with_null_content_is_decoded() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = decode_chat(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    conversation = request.prompts[0]
    assert isinstance(conversation, Chat)
    assert conversation.messages[0].tool_calls[0].name == "f"
    assert conversation.messages[0].content == ()


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_earlier_reasoning_is_decoded_under_both_names(field: str) -> None:
    request = decode_chat(messages=[{"role": "assistant", "content": "x", field: "because"}])
    conversation = request.prompts[0]
    assert isinstance(conversation, Chat)
    assert conversation.messages[0].reasoning == "because"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"model": NaN}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":1e400}',
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":Infinity}',
        b'{"model":"m","messages":[{"role":"user","content":"hi"}]} extra',
        b'{"model":"m","tools":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model":"m","metadata":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"model":"m","seed":' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize(
    "decode",
    [
        chat.decode_request,
        completions.decode_request,
        embeddings.decode_request,
        tokenize.decode_tokenize_request,
    ],
)
def test_an_invalid_body_is_a_bad_request(raw: bytes, decode: Any) -> None:
    with pytest.raises(BadRequest):
        decode(raw)


LARGE = "[" + "[]," * 200_000 + "1]"


@pytest.mark.parametrize(
    ("field", "param"),
    [
        (f'"tools":{LARGE}', "tools"),
        (f'"guided_json":{{"a":{LARGE}}}', "guided_json"),
        (f'"chat_template_kwargs":{{"a":{LARGE}}}', "chat_template_kwargs"),
        (f'"tools":{LARGE},"tools":[]', None),  # the decoder would use the last one
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_large_field_is_rejected_before_it_is_decoded(field: str, param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        chat.decode_request(json.dumps(MINIMAL_CHAT)[:-1].encode() + f",{field}}}".encode())
    assert (caught.value.param, caught.value.code) == (param, "invalid_value")


def test_text_fields_may_be_large() -> None:
    text = "a" * 2_000_000
    messages = [{"role": "user", "content": text}]
    [chat_prompt] = decode_chat(messages=messages, unknown="b" * 2_000_000).prompts
    assert isinstance(chat_prompt, Chat)
    assert chat_prompt.messages[0].content == make_text_content(text)
    assert completions.decode_request(make_completion_body(prompt=[text])).prompts[0] == Prompt(
        content=text
    )


def test_a_number_out_of_range_is_rejected_by_name() -> None:
    raw = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":1e400}'
    with pytest.raises(BadRequest) as caught:
        chat.decode_request(raw)
    assert caught.value.param == "temperature"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    st.sampled_from(sorted(chat.ChatRequest.__struct_encode_fields__)),
)
def test_any_value_in_any_field_is_decoded_or_rejected(value: Any, field: str) -> None:
    raw = json.dumps(MINIMAL_CHAT | {field: value}).encode()
    try:
        status = 200 if isinstance(chat.decode_request(raw), Request) else 500
    except DragomanError as error:
        status = error.status
    assert status in (200, 400)


PROMPTS = [
    ("hi", ["hi"]),
    (["a", "b"], ["a", "b"]),
    ([1, 2, 3], [[1, 2, 3]]),
    ([[1, 2], [3]], [[1, 2], [3]]),
    (["a", [1]], ["a", [1]]),
]


@pytest.mark.parametrize(("prompts", "expected"), PROMPTS)
def test_a_prompt_has_four_forms(prompts: Any, expected: list[Any]) -> None:
    request = completions.decode_request(make_completion_body(prompt=prompts))
    assert [p.content for p in request.prompts if isinstance(p, Prompt)] == expected
    embedded = embeddings.decode_request(json.dumps({"model": "m", "input": prompts}).encode())
    assert embedded.inputs == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [2**40]}, "prompt[0]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"suffix": 1}, "suffix"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_an_invalid_completion_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        completions.decode_request(make_completion_body(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
    ],
)
def test_an_invalid_embedding_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        embeddings.decode_request(json.dumps({"model": "m", "input": "x"} | fields).encode())
    assert caught.value.param == param
