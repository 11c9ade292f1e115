"""`dragoman new-format` names the format that reads an answer, or makes one that does.

`answers.yaml` has answers in formats that do not exist. What the command writes is run: the test
passes, fails once the format is wrong, and the format drives the grammar like any other.
"""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import main
from dragoman.formats import get_tool_formats
from tests.support.paths import ROOT, TESTS
from tests.support.yaml_files import read_yaml

ANSWERS: list[dict[str, Any]] = read_yaml(TESTS / "new_format" / "answers.yaml")
CASES = [pytest.param(entry, id=entry["name"]) for entry in ANSWERS]
# one for each way to write arguments; their tests are run as they are, and with a wrong format
FAMILIES = ("json_in_tags", "name_with_number", "parameter_tags", "key_value_tags", "python_list")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
]
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
# registers the new formats beside the known ones, and prints what they do
USE_FORMATS = """
import json, sys
import dragoman.formats
dragoman.formats.__path__.append(sys.argv[1])
from dragoman.formats import get_tool_formats
from dragoman.output.library import parse_tool_call_complete
from dragoman.testing.grammars import match_grammar
from tests.support.grammars import compile_spec, make_object
tools = {"f": make_object("a", a={"type": "integer"})}
for name in sys.argv[2:]:
    example = get_tool_formats()[name].example
    grammar = compile_spec(tools, tool_format=name, tool_choice="required")
    texts = (example, "Hello.", example[: len(example) // 2])
    print(json.dumps([name, example, [match_grammar(grammar, text)[0] for text in texts]]))
"""


