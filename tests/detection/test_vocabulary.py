"""Where a template writes no call, the special tokens of the model decide its formats.

`vocabularies.yaml` lists the tokens of real models, also of models whose tokens decide nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import main
from dragoman.detection import detect
from tests.support.model_files import MetadataValue, make_gguf, write_model_file
from tests.support.paths import TESTS
from tests.support.yaml_files import read_yaml

VOCABULARIES: list[dict[str, Any]] = read_yaml(TESTS / "detection" / "vocabularies.yaml")
BY_MODEL = {entry["model"]: entry for entry in VOCABULARIES}
CASES = [pytest.param(entry, id=entry["model"].partition(",")[0]) for entry in VOCABULARIES]
# the template of LFM2.5 in short: it lists the tools, and never writes a call
LISTS_TOOLS = """
{%- if tools %}{{ '<|im_start|>system\\nTools: ' + tools | tojson + '<|im_end|>\\n' }}{% endif -%}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
# the tools of SmolLM3's template are in variables of its own, so that `tools` changes nothing
IGNORES_TOOLS = LISTS_TOOLS.replace("{%- if tools %}", "{%- if xml_tools or python_tools %}")
NORMAL, CONTROL = 1, 3


def explain(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    main(["explain", str(path), "--json", "--models-dir", str(path.parent / "models")])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def write_checkpoint(path: Path, tokens: Sequence[str], template: str, newer: bool = False) -> Path:
    """Write the tokenizer files of a checkpoint; newer ones list tokens in `tokenizer.json`."""
    config: dict[str, Any] = {"bos_token": "<s>"}
    if newer:
        added = [{"id": index, "content": text} for index, text in enumerate(tokens)]
        (path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}), encoding="utf-8")
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        config["chat_template"] = template
        config["added_tokens_decoder"] = {
            str(index): {"content": text} for index, text in enumerate(tokens)
        }
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def write_gguf(path: Path, tokens: Sequence[str], kind: int, template: str) -> Path:
    texts = ["a", "b", *tokens]
    metadata: dict[str, MetadataValue] = {
        "tokenizer_chat_template": template,
        "tokenizer_ggml.model": "gpt2",
        "tokenizer_ggml.tokens": texts,
        "tokenizer_ggml.token_type": [NORMAL, NORMAL] + [kind] * len(tokens),
    }
    return write_model_file(path, make_gguf(1, metadata))


def check_report(report: dict[str, Any], entry: dict[str, Any]) -> None:
    tools = entry.get("tools")
    assert report["tools"]["generic"] is (tools is None), report["evidence"]
    assert report["tools"]["format"] == (tools or "hermes_json")
    assert report["reasoning"]["format"] == entry.get("reasoning")
    assert report["confidence"] == ("unverified" if tools else "generic")
    evidence = report["evidence"][0]
    if tools:
        assert "tokens of the model" in evidence
    elif entry.get("rivals"):
        assert evidence.endswith(f"fit several formats: {', '.join(entry['rivals'])}")
    else:
        assert "no evidence" in evidence


@pytest.mark.parametrize("entry", CASES)
def test_explain_decides_by_the_tokens_of_a_checkpoint(
    entry: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_checkpoint(tmp_path, entry["tokens"], LISTS_TOOLS)
    check_report(explain(capsys, path), entry)


@pytest.mark.parametrize("entry", CASES[:1])
def test_explain_reads_the_tokens_of_newer_checkpoints(
    entry: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_checkpoint(tmp_path, entry["tokens"], LISTS_TOOLS, newer=True)
    check_report(explain(capsys, path), entry)


@pytest.mark.parametrize("entry", [CASES[0], CASES[-1]])
def test_explain_decides_by_the_tokens_of_a_gguf_file(
    entry: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", entry["tokens"], CONTROL, LISTS_TOOLS)
    check_report(explain(capsys, path), entry)


def test_ordinary_tokens_decide_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    path = write_gguf(tmp_path / "m.gguf", tokens, NORMAL, LISTS_TOOLS)
    report = explain(capsys, path)
    assert (report["tools"]["generic"], report["reasoning"]["format"]) == (True, None)


def test_tokens_decide_for_a_template_that_ignores_tools() -> None:
    detected = detect(IGNORES_TOOLS, frozenset(BY_MODEL["SmolLM3-3B"]["tokens"]))
    assert (detected.tools, detected.reasoning) == ("hermes_json", "think")
    assert not detected.renders_tools


def test_tokens_win_over_a_resemblance_of_the_text() -> None:
    """A template that shows what a list looks like does not write a call."""
    text = "{% if tools %}Write lists as [name(key=value)].{% endif %}" + LISTS_TOOLS
    assert detect(text).tools == "pythonic"
    assert detect(text, frozenset(BY_MODEL["LFM2.5-1.2B-Instruct"]["tokens"])).tools == "lfm2"


def test_a_rendered_call_wins_over_the_tokens() -> None:
    call = "{{ '<longcat_tool_call>' + c.function | tojson + '</longcat_tool_call>' }}"
    calls = "{% for c in m.tool_calls or [] %}" + call + "{% endfor %}{{ '<|im_end|>\\n' }}"
    source = LISTS_TOOLS.replace(" + '<|im_end|>\\n' }}\n", " }}" + calls + "\n")
    detected = detect(source, frozenset(BY_MODEL["Qwen2.5-7B-Instruct"]["tokens"]))
    assert (detected.tools, detected.confidence) == ("longcat", "verified"), detected.reasons


@pytest.mark.parametrize("markers", [("<think>", "[THINK]"), ("<seed:think>", "◁think▷")])
def test_tokens_of_two_reasoning_formats_decide_nothing(markers: tuple[str, str]) -> None:
    closed = (marker[0] + "/" + marker[1:] for marker in markers)
    assert detect(LISTS_TOOLS, frozenset((*markers, *closed))).reasoning is None
