"""Writes a new format into a working tree: its file, its cases and its test.

The cases are the example answer and changed copies of it, with what the new format reads. The test
reads them in pieces of every size, so a contributor sees at once whether the format is right.
Nothing that exists is overwritten.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dragoman.formats import DETECTED, UNPARSED, find_reasoning, find_tools
from dragoman.new_format.infer import InferredFormat
from dragoman.new_format.readers import Declarations, Reading, read_answer
from dragoman.new_format.source import write_source
from dragoman.options import suggest
from dragoman.output.spec import GAP, ReasoningFormat

NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")
# a text that a block in YAML keeps as it is
BLOCK = re.compile(r"[^\s](?:[ -~\u00a1-\ud7ff\n]*[^\s])?(?<! )")
FORMATS, TESTS = Path("src/dragoman/formats"), Path("tests/formats")
TEST = '''"""The answer that `{name}` was made from is read as expected, however it is cut."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.output.library import OutputParser
from dragoman.testing import check_format

HERE = Path(__file__).parent
FILE = HERE.parents[1] / "src" / "dragoman" / "formats" / "{name}.py"
FILE_SPEC = spec_from_file_location("{name}", FILE)
assert FILE_SPEC is not None
assert FILE_SPEC.loader is not None
FORMAT = module_from_spec(FILE_SPEC)
FILE_SPEC.loader.exec_module(FORMAT)
CASES = yaml.safe_load((HERE / "{name}.yaml").read_text(encoding="utf-8"))["cases"]
REASONING = {reasoning}
{declarations}

@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_answer_is_read_as_expected(case: dict[str, Any]) -> None:
    output = check_format(lambda: OutputParser(FORMAT.TOOLS, REASONING), case["text"])
    expected = {{"text": "", "reasoning": "", "calls": [], **case["expected"]}}
    calls = [list(call) for call in output.calls]
    assert {{"text": output.text, "reasoning": output.reasoning, "calls": calls}} == expected
