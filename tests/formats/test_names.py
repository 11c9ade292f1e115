"""The names of other servers' parsers: accepted, and mapped to a format that reads the same.

`names/parser_names.yaml` lists every name that vLLM, SGLang and smg accept, the format it means
here, and an answer in the writing that the parser of that name reads.
"""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.formats import find_reasoning, find_tools, get_reasoning_formats, get_tool_formats
from dragoman.output.library import (
    OutputParser,
    parse_reasoning_complete,
    parse_tool_call_complete,
)
from dragoman.runtime import StartupError, build_engine_runtime
from dragoman.testing import ScriptedEngine
from dragoman.testing.format_checks import fold_spans, parse_pieces
from tests.support.paths import FORMAT_CASES, TEMPLATES
from tests.support.yaml_files import read_yaml

TABLE: dict[str, Any] = read_yaml(FORMAT_CASES / "names" / "parser_names.yaml")
# how many names there are in the registries of the versions that the table names
COUNTS = {
    "vllm 0.32.0": (54, 38),
    "vllm 0.32.0, Rust front end": (25, 20),
    "sglang 0.5.23": (45, 37),  # and `auto`
    "smg 1.13.0": (48, 44),
}
TOOL_NAMES = {name: row for name, row in TABLE["tools"].items() if isinstance(row, list)}
REASONING_NAMES = {name: row for name, row in TABLE["reasoning"].items() if isinstance(row, list)}
TOOLS = [{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}]


def list_names(kind: str, meaning: str) -> list[str]:
    return [name for name, row in TABLE[kind].items() if row == meaning]


def test_the_table_has_every_name_of_every_server() -> None:
    for server, names in TABLE["servers"].items():
        assert (len(names["tools"]), len(names["reasoning"])) == COUNTS[server]
        assert set(names["tools"]) <= set(TABLE["tools"])
        assert set(names["reasoning"]) <= set(TABLE["reasoning"])


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_a_tool_parser_name_means_a_format_that_reads_the_same(name: str) -> None:
    expected, writing = TOOL_NAMES[name]
    assert find_tools(name).name == expected
    reasoning = "think" if writing == "hermes_thinking" else None
    parser = OutputParser(name, reasoning, tools=TOOLS)
    output = fold_spans(parse_pieces(parser, [TABLE["writings"][writing]]))
    assert output.calls == [("f", {"a": 1})]
    assert not output.text.strip()


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_a_reasoning_parser_name_means_a_format_that_reads_the_same(name: str) -> None:
    expected, starts_inside = REASONING_NAMES[name]
    assert find_reasoning(name).name == expected
    writings = TABLE["reasoning_writings"]
    parsed = parse_reasoning_complete(writings.get(name, writings[expected]), name)
    parts = parsed["reasoning_text"].strip(), parsed["normal_text"].strip()
    if find_reasoning(name).keeps_markers:  # leaves the reasoning in the text
        assert parts == ("", "<think>hm</think>yes")
        return
    assert parts == ("hm", "yes")
    if find_reasoning(name).header is None:
        plain = parse_reasoning_complete("hm", name)
        assert plain["reasoning_text" if starts_inside else "normal_text"] == "hm"


def test_every_writing_of_the_table_is_used() -> None:
    assert {row[1] for row in TOOL_NAMES.values()} == set(TABLE["writings"])
    used = {row[0] for row in REASONING_NAMES.values()} | set(REASONING_NAMES)
    assert set(TABLE["reasoning_writings"]) <= used


def test_names_of_formats_and_aliases_are_unique() -> None:
    tools = [
        (alias, entry.name) for entry in get_tool_formats().values() for alias in entry.aliases
    ]
    assert len(dict(tools)) == len(tools)
    assert not set(dict(tools)) & set(get_tool_formats())
    reasoning = [
        (alias, entry.name) for entry in get_reasoning_formats().values() for alias in entry.aliases
    ]
    assert len(dict(reasoning)) == len(reasoning)


# names without a format of their own


@pytest.mark.parametrize("name", [*list_names("tools", "unparsed"), "none"])
def test_some_tool_parsers_leave_the_text_as_it_is(name: str) -> None:
    text = TABLE["writings"]["hermes"]
    assert parse_tool_call_complete(text, name) == {"normal_text": text, "tool_calls": []}


@pytest.mark.parametrize("name", [*list_names("reasoning", "unparsed"), "none"])
def test_some_reasoning_parsers_leave_the_text_as_it_is(name: str) -> None:
    text = "<think>hm</think>yes"
    assert parse_reasoning_complete(text, name) == {"normal_text": text, "reasoning_text": ""}


def load_model(template: str | None = None, **options: str) -> tuple[str | None, str | None]:
    """Return the formats of a model that is served with these options."""
    engine = ScriptedEngine("x")
    given = {**options, **({} if template is None else {"chat_template": template})}
    [model] = build_engine_runtime(engine, given).services.models.list_loaded()
    return model.output_format.tools, model.output_format.reasoning


@pytest.mark.parametrize("name", list_names("tools", "detect"))
def test_names_that_mean_detection_detect_both_formats(name: str) -> None:
    template = (TEMPLATES / "agent.jinja").read_text(encoding="utf-8")
    detected = load_model(template)
    assert detected[0] is not None
    assert load_model(template, tool_parser=name, reasoning_parser=name) == detected


@pytest.mark.parametrize("name", list_names("tools", "detect"))
def test_detection_needs_a_template(name: str) -> None:
    for find in (find_tools, find_reasoning):
        with pytest.raises(ValueError, match="needs the model's chat template"):
            find(name)


@pytest.mark.parametrize("name", list_names("reasoning", "unparsed"))
def test_a_model_with_a_parser_for_no_reasoning_does_not_reason(name: str) -> None:
    template = (TEMPLATES / "agent.jinja").read_text(encoding="utf-8")
    assert load_model(template, reasoning_parser=name)[1] is None


@pytest.mark.parametrize("name", ["qwen_coder", "muse", "gigachat35", "passthrough"])
def test_an_app_takes_tool_parser_names(name: str) -> None:
    assert load_model(tool_parser=name)[0] == (None if name == "passthrough" else name)


@pytest.mark.parametrize("name", ["kimi_k25", "nemotron_3", "apertus2509", "passthrough"])
def test_an_app_takes_reasoning_parser_names(name: str) -> None:
    assert load_model(reasoning_parser=name)[1] == (None if name == "passthrough" else name)


@pytest.mark.parametrize(
    ("option", "name", "suggestion"),
    [
        ("tool_parser", "qwen_codr", "qwen_coder"),
        ("tool_parser", "deepseek-31", "deepseek31"),
        ("tool_parser", "passthru", "passthrough"),
        ("tool_parser", "apertus_2509", "apertus2509"),
        ("tool_parser", "Minimax-M3", "minimax-m3"),
        ("tool_parser", "response-template", "response_template"),
        ("reasoning_parser", "deepsek_r1", "deepseek_r1"),
        ("reasoning_parser", "kimi_think", "kimi_thinking"),
        ("reasoning_parser", "nemotron-3", "nemotron_3"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(option: str, name: str, suggestion: str) -> None:
    with pytest.raises(StartupError, match=f"Did you mean `{suggestion}`"):
        build_engine_runtime(ScriptedEngine("x"), {option: name})
