"""Measures how many texts from the tests of other projects our grammars allow.

    python -m tests.support.format_grammars ../shared/exam/cases.jsonl [WALKS]

A case counts if our parser finds calls in it whose arguments satisfy their schemas. The grammar of
its format, with the declared and called tools, should allow its text. Many of these texts exist
because a parser must tolerate them: those that are not allowed are listed by the kind of place
where they violate the grammar. Then random walks through the grammar of every format follow (see
`random_walks`), as many for each as the command line says.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

from dragoman.errors import DragomanError
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.output.library import combine_formats
from dragoman.testing.format_checks import fold_spans, parse_pieces
from dragoman.testing.grammars import match_grammar
from tests.support.format_cases import make_parser
from tests.support.grammars import Schemas, make_tools
from tests.support.random_walks import NAMES, find_errors

WALKS = 100


class CaseResult(NamedTuple):
    """The result of a case; `problem` is empty if its text is allowed."""

    format: str
    id: str
    problem: str
    place: str = ""


def list_tools_of_valid_case(case: dict[str, Any]) -> Schemas | None:
    """The tools of a case whose calls satisfy their schemas; None for all other cases."""
    if not case.get("format") or case["format"] == "generic_tags" or case.get("api") == "reasoning":
        return None
    if case.get("finished") is False or case.get("is_partial"):
        return None
    output = fold_spans(parse_pieces(make_parser(case), [case.get("full_text") or ""]))
    if not output.raw_calls:
        return None
    declared = [tool.get("function", tool) for tool in case.get("tools") or []]
    tools = {tool["name"]: tool.get("parameters") for tool in declared if "name" in tool}
    for name, arguments in output.raw_calls:
        try:
            jsonschema.validate(json.loads(arguments), tools.setdefault(name, None) or {})
        except (jsonschema.ValidationError, jsonschema.SchemaError):
            return None
    return tools


def check_case(case: dict[str, Any], tools: Schemas) -> CaseResult:
    """Check whether the grammar of its format allows the text of a case."""
    name, text = case["format"], case["full_text"]
    has_no_reasoning = (
        case.get("api") == "tool" or (case.get("request") or {}).get("reasoning_format") == "none"
    )
    reasoning = None if has_no_reasoning else case.get("reasoning_format")
    header, prompt = combine_formats(name, reasoning).header, case.get("prompt_prefix") or ""
    try:
        source = compile_grammar(
            GrammarSpec(
                tools=make_tools(
                    {called: schema or {"type": "object"} for called, schema in tools.items()}
                ),
                tool_format=name,
                reasoning_format=reasoning,
                starts_in_reasoning=make_parser(case).in_reasoning,
                header_start=prompt
                if header is not None and prompt.endswith(header.open)
                else None,
            )
        ).grammar
    except DragomanError as error:
        return CaseResult(name, case["id"], "no grammar", error.message)
    matches, end = match_grammar(source or "", text)
    if matches:
        return CaseResult(name, case["id"], "")
    before, after = text.encode()[:end].decode(errors="ignore"), text.encode()[end:][:40]
    place = f"{before[-40:]!r} | {after.decode(errors='ignore')!r}"
    if not after:
        return CaseResult(name, case["id"], "unclosed", place)
    parser = make_parser(case)
    parser.feed(before)
    kind = (
        "broken arguments" if parser.is_in_call else "undeclared" if parser.is_waiting else "other"
    )
    return CaseResult(name, case["id"], kind, place)


def iter_results(path: Path) -> Iterator[CaseResult]:
    with path.open(encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            tools = list_tools_of_valid_case(case)
            if tools is not None:
                yield check_case(case, tools)


def main() -> None:
    results = list(iter_results(Path(sys.argv[1])))
    count, allowed = Counter(result.format for result in results), Counter[str]()
    rejected: defaultdict[str, list[CaseResult]] = defaultdict(list)
    for result in results:
        allowed[result.format] += not result.problem
        if result.problem:
            rejected[result.problem].append(result)
    print(f"grammars allow {allowed.total()} of {count.total()} well-formed cases")
    for name in sorted(count):
        print(f"  {name:26}{allowed[name]:4} of {count[name]:4}")
    for problem, cases in sorted(rejected.items()):
        print(f"not allowed, {problem}: {len(cases)}")
        for case in cases:
            print(f"  {case.format:20} {case.id:24} {case.place}")
    walks = int(sys.argv[2]) if sys.argv[2:] else WALKS
    chance = random.Random(walks)
    errors = [f"  {name}: {error}" for name in NAMES for error in find_errors(name, chance, walks)]
    print(f"of {2 * len(NAMES) * walks} random walks, {len(errors)} gave an invalid answer")
    print("\n".join(errors))


if __name__ == "__main__":
    main()
