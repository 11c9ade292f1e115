"""Asks llguidance's own schema compiler whether it supports a schema, and if any value matches."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.regex.integer_ranges import MAX_DIGITS
from dragoman.grammar.regex.string_formats import IPV6
from dragoman.grammar.schema import limits
from dragoman.grammar.schema.keywords import round_bound_inwards
from dragoman.grammar.schema.nodes import Number, String
from dragoman.types import Json

if TYPE_CHECKING:
    from llguidance import LLTokenizer

SchemaVerdict: TypeAlias = Literal["satisfiable", "empty", "unsupported"]

# the keyword of each field of `String` and `Number`
STRING_KEYWORDS = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "format": "format",
}
NUMBER_KEYWORDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusive_minimum": "exclusiveMinimum",
    "exclusive_maximum": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}


def node_to_schema(node: String | Number) -> dict[str, Json]:
    """Return the schema of a string or a number, without excluded patterns."""
    if isinstance(node, String):
        if node.format == "ipv6" and node.pattern is None:
            # llguidance knows no addresses that end in an IPv4 address
            node = replace(node, format=None, pattern=f"^(?:{IPV6})$")
        plain = String()
        return {"type": "string"} | {
            keyword: value
            for field, keyword in STRING_KEYWORDS.items()
            if (value := getattr(node, field)) != getattr(plain, field)
        }
    numbers = {keyword: getattr(node, field) for field, keyword in NUMBER_KEYWORDS.items()}
    return {"type": "integer" if node.integer else "number"} | {
        keyword: round_bound_inwards(keyword, json.loads(text))
        for keyword, text in numbers.items()
        if text is not None
    }


def check_schema(schema: Json) -> SchemaVerdict:
    """Check a schema without a budget: only for schemas derived from one that has passed."""
    return _check_schema_text(json.dumps(schema))


class LlguidanceChecker:
    """Checks schemas, each of them once, within the budget of the client's schema."""

    def __init__(self, budget: limits.SchemaBudget) -> None:
        self._budget = budget
        self._verdicts: dict[str, SchemaVerdict] = {}

    def check(self, schema: Json) -> SchemaVerdict:
        text = json.dumps(schema)
        if text not in self._verdicts:
            self._budget.count_check()
            self._verdicts[text] = _check_schema_text(text)
        return self._verdicts[text]

    def check_node(self, node: String | Number) -> SchemaVerdict:
        if node in (String(), Number()):
            return "satisfiable"
        if isinstance(node, Number) and node.integer and node.multiple_of is None:
            return _check_integer(node)
        return self.check(node_to_schema(node))

    def check_excluded(self, node: String) -> SchemaVerdict:
        """Check a string with excluded patterns, which no schema can express."""
        grammar = f"start: TEXT\nTEXT: {build_text_terms(node)}"
        if grammar not in self._verdicts:
            self._budget.count_check()
            self._verdicts[grammar] = _check_lark(grammar)
        return self._verdicts[grammar]

    def pattern_matches(self, text: str, pattern: str) -> bool | None:
        """Whether a pattern is found in a text, or None if the pattern is unsupported."""
        verdict = self.check({"const": text, "pattern": pattern})
        return None if verdict == "unsupported" else verdict == "satisfiable"


def _check_integer(node: Number) -> SchemaVerdict:
    """Check whether the bounds of an integer, which we write ourselves, are near enough to zero."""
    lower, upper = (node.minimum, node.exclusive_minimum), (node.maximum, node.exclusive_maximum)
    most = 10 ** (MAX_DIGITS - 1)
    is_possible = all(json.loads(bound) < most for bound in lower if bound is not None) and all(
        json.loads(bound) > -most for bound in upper if bound is not None
    )
    return "satisfiable" if is_possible else "unsupported"


def build_text_terms(node: String) -> str:
    """Build the body of a terminal for the text of a string without a format."""
    most = "" if node.max_length is None else node.max_length
    terms = [f"/(?s:.{{{node.min_length},{most}}})/"]
    terms += [f"/{to_full_match(node.pattern)}/"] if node.pattern is not None else []
    terms += [f"~/{to_full_match(pattern)}/" for pattern in node.excluded_patterns]
    return " & ".join(terms)


def _check_lark(grammar: str) -> SchemaVerdict:
    from llguidance import LLMatcher

    matcher = LLMatcher(_make_byte_tokenizer(), grammar, log_level=0)
    matcher.compute_bitmask()
    if not matcher.is_error():
        return "satisfiable"
    return "empty" if matcher.get_error().startswith("NoExtension") else "unsupported"


@lru_cache(maxsize=1)
def _make_byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _check_schema_text(text: str) -> SchemaVerdict:
    from llguidance import LLMatcher

    try:
        error = str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)))
    except (TypeError, ValueError, RuntimeError):
        return "unsupported"
    if not error:
        return "satisfiable"
    return "empty" if error.startswith("Unsatisfiable") else "unsupported"