'''
DECLARED = '''TOOLS: list[dict[str, Any]] = json.loads(
    """
{tools}
"""
)
CALLS = json.loads(
    """
{calls}
"""
)
'''
DECLARED_TEST = """

def test_arguments_have_the_types_of_the_declared_tools() -> None:
    output = check_format(
        lambda: OutputParser(FORMAT.TOOLS, REASONING, tools=TOOLS), CASES[0]["text"]
    )
    assert [list(call) for call in output.calls] == CALLS
"""


class InvalidName(ValueError):
    """A name that a new format cannot have."""


def check_name(name: str) -> None:
    """Raise `InvalidName` unless a new format can have this name."""
    if keyword.iskeyword(name):
        raise InvalidName(f"the name {name!r} is a word of Python; choose another.")
    if not NAME.fullmatch(name):
        text = re.sub(r"\W+|_+", "_", name.lower()).strip("_")
        hint = suggest(name, [text], min_similarity=0.3) if NAME.fullmatch(text) else ""
        raise InvalidName(
            "NAME must be 2 to 40 lower-case letters, digits and underscores, and begin with a "
            f"letter, not {name!r}.{hint}"
        )
    for find in (find_tools, find_reasoning):
        try:
            taken = find(name).name if name not in UNPARSED | DETECTED else name
        except ValueError:
            continue
        raise InvalidName(f"the name {name!r} is taken: it means the format {taken!r}.")


def make_files(
    inferred: InferredFormat, answer: str, declared: Declarations | None
) -> dict[Path, str]:
    """Return the contents of the three files by path in the working tree."""
    tools, reasoning = inferred.tools, inferred.reading.reasoning
    own_reasoning = reasoning if isinstance(reasoning, ReasoningFormat) else None
    return {
        FORMATS / f"{tools.name}.py": write_source(inferred.summary, tools, own_reasoning),
        TESTS / f"{tools.name}.yaml": _write_cases(inferred, answer),
        TESTS / f"test_{tools.name}.py": _write_test(inferred, declared),
    }


def write_files(tree: Path, files: dict[Path, str]) -> None:
    """Write files into a tree; raise `FileExistsError` if one of them exists."""
    for path in files:
        if (tree / path).exists():
            raise FileExistsError(17, "the file exists", str(tree / path))
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(content, encoding="utf-8")


def _write_cases(inferred: InferredFormat, answer: str) -> str:
    """Return the cases: the answer, and changed copies of it with the same calls."""
    reasoning = inferred.reading.reasoning
    settings: dict[str, str] = {"format": inferred.tools.name}
    if reasoning is not None:
        own = isinstance(reasoning, ReasoningFormat)
        settings["reasoning"] = inferred.tools.name if own else str(reasoning)
    original = _read(inferred, answer)
    cases: list[dict[str, Any]] = []
    for name, text, count, is_lenient in _list_variants(inferred, answer):
        reading = _read(inferred, text)
        if reading.calls != original.calls * count:
            continue  # the format leaves this undefined
        case: dict[str, Any] = {"name": name, "any_tool": True}
        case |= {"lenient": True} if is_lenient else {}
        cases.append({**case, "text": text, "expected": _describe_reading(reading)})
    return f"with: {_write_flow(settings)}\ncases:\n" + "\n".join(map(_write_case, cases))


def _write_case(case: dict[str, Any]) -> str:
    lines = [f"{key}: {_write_value(key, value)}" for key, value in case.items()]
    return "".join(f"{'  - ' if not index else '    '}{line}\n" for index, line in enumerate(lines))


def _write_value(key: str, value: object) -> str:
    """Return a value as YAML in one line; texts of several lines are blocks."""
    if key != "text" or not isinstance(value, str):
        return _write_flow(value)
    if "\n" in value and BLOCK.fullmatch(value):
        return "|-\n" + "\n".join(f"      {line}".rstrip() for line in value.split("\n"))
    return json.dumps(value, ensure_ascii=False)


def _write_flow(value: object) -> str:
    text: str = yaml.safe_dump(
        value, allow_unicode=True, sort_keys=False, default_flow_style=True, width=100_000
    )
    return text.removesuffix("...\n").strip()


def _list_variants(inferred: InferredFormat, answer: str) -> Iterator[tuple[str, str, int, bool]]:
    """Yield name, text and number of repetitions of cases, and whether a case is lenient."""
    tools = inferred.tools
    yield "the example", answer, 1, False
    if inferred.reading.reasoning is None:
        yield "text before the call", f"Let me see.\n{answer}", 1, False
        yield "the calls twice", f"{answer}\n{answer}", 2, False
    for marker in (*tools.section.close, *tools.call.close)[:1]:
        last = marker.split(GAP)[-1]
        if answer.rstrip().endswith(last):
            text = answer.rstrip().removesuffix(last)
            yield "the last marker is missing", text, 1, True


def _read(inferred: InferredFormat, text: str) -> Reading:
    return read_answer(inferred.tools, inferred.reading.reasoning, text, None)


def _describe_reading(reading: Reading) -> dict[str, Any]:
    expected: dict[str, Any] = {}
    if reading.text:
        expected["text"] = reading.text
    if reading.reasoning_text:
        expected["reasoning"] = reading.reasoning_text
    calls = [[name, json.loads(arguments)] for name, arguments in reading.calls]
    return {**expected, "calls": calls}


def _write_test(inferred: InferredFormat, declared: Declarations | None) -> str:
    reasoning = inferred.reading.reasoning
    own = isinstance(reasoning, ReasoningFormat)
    text = TEST.format(
        name=inferred.tools.name,
        reasoning="FORMAT.REASONING" if own else json.dumps(reasoning).replace("null", "None"),
        declarations="" if declared is None else _write_declarations(inferred, declared),
    )
    if declared is None:
        return text
    future = "from __future__ import annotations\n"
    return text.replace(future, f"{future}\nimport json") + DECLARED_TEST


def _write_declarations(inferred: InferredFormat, declared: Declarations) -> str:
    calls = [[name, json.loads(arguments)] for name, arguments in inferred.reading.calls]
    tools, expected = (
        json.dumps(value, indent=1, ensure_ascii=False).replace("\\", "\\\\")
        for value in (list(declared), calls)
    )
    return DECLARED.format(tools=tools, calls=expected)
