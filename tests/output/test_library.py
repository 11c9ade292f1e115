"""The parser as a library: format names, prompts, policies, and guarantees."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from dragoman.formats import find_reasoning, find_tools, get_reasoning_formats, get_tool_formats
from dragoman.output.library import (
    OutputParser,
    ParserPolicy,
    collect_markers,
    list_formats,
    opens_inside,
    parse_reasoning_complete,
    parse_tool_call_complete,
)
from dragoman.testing.format_checks import fold_spans, parse_pieces

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def parse_all_ways(text: str, *names: str | None, **options: Any) -> dict[str, Any]:
    """Parse a text as a whole and character by character; the results are equal."""
    truncated = options.pop("truncated", False)
    whole = fold_spans(parse_pieces(OutputParser(*names, **options), [text], truncated=truncated))
    assert (
        fold_spans(parse_pieces(OutputParser(*names, **options), text, truncated=truncated))
        == whole
    )
    calls = [list(call) for call in whole.raw_calls]
    return {"text": whole.text, "reasoning": whole.reasoning, "calls": calls}


def test_parse_a_whole_text_with_calls() -> None:
    result = parse_tool_call_complete(f"Look: {CALL}", "hermes_json")
    arguments = '{"city": "Paris"}'
    assert result["normal_text"] == "Look: "
    assert result["tool_calls"] == [{"name": "weather", "arguments": arguments}]


def test_parse_a_whole_text_with_reasoning() -> None:
    result = parse_reasoning_complete("<think>hm</think>yes", "think")
    assert result == {"normal_text": "yes", "reasoning_text": "hm"}
    assert parse_reasoning_complete("yes", "think")["reasoning_text"] == ""


@pytest.mark.parametrize("find", [find_tools, find_reasoning, OutputParser])
def test_an_unknown_name_lists_the_choices(find: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown .* parser 'nonsense'; choose one of: .*harmony"):
        find("nonsense")


def test_list_formats_lists_every_format() -> None:
    listed = list_formats()
    assert len(listed["tools"]) >= 50
    assert len(listed["reasoning"]) >= 20  # and `none`
    assert listed["tools"] == sorted(listed["tools"])


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("hermes", "hermes_json"),
        ("qwen25", "hermes_json"),
        ("qwen3_xml", "qwen3_coder"),
        ("phi4_mini_json", "functools"),
        ("llama4_pythonic", "pythonic"),
        ("openai", "harmony"),
        ("gpt-oss", "harmony"),
        ("json", "json_bare"),
        ("deepseekv31", "deepseek_v31"),
        ("glm45_moe", "glm45"),
    ],
)
def test_names_of_other_servers_are_aliases(alias: str, name: str) -> None:
    assert find_tools(alias).name == name


def test_an_alias_never_hides_a_name() -> None:
    for entry in get_tool_formats().values():
        assert all(
            find_tools(alias).name == entry.name or alias in get_tool_formats()
            for alias in entry.aliases
        )
    assert all(find_reasoning(name).name == name for name in get_reasoning_formats())


def test_the_prompt_decides_whether_an_answer_starts_in_reasoning() -> None:
    """Markers are compared literally, whatever characters they contain."""
    assert opens_inside(find_reasoning("mistral_think"), "[INST]x[/INST][THINK]")
    assert not opens_inside(find_reasoning("mistral_think"), "THINK [T]")
    assert not opens_inside(find_reasoning("think"), "<think>\n\n</think>\n\n")
    assert opens_inside(find_reasoning("kimi_k3"), "<|open|>think<|sep|>")
    assert parse_all_ways(
        "hm</think>yes", None, "think", prompt="<|im_start|>assistant\n<think>\n"
    ) == {
        "text": "yes",
        "reasoning": "hm",
        "calls": [],
    }


def test_inside_overrides_the_default_of_the_format() -> None:
    assert parse_all_ways("yes", None, "deepseek_r1")["reasoning"] == "yes"
    assert parse_all_ways("yes", None, "deepseek_r1", inside=False)["text"] == "yes"


def test_a_channel_name_never_leaks() -> None:
    result = parse_all_ways("<|channel>thought\nplan<channel|>Hi", None, "gemma4_channel")
    assert result == {"text": "Hi", "reasoning": "plan", "calls": []}


def test_a_label_is_removed_only_at_the_start() -> None:
    result = parse_all_ways(
        "<|channel>thought\nthought\nthought\n<channel|>Hi", None, "gemma4_channel"
    )
    assert result["reasoning"] == "thought\nthought\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so <tool_c", {"text": "so <tool_c"}),
        ("<think>hm", {"reasoning": "hm"}),
        ("<think>hm</thi", {"reasoning": "hm</thi"}),
        ('<tool_call>{"name": "wea', {"text": '<tool_call>{"name": "wea'}),
    ],
)
def test_close_returns_held_text(text: str, expected: dict[str, str]) -> None:
    assert parse_all_ways(text, "hermes_json", "think") == {
        "text": "",
        "reasoning": "",
        "calls": [],
        **expected,
    }


def test_a_call_truncated_by_the_token_limit_keeps_its_partial_arguments() -> None:
    """The arguments are exactly the generated text."""
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Par'
    assert parse_all_ways(text, "hermes_json", truncated=True)["calls"] == [
        ["weather", '{"city": "Par']
    ]
    assert parse_all_ways(text, "hermes_json")["calls"] == [["weather", '{"city": "Par"}']]


def test_text_that_is_not_a_call_stays_text() -> None:
    text = '<tool_call>{"name": 5}</tool_call> and <tool_call>{]</tool_call>'
    assert parse_all_ways(text, "hermes_json") == {"text": text, "reasoning": "", "calls": []}


def test_declared_strings_stay_strings() -> None:
    text = "<tool_call>\n<function=weather>\n<parameter=city>\n02134\n</parameter>\n"
    text += "<parameter=days>\n02\n</parameter>\n</function>\n</tool_call>"
    arguments = parse_all_ways(text, "qwen3_coder", tools=[WEATHER])["calls"][0][1]
    assert json.loads(arguments) == {"city": "02134", "days": 2}


def test_a_call_of_an_undeclared_tool_is_text() -> None:
    text = CALL.replace("weather", "nobody")
    assert parse_all_ways(text, "hermes_json", tools=[WEATHER])["text"] == text
    accepting = ParserPolicy(undeclared="accept")
    assert parse_all_ways(text, "hermes_json", tools=[WEATHER], policy=accepting)["calls"]


def test_text_before_a_call_is_preserved() -> None:
    assert parse_all_ways(f"Let me see. \n{CALL}", "hermes_json")["text"] == "Let me see. \n"


def test_several_blocks_are_several_calls() -> None:
    result = parse_all_ways(f"{CALL}\n{CALL}{CALL}", "hermes_json")
    assert [name for name, _ in result["calls"]] == ["weather"] * 3
    assert result["text"] == ""


@pytest.mark.parametrize("rest", ["", "\n\n", f"\n\n{CALL}", " \n"])
def test_white_space_after_reasoning_is_emitted_only_with_text(rest: str) -> None:
    assert parse_all_ways(f"<think>hm</think>{rest}", "hermes_json", "think")["text"] == ""
    assert parse_all_ways(f"<think>hm</think>\n\nyes{rest}", "hermes_json", "think")[
        "text"
    ].startswith("\n\nyes")


def test_an_answer_of_white_space_is_emitted() -> None:
    assert parse_all_ways(" \n", "hermes_json", "think")["text"] == " \n"


@pytest.mark.parametrize(
    ("policy", "text", "reasoning", "calls"),
    [
        ("auto", f"<think>hm {CALL}", "hm ", 1),
        ("auto", f"<think>hm {CALL}\n", "hm ", 1),
        ("auto", f"<think>hm {CALL}\n{CALL}", "hm ", 2),
        ("auto", f"<think>hm {CALL} so</think>", f"hm {CALL} so", 0),
        ("auto", f"<think>hm {CALL} so", f"hm {CALL} so", 0),
        ("auto", f"<think>hm {CALL}</think>", f"hm {CALL}", 0),
        ("ignore", f"<think>hm {CALL}", f"hm {CALL}", 0),
        ("accept", f"<think>hm {CALL}", "hm ", 1),
    ],
)
def test_calls_inside_reasoning_follow_the_policy(
    policy: Any, text: str, reasoning: str, calls: int
) -> None:
    result = parse_all_ways(text, "hermes_json", "think", policy=ParserPolicy(in_reasoning=policy))
    assert (result["reasoning"], len(result["calls"])) == (reasoning, calls)


def test_arguments_are_emitted_as_they_arrive() -> None:
    """String arguments are not held back, and every delta is valid UTF-8."""
    parser = OutputParser("qwen3_coder", tools=[WEATHER])
    parser.feed("<tool_call>\n<function=weather>\n<parameter=city>\n")
    pieces = [
        "".join(span.text for span in parser.feed(piece) if span.channel == "tool_args")
        for piece in ['New "', "York", "\n", "City\n", "</parameter>\n</function>"]
    ]
    assert pieces == ['{"city": "New \\"', "York", "", "\\nCity", '"}']


def test_ids_from_the_model_are_returned() -> None:
    parser = OutputParser("kimi_k2")
    spans = parser.feed(find_tools("kimi_k2").example)
    assert [span.id for span in spans if span.channel == "tool_name"] == ["functions.f:0"]


def test_collect_markers() -> None:
    markers = collect_markers(find_tools("gemma4"), find_reasoning("gemma4_channel"))
    assert {"<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>"} <= markers
    assert collect_markers(None, None) == frozenset()


def test_hidden_tokens_are_removed() -> None:
    result = parse_all_ways(
        "<bos><think>a<eos></think>b", None, "think", policy=ParserPolicy(hidden=("<bos>", "<eos>"))
    )
    assert (result["reasoning"], result["text"]) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "truncated", "repeated"),
    [
        ("Hello.", False, "Hello."),
        ("Hello.", True, ""),
        ("Hello.</think>", False, ""),
        (f"Hello. {CALL}", False, ""),
    ],
)
def test_unclosed_reasoning_can_be_repeated_as_text(
    text: str, truncated: bool, repeated: str
) -> None:
    policy = ParserPolicy(unclosed_reasoning="repeat")
    result = parse_all_ways(
        text, "hermes_json", "think", inside=True, policy=policy, truncated=truncated
    )
    assert (result["text"], result["reasoning"].startswith("Hello.")) == (repeated, True)


def test_text_that_the_filter_held_back_is_repeated_once() -> None:
    policy = ParserPolicy(unclosed_reasoning="repeat", hidden=("<eos>",))
    result = parse_all_ways("Hello.<eo", None, "think", inside=True, policy=policy)
    assert (result["reasoning"], result["text"]) == ("Hello.<eo", "Hello.<eo")


def test_a_closed_parser_returns_nothing() -> None:
    parser = OutputParser("hermes_json")
    assert [span.text for span in parser.feed("a") + parser.close()] == ["a"]
    assert parser.feed("b") == parser.close() == []


def test_the_library_imports_no_engine() -> None:
    code = (
        "import sys, dragoman.output, dragoman.detection\n"
        "print([m for m in sys.modules if m.startswith(('dragoman.engines', 'dragoman.http'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("depth", [10, 300, 20_000])
@pytest.mark.parametrize("name", ["hermes_json", "pythonic", "gemma4", "qwen3_coder", "minimax_m3"])
def test_deep_nesting_does_not_raise(name: str, depth: int) -> None:
    start = find_tools(name).example.partition("1")[0]
    for brackets in ("[", "{", '{"a":', "(", "]<]minimax[>[<a>"):
        text = start + brackets * depth
        any_tool = fold_spans(parse_pieces(OutputParser(name), [text]))
        assert all(isinstance(arguments, dict) for _, arguments in any_tool.calls)
        undeclared = fold_spans(parse_pieces(OutputParser(name, tools=[WEATHER]), [text]))
        assert (undeclared.text, undeclared.calls) == (text, [])
