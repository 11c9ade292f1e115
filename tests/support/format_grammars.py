"""How much of what other projects expect models to write our grammars let them write.

    python -m tests.support.format_grammars ../shared/exam/cases.jsonl [WALKS]

A case counts where our parser finds calls in it whose arguments fit their schemas. Its text should
be allowed by the grammar of its format, with whatever it declares and calls as the tools. Many of
these texts are there because a reader must forgive them: those that are not allowed are listed by
the kind of place where they leave the grammar. Then walks through the grammar of every format
(`test_grammar_walks`), as many for each as the command line says.
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
from tests.grammar.test_random_walks import NAMES, find_errors
from tests.support.format_cases import make_parser
from tests.support.grammars import Schemas, make_tools

WALKS = 100


class Found(NamedTuple):
    """A case that counts; `why` is empty where it is allowed."""

    format: str
    id: str
    why: str
    place: str = ""


def well_formed(case: dict[str, Any]) -> Schemas | None:
    """The tools of a case whose calls fit them; None for all other cases."""
    if not case.get("format") or case["format"] == "generic_tags" or case.get("api") == "reasoning":
        return None
    if case.get("finished") is False or case.get("is_partial"):
        return None
    said = fold_spans(parse_pieces(make_parser(case), [case.get("full_text") or ""]))
    if not said.raw_calls:
        return None
    declared = [tool.get("function", tool) for tool in case.get("tools") or []]
    tools = {one["name"]: one.get("parameters") for one in declared if "name" in one}
    for name, arguments in said.raw_calls:
        try:
            jsonschema.validate(json.loads(arguments), tools.setdefault(name, None) or {})
        except (jsonschema.ValidationError, jsonschema.SchemaError):
            return None
    return tools


def judged(case: dict[str, Any], tools: Schemas) -> Found:
    """Whether the grammar of a case's format allows its text, and where not, of what kind it is."""
    name, text = case["format"], case["full_text"]
    bare = (
        case.get("api") == "tool" or (case.get("request") or {}).get("reasoning_format") == "none"
    )
    reasoning = None if bare else case.get("reasoning_format")
    header, prompt = combine_formats(name, reasoning).header, case.get("prompt_prefix") or ""
    try:
        source = compile_grammar(
            GrammarSpec(
                tools=make_tools({one: schema or {"type": "object"} for one, schema in tools.items()}),
                tool_format=name,
                reasoning_format=reasoning,
                starts_in_reasoning=make_parser(case).in_reasoning,
                header_start=prompt
                if header is not None and prompt.endswith(header.open)
                else None,
            )
        ).grammar
    except DragomanError as error:
        return Found(name, case["id"], "no grammar", error.message)
    fits, at = match_grammar(source or "", text)
    if fits:
        return Found(name, case["id"], "")
    before, after = text.encode()[:at].decode(errors="ignore"), text.encode()[at:][:40]
    place = f"{before[-40:]!r} | {after.decode(errors='ignore')!r}"
    if not after:
        return Found(name, case["id"], "unclosed", place)
    parser = make_parser(case)
    parser.feed(before)
    kind = (
        "broken arguments" if parser.is_in_call else "undeclared" if parser.is_waiting else "other"
    )
    return Found(name, case["id"], kind, place)


def examined(path: Path) -> Iterator[Found]:
    with path.open(encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            tools = well_formed(case)
            if tools is not None:
                yield judged(case, tools)


def main() -> None:
    every = list(examined(Path(sys.argv[1])))
    count, right = Counter(one.format for one in every), Counter[str]()
    left: defaultdict[str, list[Found]] = defaultdict(list)
    for one in every:
        right[one.format] += not one.why
        if one.why:
            left[one.why].append(one)
    print(f"grammars allow {right.total()} of {count.total()} well-formed cases")
    for name in sorted(count):
        print(f"  {name:26}{right[name]:4} of {count[name]:4}")
    for why, refused in sorted(left.items()):
        print(f"not allowed, {why}: {len(refused)}")
        for one in refused:
            print(f"  {one.format:20} {one.id:24} {one.place}")
    walks = int(sys.argv[2]) if sys.argv[2:] else WALKS
    chance = random.Random(walks)
    bad = [f"  {name}: {why}" for name in NAMES for why in find_errors(name, chance, walks)]
    print(f"of {2 * len(NAMES) * walks} walks through grammars, {len(bad)} went astray")
    print("\n".join(bad))


if __name__ == "__main__":
    main()