def run_command(
    capsys: pytest.CaptureFixture[str], folder: Path, entry: dict[str, Any], *flags: str
) -> str:
    """Run the command in this process; return what it prints."""
    answer = folder / "answer.txt"
    answer.write_text(entry["answer"], encoding="utf-8")
    if entry.get("tools"):
        (folder / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
        flags += ("--tools", str(folder / "tools.json"))
    main(["new-format", entry["name"], str(answer), *flags])
    return capsys.readouterr().out


def make_tree(capsys: pytest.CaptureFixture[str], folder: Path, names: tuple[str, ...]) -> Path:
    tree = folder / "tree"
    tree.mkdir()
    for entry in ANSWERS:
        if entry["name"] in names:
            run_command(capsys, folder, entry, "--into", str(tree))
    return tree


def run_tests(tree: Path, *arguments: str) -> dict[str, int]:
    """Run pytest in a working tree; return the number of tests by outcome."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    counts = re.findall(r"(\d+) (passed|failed|errors?)\b", result.stdout.splitlines()[-1])
    assert counts, result.stdout + result.stderr
    return {outcome: int(count) for count, outcome in counts}


@pytest.mark.parametrize("entry", CASES)
def test_a_new_format_reads_its_answer(
    entry: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    output = run_command(capsys, tmp_path, entry, "--into", str(tree), "--models", "Some Model")
    for name, arguments in entry["calls"]:
        [line] = [line for line in output.splitlines() if line.startswith(f"  {name} ")][:1]
        assert json.loads(line.removeprefix(f"  {name} ")) == arguments
    file = tree / f"src/dragoman/formats/{entry['name']}.py"
    definitions = runpy.run_path(str(file))
    assert definitions["TOOLS"].name == entry["name"]
    assert definitions["TOOLS"].models == "Some Model"
    assert max(map(len, file.read_text(encoding="utf-8").splitlines())) <= 100
    cases = read_yaml(tree / f"tests/formats/{entry['name']}.yaml")
    first = cases["cases"][0]
    assert first["text"] == entry["answer"].removesuffix("<|im_end|>\n")
    assert len(cases["cases"]) > 1 or entry.get("reasoning")
    expected = first["expected"]
    assert [call[0] for call in expected["calls"]] == [call[0] for call in entry["calls"]]
    assert expected.get("text", "").strip() == entry.get("text", "").strip()
    assert expected.get("reasoning", "") == entry.get("reasoning", "")
    if not entry.get("tools"):  # else the types are those of the tools
        assert expected["calls"] == entry["calls"]


@pytest.mark.slow
def test_the_written_test_passes_and_fails_with_a_wrong_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(capsys, tmp_path, FAMILIES)
    # all cases of one format, and one case of each
    passed = run_tests(tree, "tests", "-k", f"example or {FAMILIES[0]}")
    assert set(passed) == {"passed"}
    assert passed["passed"] > len(FAMILIES)
    for name in FAMILIES:
        file = tree / f"src/dragoman/formats/{name}.py"
        source = file.read_text(encoding="utf-8")
        wrong, count = re.subn(r'((?:section|call)=MarkerPair\(open=\("[<\[])', r"\1x", source)
        assert count, source
        file.write_text(wrong, encoding="utf-8")
    assert run_tests(tree, "tests", "-k", "example") == {"failed": len(FAMILIES)}


@pytest.mark.slow
def test_a_new_format_drives_the_grammar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tuple(entry["name"] for entry in ANSWERS)
    tree = make_tree(capsys, tmp_path, names)
    formats = str(tree / "src" / "dragoman" / "formats")
    result = subprocess.run(
        [sys.executable, "-c", USE_FORMATS, formats, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == list(names)
    for name, example, allowed in rows:
        assert "f" in example, name
        assert allowed == [True, False, False], (name, example)


# answers that a known format reads


@pytest.mark.parametrize("name", get_tool_formats())
def test_the_format_of_a_known_example_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"name": "new_one", "answer": get_tool_formats()[name].example}
    output = run_command(capsys, tmp_path, entry, "--into", str(tmp_path))
    first, *_ = output.splitlines()
    assert first.endswith("already reads the answer:")
    named = [first.split()[0], *re.findall(r"\w+", output.partition("So do: ")[2].split("\n")[0])]
    assert name in named, output
    assert "  f {" in output
    assert not (tmp_path / "src").exists()


def test_reasoning_of_a_known_format_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"name": "new_one", "answer": f"Hm.</think>\n\nSure.\n{HERMES}<|im_end|>"}
    output = run_command(capsys, tmp_path, entry)
    assert output.splitlines()[0] == "hermes_json already reads the answer:"
    assert '  get_weather {"city": "Paris"}' in output
    assert '  reasoning: "Hm."' in output or "--reasoning-format" in output


def test_anyway_makes_a_format_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run_command(capsys, tmp_path, {"name": "mine", "answer": HERMES}, "--anyway")
    assert 'name="mine"' in output
    assert 'open=("<tool_call>",)' in output


def test_undeclared_names_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"name": "mine", "answer": HERMES.replace("get_weather", "launch"), "tools": True}
    with pytest.raises(SystemExit, match="dragoman: no call found in the answer"):
        run_command(capsys, tmp_path, entry)


def test_the_answer_may_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(ANSWERS[0]["answer"]))
    main(["new-format", "mine"])
    output = capsys.readouterr().out
    assert output.startswith('"""A JSON object between markers."""\n')
    assert 'section=MarkerPair(open=("<fn_call>",), close=("</fn_call>",)),' in output


# errors are one line


@pytest.mark.parametrize(
    ("name", "answer", "flags", "message"),
    [
        ("My-Model", HERMES, (), r"NAME must be 2 to 40 lower-case .* Did you mean `my_model`\?"),
        ("class", HERMES, (), "the name .class. is a word of Python"),
        ("hermes", HERMES, (), "the name 'hermes' is taken: it means the format 'hermes_json'"),
        ("auto", HERMES, (), "the name 'auto' is taken"),
        ("mine", "", (), "the answer is empty"),
        ("mine", "<|im_end|>\n", (), "the answer is empty"),
        ("mine", "Just text, <b>bold</b> and {braces}.", (), "no call found in the answer"),
        ("mine", '<x>{"a": 1}', (), "no call found in the answer"),
        (
            "mine",
            ANSWERS[0]["answer"],
            ("--into", "{folder}/none"),
            "--into: there is no directory",
        ),
        ("mine", HERMES, ("--tools", "{folder}/answer.txt"), "--tools: .* is not valid JSON"),
        (
            "mine",
            HERMES,
            ("--tools", "{folder}/numbers.json"),
            "--tools: .* must be a list of tools",
        ),
    ],
)
def test_errors_say_what_to_do(
    name: str,
    answer: str,
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "numbers.json").write_text("[1, 2]", encoding="utf-8")
    filled = [flag.format(folder=tmp_path) for flag in flags]
    with pytest.raises(SystemExit) as stop:
        run_command(capsys, tmp_path, {"name": name, "answer": answer}, *filled)
    text = str(stop.value)
    assert re.match(f"dragoman: {message}", text), text
    assert "\n" not in text


def test_existing_files_are_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree(capsys, tmp_path, ("json_in_tags",))
    cases = tree / "tests/formats/json_in_tags.yaml"
    (tree / "src/dragoman/formats/json_in_tags.py").unlink()
    cases.write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"dragoman: .*exists.*json_in_tags\.yaml"):
        run_command(capsys, tmp_path, ANSWERS[0], "--into", str(tree))
    assert cases.read_text(encoding="utf-8") == "mine"
    assert not (tree / "src/dragoman/formats/json_in_tags.py").exists()
