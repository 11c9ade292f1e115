"""Asks llguidance's own schema compiler whether it supports a schema, and if any value matches."""

from __future__ import annotations

import json
from typing import Literal, TypeAlias

from dragoman.grammar.schema import limits
from dragoman.grammar.schema.nodes import Number, String
from dragoman.types import Json

SchemaVerdict: TypeAlias = Literal["satisfiable", "empty", "unsupported"]

_STRING_KEYWORDS = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "format": "format",
}
_NUMBER_KEYWORDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusive_minimum": "exclusiveMinimum",
    "exclusive_maximum": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}


def node_to_schema(node: String | Number) -> dict[str, Json]:
    if isinstance(node, String):
        strings = {keyword: getattr(node, field) for field, keyword in _STRING_KEYWORDS.items()}
        return {"type": "string"} | {
            keyword: value for keyword, value in strings.items() if value is not None
        }
    numbers = {keyword: getattr(node, field) for field, keyword in _NUMBER_KEYWORDS.items()}
    return {"type": "integer" if node.integer else "number"} | {
        keyword: json.loads(text) for keyword, text in numbers.items() if text is not None
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
        is_plain = node in (String(), Number(), Number(integer=True))
        return "satisfiable" if is_plain else self.check(node_to_schema(node))

    def pattern_matches(self, text: str, pattern: str) -> bool | None:
        """Whether a pattern is found in a text, or None if the pattern is unsupported."""
        verdict = self.check({"const": text, "pattern": pattern})
        return None if verdict == "unsupported" else verdict == "satisfiable"


def _check_schema_text(text: str) -> SchemaVerdict:
    from llguidance import LLMatcher

    try:
        error = str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)))
    except (TypeError, ValueError, RuntimeError):
        return "unsupported"
    if not error:
        return "satisfiable"
    return "empty" if error.startswith("Unsatisfiable") else "unsupported"
