"""The names of other servers' parsers: accepted, and mapped to the right format."""

from __future__ import annotations

import json

import pytest

from dragoman.formats import find_reasoning, find_tools
from dragoman.output.library import (
    OutputParser,
    parse_reasoning_complete,
    parse_tool_call_complete,
)
from dragoman.runtime import StartupError, build_engine_runtime
from dragoman.testing import ScriptedEngine

# A call of `f` with a=1, as each of smg's tool parsers expects it.
DSML = '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>'
SMG_TOOL_CALLS = {
    "cohere": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]'
    "<|END_ACTION|>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
    '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek32": f"<｜DSML｜function_calls>{DSML}</｜DSML｜invoke></｜DSML｜function_calls>",
    "deepseek_v4": f"<｜DSML｜tool_calls>{DSML}</｜DSML｜invoke></｜DSML｜tool_calls>",
    "glm45_moe": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "glm47_moe": "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
    "json": '{"name": "f", "arguments": {"a": 1}}',
    "kimik2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
    "llama": '<|python_tag|>{"name": "f", "parameters": {"a": 1}}',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]',
    "pythonic": "[f(a=1)]",
    "qwen": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "qwen_coder": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    "</tool_call>",
    "qwen_xml": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    "</tool_call>",
    "step3": "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="f"><steptml:parameter name="a">1</steptml:parameter>'
    "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
}
# The names of smg's reasoning parsers, and whether an answer starts inside reasoning.
SMG_REASONING = {
    "base": ("<think>", "</think>", False),
    "cohere_cmd": ("<|START_THINKING|>", "<|END_THINKING|>", False),
    "deepseek_r1": ("<think>", "</think>", True),
    "deepseek_v31": ("<think>", "</think>", False),
    "glm45": ("<think>", "</think>", False),
    "kimi": ("◁think▷", "◁/think▷", False),
    "kimi_k25": ("<think>", "</think>", False),
    "kimi_thinking": ("<think>", "</think>", True),
    "minimax": ("<think>", "</think>", True),
    "nano_v3": ("<think>", "</think>", False),
    "qwen3": ("<think>", "</think>", False),
    "qwen3_thinking": ("<think>", "</think>", True),
    "step3": ("<think>", "</think>", True),
}
PEER_TOOL_PARSERS = (
    # vLLM
    "apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 "
    "ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes "
    "hunyuan_a13b hy_v3 inkling internlm jamba kimi_k2 kimi_k3 lfm2 llama3_json llama4_json "
    "llama4_pythonic longcat mimo minicpm5 minimax minimax_m2 minimax_m3 mistral olmo3 openai "
    "phi4_mini_json poolside_v1 pythonic qwen3_coder qwen3_xml seed_oss step3 step3p5 xlam "
    # SGLang
    "deepseekv3 deepseekv31 deepseekv32 deepseekv4 glm gpt-oss interns1 llama3 minimax-m2 qwen "
    "qwen25 trinity"
)
PEER_REASONING_PARSERS = (
    # vLLM
    "cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 ernie45 gemma4 glm45 "
    "glm47 granite holo2 hunyuan_a13b hy_v3 inkling kimi_k2 kimi_k3 mimo minimax_m2 "
    "minimax_m2_append_think minimax_m3 mistral nemotron_v3 olmo3 openai_gptoss poolside_v1 qwen3 "
    "seed_oss step3 step3p5 "
    # SGLang
    "deepseek-r1 deepseek-v3 deepseek-v4 gpt-oss interns1 kimi minimax minimax-append-think "
    "nano_v3 nemotron_3 qwen3-thinking"
)


def test_all_of_smgs_parser_names_are_listed() -> None:
    assert len(SMG_TOOL_CALLS) == 17  # and `passthrough`
    assert len(SMG_REASONING) == 13


@pytest.mark.parametrize("name", SMG_TOOL_CALLS)
def test_smgs_tool_parser_names_mean_the_same_format(name: str) -> None:
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}]
    parser = OutputParser(name, tools=tools)
    spans = [*parser.feed(SMG_TOOL_CALLS[name]), *parser.close()]
    assert "".join(span.text for span in spans if span.channel == "tool_name") == "f"
    arguments = "".join(span.text for span in spans if span.channel == "tool_args")
    assert json.loads(arguments) == {"a": 1}
    assert not "".join(span.text for span in spans if span.channel == "text").strip()


@pytest.mark.parametrize("name", SMG_REASONING)
def test_smgs_reasoning_parser_names_mean_the_same_format(name: str) -> None:
    start, end, starts_inside = SMG_REASONING[name]
    expected = {"normal_text": "yes", "reasoning_text": "hm"}
    assert parse_reasoning_complete(f"{start}hm{end}yes", name) == expected
    plain = parse_reasoning_complete("hm", name)
    assert plain["reasoning_text" if starts_inside else "normal_text"] == "hm"


@pytest.mark.parametrize("name", ["passthrough", "none"])
def test_passthrough_leaves_the_text_as_it_is(name: str) -> None:
    text = SMG_TOOL_CALLS["qwen"]
    assert parse_tool_call_complete(text, name) == {"normal_text": text, "tool_calls": []}
    text = "<think>hm</think>yes"
    assert parse_reasoning_complete(text, name) == {"normal_text": text, "reasoning_text": ""}


@pytest.mark.parametrize("name", PEER_TOOL_PARSERS.split())
def test_tool_parser_names_of_vllm_and_sglang_parse_calls(name: str) -> None:
    parsed = parse_tool_call_complete(find_tools(name).example, name)
    first = parsed["tool_calls"][0]
    assert first["name"] == "f"
    assert json.loads(first["arguments"])  # the keys of the examples differ


@pytest.mark.parametrize("name", PEER_REASONING_PARSERS.split())
def test_reasoning_parser_names_of_vllm_and_sglang_parse_reasoning(name: str) -> None:
    parsed = parse_reasoning_complete(find_reasoning(name).example, name)
    if "append" in name:  # leaves the reasoning in the text
        assert parsed["reasoning_text"] == ""
        assert "<think>" in parsed["normal_text"]
    else:
        assert parsed["reasoning_text"]
        assert "think>" not in parsed["normal_text"]


@pytest.mark.parametrize("name", [*SMG_TOOL_CALLS, "passthrough"])
def test_an_app_takes_smgs_tool_parser_names(name: str) -> None:
    [model] = build_engine_runtime(
        ScriptedEngine("x"), {"tool_parser": name}
    ).services.models.list_loaded()
    expected = None if name == "passthrough" else name
    assert model.output_format.tools == expected


@pytest.mark.parametrize("name", [*SMG_REASONING, "passthrough"])
def test_an_app_takes_smgs_reasoning_parser_names(name: str) -> None:
    [model] = build_engine_runtime(
        ScriptedEngine("x"), {"reasoning_parser": name}
    ).services.models.list_loaded()
    expected = None if name == "passthrough" else name
    assert model.output_format.reasoning == expected


@pytest.mark.parametrize(
    ("option", "name", "suggestion"),
    [
        ("tool_parser", "qwen_codr", "qwen_coder"),
        ("tool_parser", "deepseek-31", "deepseek31"),
        ("tool_parser", "passthru", "passthrough"),
        ("reasoning_parser", "deepsek_r1", "deepseek_r1"),
        ("reasoning_parser", "kimi_think", "kimi_thinking"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(option: str, name: str, suggestion: str) -> None:
    with pytest.raises(StartupError, match=f"Did you mean `{suggestion}`"):
        build_engine_runtime(ScriptedEngine("x"), {option: name})
