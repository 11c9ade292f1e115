"""Detection on templates in the style of this season's models, and suffixes of checkpoints."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from openai import OpenAI

from dragoman import OutputParser
from dragoman.detection import detect
from dragoman.formats import find_reasoning, find_tools, get_reasoning_formats, get_tool_formats
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.output.spec import ReasoningFormat, ToolFormat
from dragoman.testing import Reply, ScriptedEngine
from dragoman.testing.format_checks import fold_spans, parse_pieces
from dragoman.testing.grammars import match_grammar
from tests.support.grammars import make_object, make_tools
from tests.support.paths import TEMPLATES
from tests.support.scripted_chats import ask_both_ways
from tests.support.serving import serve_scripted

pytestmark = pytest.mark.slow

MODELS: dict[str, dict[str, str]] = tomllib.loads(
    (TEMPLATES / "new_models.toml").read_text(encoding="utf-8")
)
SUFFIX = ":6124c78e"
HY4 = MODELS["Hy4"]["template"].replace(":opensource", SUFFIX)


@pytest.mark.parametrize("name", MODELS)
def test_formats_of_new_models_are_detected(name: str) -> None:
    model = MODELS[name]
    detected = detect(model["template"])
    assert (detected.tools, detected.reasoning) == (model["tools"], model["reasoning"])
    assert detected.confidence == "verified", detected.failed_checks
    assert detected.reasoning_controls.answer_positions["default"] == model["opens"]


def test_every_format_without_tested_cases_says_how_it_is_known() -> None:
    entries: list[ToolFormat | ReasoningFormat] = [*get_tool_formats().values()]
    entries += get_reasoning_formats().values()
    assert {entry.name for entry in entries if entry.evidence != "tested"}
    assert all(entry.sources for entry in entries if entry.evidence != "tested")


# suffixes


@pytest.mark.parametrize("suffix", ["", ":opensource", SUFFIX, ":a.b-c_9"])
@pytest.mark.parametrize("family", ["hy_v3", "hy_v4"])
def test_the_suffix_of_a_checkpoint_is_read_from_its_template(family: str, suffix: str) -> None:
    source = MODELS["Hy4"]["template"].replace(":opensource", suffix)
    if family == "hy_v3":
        source = source.replace("c.function.name", f"c.function.name + '<tool_sep{suffix}>'")
    detected = detect(source)
    shown = "" if suffix in ("", ":opensource") else suffix  # the suffixes of known checkpoints
    assert (detected.tools, detected.reasoning) == (f"{family}{shown}", f"think{shown}")
    assert detected.confidence == "verified", detected.failed_checks


def add_suffix(text: str) -> str:
    return text.replace(">", f"{SUFFIX}>")


CALL = add_suffix("<tool_calls><tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>")
CALL += add_suffix("</tool_call></tool_calls>")
TOOLS = {"f": make_object("a", a={"type": "integer"})}


def test_the_grammar_writes_the_suffix_alone() -> None:
    spec = GrammarSpec(
        tools=make_tools(TOOLS),
        tool_choice="required",
        tool_format=f"hy_v4{SUFFIX}",
        reasoning_format=f"think{SUFFIX}",
        starts_in_reasoning=False,
    )
    source = compile_grammar(spec).grammar or ""
    assert match_grammar(source, CALL)[0]
    assert match_grammar(source, add_suffix("<think>Hm.</think>") + CALL)[0]
    for other in ("", ":opensource"):
        assert not match_grammar(source, CALL.replace(SUFFIX, other))[0]


def test_tags_with_another_suffix_are_text() -> None:
    for other in ("", ":opensource", ":6124"):
        text = CALL.replace(SUFFIX, other)
        parser = OutputParser(f"hy_v4{SUFFIX}", tools=make_tools(TOOLS))
        assert fold_spans(parse_pieces(parser, text)).text == text


@pytest.mark.parametrize(
    "name", ["hy_v4:", "hy_v4:a b", "hy_v4:<", "glm45:x", "nobody:x", f"hy_v4:{'x' * 65}"]
)
def test_other_suffixes_are_unknown_parsers(name: str) -> None:
    with pytest.raises(ValueError, match="unknown tool parser"):
        find_tools(name)
    with pytest.raises(ValueError, match="unknown reasoning parser"):
        find_reasoning(name)


def test_a_server_parses_calls_with_the_suffix_of_its_template() -> None:
    answer = add_suffix("The hour.</think>") + CALL
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": TOOLS["f"]}}]
    with (
        serve_scripted(ScriptedEngine(Reply(answer, chunks=5)), chat_template=HY4) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        [result] = ask_both_ways(client, "it", tools=tools)["choices"]
    assert (result["reasoning"], result["content"]) == ("The hour.", "")
    assert [(name, json.loads(arguments)) for name, arguments in result["calls"]] == [
        ("f", {"a": 1})
    ]
