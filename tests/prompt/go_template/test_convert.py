"""Templates in Go's language write the prompts that Go writes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import InvalidValue
from dragoman.prompt.go_template import convert_go_template, is_go_template
from dragoman.prompt.template.template import compile_template

CASES = msgspec.yaml.decode((Path(__file__).parent / "cases.yaml").read_bytes())
NAMES = {"thinking": "reasoning_content", "tool_name": "name"}  # ours, of fields of messages


def make_id(case: dict[str, Any]) -> str:
    return f"{case['template']}, {case['conversation']}, {case.get('think')}"


@pytest.mark.parametrize("case", CASES["prompts"], ids=make_id)
def test_prompt_is_the_one_that_go_writes(case: dict[str, Any]) -> None:
    conversation = CASES["conversations"][case["conversation"]]
    variables: dict[str, Any] = {
        "messages": [
            {NAMES.get(name, name): value for name, value in message.items()}
            for message in conversation["messages"]
        ],
        "tools": CASES["tools"] if conversation.get("has_tools") else None,
    }
    if "think" in case:
        variables["enable_thinking"] = case["think"]
    source = CASES["templates"][case["template"]]
    assert is_go_template(source)
    assert compile_template(convert_go_template(source)).render(variables) == case["prompt"]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ .Prompt", "`{{` has no `}}`"),
        ("{{ if .Prompt }}", "`if` has no `end`"),
        ("{{ if .Prompt }}{{ else }}", "`if` has no `end`"),
        ("{{ range .Messages }}{{ else if .Tools }}{{ end }}", "`else if` is not understood"),
        ("{{ end }}", "`end` has no block to end"),
        ("{{ .Prompt }}{{ else }}", "`else` has no block to end"),
        ("{{ .Nothing }}", "the field `.Nothing` is not supported"),
        ("{{ $.Images }}", "the field `.Images` is not supported"),
        ("{{ $x }}", "the variable `$x` is not declared"),
        ("{{ if .Prompt }}{{ $x := 1 }}{{ end }}{{ $x }}", "the variable `$x` is not declared"),
        ("{{ $x = 1 }}", "the variable `$x` is not declared"),
        ("{{ html .Prompt }}", "the function `html` is not supported"),
        ("{{ .Prompt | upper }}", "the function `upper` is not supported"),
        ('{{ define "x" }}{{ end }}', "`define` is not supported"),
        ('{{ template "x" }}', "`template` is not supported"),
        ('{{ block "x" . }}{{ end }}', "`block` is not supported"),
        ("{{ break }}", "`break` is outside of `range`"),
        ("{{ not }}", "`not` has the wrong number of arguments"),
        ("{{ .Prompt 3 }}", "a value that is not a function has arguments"),
        ("{{ 1 | .Prompt }}", "`|` must be followed by a function"),
        ("{{ (.Prompt }}", "`(` has no `)`"),
        ("{{ .Prompt ) }}", "`)` is not expected"),
        ("{{ }}", "a value is missing"),
        ("{{ .Prompt & 2 }}", "`& 2 ` is not understood"),
        ('{{ printf "%x" 3 }}', "`%x` is not supported"),
        ('{{ printf "%s" }}', "`printf` has too few arguments"),
        ("{{ printf .Prompt }}", "the format of `printf` must be a string"),
        (r'{{ "\q" }}{{ "\xZZ" }}', "is no escape of a string"),
        ("{{ if 1 }}" * 60 + "{{ end }}" * 60, "nested too deeply"),
        ("{{ " + "(" * 60 + "1" + ")" * 60 + " }}", "nested too deeply"),
        ("{% if messages %}{{ .Prompt }}{% endif %}", "not in Jinja"),
        ("{{ .Prompt }}" + " " * 70_000, "too long"),
    ],
)
def test_what_cannot_be_converted_is_named(template: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        convert_go_template(template)
    assert problem in caught.value.message
    assert caught.value.param == "template"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content }}",
        "{%- for message in messages -%}{{ message.content }}{%- endfor -%}",
        "{{- bos_token }}{# a comment #}",
        "{{ range(3)|join(messages[0].content) }}",
        "plain text",
    ],
)
def test_jinja_is_not_taken_for_go(template: str) -> None:
    assert not is_go_template(template)
