"""Detection on our own templates, written in the styles of many model families."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import main
from dragoman.detection import (
    DetectedFormats,
    ReasoningSwitch,
    detect,
    read_checkpoint_formats,
    render_probe,
)
from dragoman.detection.round_trip import parse_answer
from dragoman.errors import ModelBroken
from dragoman.formats import get_tool_formats
from dragoman.output.library import OutputParser
from dragoman.prompt.template.template import compile_template
from tests.support.paths import TEMPLATES
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow

FAMILIES = tomllib.loads((TEMPLATES / "families.toml").read_text(encoding="utf-8"))
BOMBS = tomllib.loads((TEMPLATES / "bombs.toml").read_text(encoding="utf-8"))

BASE = """
{%- if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.reasoning_content -%}REASONING{%- endif -%}
ANSWER
{%- if m.tool_calls -%}CALLS{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}OPENING{%- endif -%}
"""
EACH = (
    "{%- for c in m.tool_calls -%}"
    "{%- set n, a = c.function.name, c.function.arguments -%}"
    "{%- set j = {'name': n, 'arguments': a} | tojson -%}"
    "{%- if not loop.first -%}BETWEEN{%- endif -%}ONE{%- endfor -%}"
)
HERMES = FAMILIES["hermes_json"]["each"]
THINK = "{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}"
ON, OFF = "{{ '<think>\\n' }}", "{{ '<think>\\n\\n</think>\\n\\n' }}"


def make_template(
    each: str = "",
    between: str = "",
    frame: str = "…",
    reasoning: str = "",
    opening: str = "",
    answer: str = "{{ m.content or '' }}",
) -> str:
    calls = frame.replace("…", EACH.replace("BETWEEN", between).replace("ONE", each))
    source = BASE.replace("REASONING", reasoning).replace("ANSWER", "{#- -#}" + answer + "{#- -#}")
    return source.replace("CALLS", calls if each else "").replace("OPENING", opening)


def statuses(detected: DetectedFormats) -> dict[str, str]:
    return {check.name: check.status for check in detected.checks}


# round trips


@pytest.mark.parametrize("name", FAMILIES)
def test_the_format_of_rendered_turns_is_detected(name: str) -> None:
    case = dict(FAMILIES[name])
    reasoning = case.pop("reasoning_format", None)
    detected = detect(case.get("whole") or make_template(**case))
    assert (detected.tools, detected.reasoning, detected.is_generic) == (name, reasoning, False), (
        detected.reasons
    )
    assert detected.renders_tools
    assert not detected.failed_checks
    assert detected.confidence == "verified"
    assert statuses(detected)["one call"] == "ok"


def test_a_failed_round_trip_reports_both_sides() -> None:
    lossy = '{{ \'<tool_call>{"name": "\' + n + \'", "arguments": {}}</tool_call>\' }}'
    lossy += "{{ '<!-- ' + a | tojson + ' -->' }}"
    detected = detect(make_template(lossy))
    assert detected.confidence != "verified"
    failed = {check.name: check for check in detected.failed_checks}["one call"]
    assert failed.expected.calls[0].arguments
    assert failed.parsed is not None
    assert failed.parsed != failed.expected
    assert "<tool_call>" in failed.text


def test_a_turn_that_is_never_rendered_is_not_rendered() -> None:
    detected = detect(make_template(HERMES, answer="{{ m.content if not m.tool_calls else '' }}"))
    assert statuses(detected)["text and a call"] == "not_rendered"
    assert statuses(detected)["reasoning"] == "not_rendered"
    assert detected.confidence == "verified"


def test_text_rendered_as_reasoning_is_reported() -> None:
    text_as_reasoning = (
        "{{ '<think>' + m.content + '</think>' if m.tool_calls and m.content else m.content }}"
    )
    detected = detect(make_template(HERMES, reasoning=THINK, answer=text_as_reasoning))
    assert statuses(detected)["text and a call"] == "rendered_differently"
    assert detected.confidence == "verified"


# instructions


@pytest.mark.parametrize(
    ("instructions", "tools"),
    [
        ('Call with <tool_call>{"name": ..., "arguments": ...}</tool_call>.', "hermes_json"),
        ("<tool_call>name\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>", "glm45"),
        ("First <|tool_call|>, then a JSON list.", "granite3"),
        ('prefix calls with functools[{"name": [name]}]', "functools"),
        ('Answer {"name": function, "parameters": its arguments}.', "llama3_json"),
        ("Answer [function(parameter=value)].", "pythonic"),
    ],
)
def test_instructions_decide_if_no_call_is_rendered(instructions: str, tools: str) -> None:
    source = (
        "{% if tools %}{{ tools | tojson }}\n" + instructions + "\n{% endif %}" + make_template()
    )
    detected = detect(source)
    assert (detected.tools, detected.is_generic, detected.confidence) == (
        tools,
        False,
        "unverified",
    ), detected.reasons


def test_instructions_win_over_unmarked_calls() -> None:
    instructions = "{% if tools %}First <|tool_call|>, then a JSON list.{% endif %}"
    detected = detect(instructions + make_template("{{ j }}"))
    assert (detected.tools, detected.confidence) == ("granite3", "unverified")
    assert detected.failed_checks


def test_the_vocabulary_decides_last() -> None:
    plain = make_template()
    assert detect(plain).is_generic
    detected = detect(plain, {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"})
    assert (detected.tools, detected.is_generic) == ("kimi_k2", False)
    assert detect(plain, {"<tool_call>", "</tool_call>"}).tools == "hermes_json"
    assert detect(plain, {"[THINK]", "[/THINK]"}).reasoning == "mistral_think"
    assert detect(plain, {"<unused>"}).is_generic


def test_a_template_without_tools_gets_the_generic_format() -> None:
    detected = detect((TEMPLATES / "chatml.jinja").read_text(encoding="utf-8"))
    assert (detected.tools, detected.reasoning, detected.confidence) == (
        "hermes_json",
        None,
        "generic",
    )
    assert detected.is_generic
    assert not detected.renders_tools
    assert statuses(detected)["an answer"] == "ok"


# reasoning switches


@pytest.mark.parametrize(
    ("opening", "switch", "positions"),
    [
        ("", None, ("open",)),
        (ON, None, ("inside",)),
        (
            "{% if enable_thinking is defined and not enable_thinking %}" + OFF + "{% endif %}",
            ReasoningSwitch("enable_thinking", True, False),
            ("open", "open", "closed"),
        ),
        (
            "{% if thinking %}" + ON + "{% else %}{{ '</think>' }}{% endif %}",
            ReasoningSwitch("thinking", True, False),
            ("closed", "inside", "closed"),
        ),
        (
            "{% if disable_thinking %}" + OFF + "{% else %}" + ON + "{% endif %}",
            ReasoningSwitch("disable_thinking", False, True),
            ("inside", "inside", "closed"),
        ),
        (
            "{% if thinking_mode == 'enabled' %}" + ON + "{% elif thinking_mode == 'disabled' %}"
            "{{ '</think>' }}{% endif %}",
            ReasoningSwitch("thinking_mode", "enabled", "disabled"),
            ("open", "inside", "closed"),
        ),
        (
            "{% if reasoning_effort == 'no_think' %}" + OFF + "{% else %}" + ON + "{% endif %}",
            ReasoningSwitch("reasoning_effort", "low", "no_think"),
            ("inside", "inside", "closed"),
        ),
    ],
)
def test_reasoning_switches_and_answer_positions(
    opening: str, switch: ReasoningSwitch | None, positions: tuple[str, ...]
) -> None:
    detected = detect(make_template(HERMES, reasoning=THINK, opening=opening))
    assert detected.reasoning == "think"
    assert tuple(detected.reasoning_controls.answer_positions.values()) == positions
    detected_switch = detected.reasoning_controls.switch
    assert (detected_switch and detected_switch.name) == (switch and switch.name)
    if detected_switch and switch and switch.name != "reasoning_effort":
        assert detected_switch == switch


def test_effort_and_budget_variables_are_detected() -> None:
    prefix = "{{ 'Effort: ' + (reasoning_effort or 'high') + ', at most ' }}{{ thinking_budget }}"
    controls = detect(prefix + make_template(reasoning=THINK)).reasoning_controls
    assert (controls.effort, controls.efforts) == ("reasoning_effort", ("low", "medium", "high"))
    assert controls.budget == "thinking_budget"
    assert controls.switch is None


def test_words_in_a_system_message_can_be_a_switch() -> None:
    opening = "{% if '/no_think' in messages[0].content %}" + OFF + "{% endif %}"
    detected = detect(make_template(reasoning=THINK, opening=opening))
    assert detected.reasoning_controls.system_words == {"/no_think": "closed"}


@pytest.mark.parametrize(
    ("source", "reasoning"),
    [
        (make_template(opening=ON), "think"),
        (make_template(answer="{{ (m.content or '').split('</think>')[-1] }}"), "think"),
        (
            "{% if thinking %}{{ 'Think in <think></think>, then <response></response>.' }}"
            "{% endif %}" + make_template(),
            "granite33_tags",
        ),
        (
            "{% if thinking %}{{ 'Say \\'Here is my thought process:\\', then \\'Here is my "
            "response:\\'.' }}{% endif %}" + make_template(),
            "granite_text",
        ),
        (make_template(), None),
    ],
)
def test_reasoning_that_is_never_rendered_is_detected_by_markers(
    source: str, reasoning: str | None
) -> None:
    assert detect(source).reasoning == reasoning


# limits


def test_detection_is_cached() -> None:
    source = make_template(HERMES)
    assert detect(source) is detect(source)


@pytest.mark.parametrize("name", ["nested_loops", "doubling_macro", "endless_macro"])
@measures_time
def test_a_hostile_template_times_out(name: str) -> None:
    started = time.thread_time()
    assert detect(BOMBS[name]).is_generic
    assert time.thread_time() - started < 10


ALL_EXAMPLES = "".join(entry.example for entry in get_tool_formats().values())
CONDITIONS = [f"{{% if thinking_{index} %}}{index}{{% endif %}}" for index in range(1000)]
COSTLY_TEMPLATES = {
    "many variables": "".join(CONDITIONS) + make_template(HERMES),
    "every format at once": make_template(
        "{{ j }}" + json.dumps(ALL_EXAMPLES).join(("{{ ", " }}"))
    ),
    "long openings": make_template(opening="".join(CONDITIONS[:200]) + "{{ '<think>' * 30000 }}"),
}


@pytest.mark.parametrize("name", COSTLY_TEMPLATES)
@measures_time
def test_detection_respects_its_time_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_probe, "MAX_SECONDS", 0.5)
    compile_template(COSTLY_TEMPLATES[name])
    started = time.thread_time()
    detected = detect(COSTLY_TEMPLATES[name])
    assert time.thread_time() - started < 2
    assert detected.tools
    assert any("time" in reason for reason in detected.reasons) == (name == "every format at once")


def test_a_broken_template_is_the_models_fault() -> None:
    with pytest.raises(ModelBroken):
        detect("{% if %}")


# response templates

NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TAGS = r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"
RESPONSE_TEMPLATES: list[tuple[dict[str, Any], str, str]] = [
    (
        {
            "thinking": {"open": "<think>", "close": "</think>"},
            "content": {"close": "<|im_end|>"},
            "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json"},
        },
        "hermes_json",
        "think",
    ),
    (
        {
            "reasoning_content": {"open": "<think>", "close_pattern": r"\s*</think>"},
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*(?:</tool_call>)?",
                "content": "xml-inline",
                "content_args": {"tag_pattern": TAGS},
                "transform": NAMED,
            },
        },
        "qwen3_coder",
        "think",
    ),
    (
        {
            "thinking": {"open": "[[mull", "close": "mull]]"},
            "tool_calls": {
                "open_pattern": r"@call (?P<name>\w+) with ",
                "close": " @end",
                "content": "json",
                "transform": NAMED,
            },
        },
        "response_template",
        "response_template",
    ),
]


@pytest.mark.parametrize(("fields", "tools", "reasoning"), RESPONSE_TEMPLATES)
def test_a_response_template_becomes_a_format(
    fields: dict[str, Any], tools: str, reasoning: str
) -> None:
    config = {"response_template": {"start_anchor": "assistant\n", "fields": fields}}
    detected = detect(make_template(), config=config)
    assert (detected.tools, detected.reasoning, detected.is_generic) == (tools, reasoning, False)


def test_a_custom_format_parses_answers() -> None:
    formats = read_checkpoint_formats({"response_template": {"fields": RESPONSE_TEMPLATES[-1][0]}})
    assert formats is not None
    parser = OutputParser(formats.tools, formats.reasoning)
    turn = parse_answer(
        parser, '[[mull hm mull]]Well. @call add with {"a": [1]} @end@call f with {} @end'
    )
    assert (turn.text.strip(), turn.reasoning.strip()) == ("Well.", "hm")
    assert [(call.name, call.arguments) for call in turn.calls] == [("add", {"a": [1]}), ("f", {})]


@pytest.mark.parametrize("pattern", [r"(a+)+$", "x.*y", r"\w+", "[ab]c", "a{9}", "(?P<name", "(("])
def test_unsupported_patterns_are_listed_and_never_run(pattern: str) -> None:
    fields = {"tool_calls": {"open_pattern": pattern, "close": "z", "content": "json"}}
    formats = read_checkpoint_formats({"response_template": {"fields": fields}})
    assert formats is not None
    assert formats.tools is None
    assert formats.unsupported


def test_markers_are_read_from_an_older_schema() -> None:
    schema = {
        "x-regex": r"(?:<think>\n?(?P<thinking>.+?)\n?</think>)?\s*(?P<content>.*)",
        "properties": {
            "thinking": {"type": "string"},
            "tool_calls": {"x-regex-iterator": r"<tool_call>(.*?)</tool_call>"},
        },
    }
    formats = read_checkpoint_formats({"response_schema": schema})
    assert formats is not None
    assert formats.tools is not None
    assert formats.reasoning is not None
    assert (formats.tools.name, formats.reasoning.name) == ("hermes_json", "think")


# the command line


def run_explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["explain", *arguments])
    return capsys.readouterr().out


def test_explain_prints_the_formats_and_the_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opening = "{% if enable_thinking is defined and not enable_thinking %}" + OFF + "{% endif %}"
    file = tmp_path / "some.jinja"
    file.write_text(make_template(HERMES, reasoning=THINK, opening=opening), encoding="utf-8")
    output = run_explain(capsys, str(file), "--source")
    for words in ("hermes_json", "<tool_call>", "enable_thinking", "off: an answer begins after"):
        assert words in output
    assert "get_weather" in output
    assert file.read_text(encoding="utf-8") in output
    data = json.loads(run_explain(capsys, str(file), "--json"))
    assert data["tools"]["format"] == "hermes_json"
    assert data["reasoning"]["answer_positions"] == {
        "default": "open",
        "on": "open",
        "off": "closed",
    }
    assert data["confidence"] == "verified"
    assert {row["status"] for row in data["checks"]} == {"ok"}
    assert data["template"]["source"] == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("several", [False, True])
def test_explain_reads_a_tokenizer_config(
    several: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value: Any = make_template(FAMILIES["longcat"]["each"])
    if several:
        value = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": value}]
    config = {"chat_template": value, "added_tokens_decoder": {"1": {"content": "<think>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in (tmp_path, tmp_path / "tokenizer_config.json"):
        data = json.loads(run_explain(capsys, str(path), "--json"))
        assert data["tools"]["format"] == "longcat"


def test_explain_reads_a_model_without_starting_it(
    default_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(default_model.parent.parent)
    by_name = run_explain(capsys, "smollm2-135m", "--models-dir", root)
    by_path = run_explain(capsys, str(default_model), "--models-dir", root)
    assert by_name == by_path
    assert "generic" in by_name


def test_explain_names_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    for name in (str(tmp_path / "tokenizer_config.json"), "no-such-model"):
        with pytest.raises(SystemExit, match="dragoman: "):
            main(["explain", name, "--models-dir", str(tmp_path / "models")])


@pytest.mark.parametrize("source", ["{{ raise_exception('No.') }}", BOMBS["nested_loops"]])
def test_explain_reports_a_template_that_renders_nothing(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jinja").write_text(source, encoding="utf-8")
    output = run_explain(capsys, str(tmp_path / "t.jinja"))
    assert "does not render" in output
    assert "described in the system message" not in output
    assert not json.loads(run_explain(capsys, str(tmp_path / "t.jinja"), "--json"))["template"][
        "renders"
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a" * 5000, "There is no model"),
        ("{folder}/tokenizer_config.json", r"tokenizer_config\.json has no chat template"),
    ],
)
def test_explain_reports_what_is_missing(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=f"dragoman: {message}"):
        main(["explain", name.format(folder=tmp_path), "--models-dir", str(tmp_path / "m")])


def test_explain_uses_the_given_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("own.jinja", "tokenizer_config.json", "bare.json", "folder/chat_template.jinja")
    (tmp_path / "folder").mkdir()
    for file in files:
        value = {"chat_template": make_template()} if file == files[1] else {}
        text = make_template() if file.endswith("jinja") else json.dumps(value)
        (tmp_path / file).write_text(text, encoding="utf-8")
    other = tmp_path / "other.template"
    other.write_text(make_template(FAMILIES["longcat"]["each"]), encoding="utf-8")
    for name in (*files, "folder"):
        path = str(tmp_path / name)
        data = json.loads(run_explain(capsys, path, "--json", "--chat-template", str(other)))
        assert data["tools"]["format"] == "longcat"
        assert data["template"]["from"] == str(other)


def test_a_byte_order_mark_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_template(HERMES)
    config = json.dumps({"chat_template": source})
    for name, text in (("t.jinja", source), ("tokenizer_config.json", config)):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        data = json.loads(run_explain(capsys, str(tmp_path / name), "--json"))
        assert data["template"]["source"] == source


def test_formats_lists_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    main(["formats"])
    output = capsys.readouterr().out
    assert "hermes_json (also hermes" in output
    assert "REASONING FORMATS" in output


def test_short_markers_are_not_evidence() -> None:
    detected = detect("{% for m in messages %}{{ '>>> ' + m.role + ': ' + m.content }}{% endfor %}")
    assert (detected.is_generic, detected.reasoning) == (True, None)
