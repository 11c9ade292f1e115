"""Parses what a schema states about strings and numbers."""

from __future__ import annotations

import json
from dataclasses import replace

from dragoman.grammar.regex.schema_pattern import translate_pattern
from dragoman.grammar.schema import keywords
from dragoman.grammar.schema.algebra import bounds
from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
from dragoman.grammar.schema.llguidance_check import (
    NUMBER_KEYWORDS,
    STRING_KEYWORDS,
    LlguidanceChecker,
)
from dragoman.grammar.schema.nodes import Node, Number, String
from dragoman.grammar.schema.simplify import NOTHING
from dragoman.types import Json

_NUMBER_FIELDS = {keyword: field for field, keyword in NUMBER_KEYWORDS.items()}
# in the order in which they are dropped where llguidance does not support all of them
_DROPPED_FIELDS = ("max_length", "min_length", "format", "pattern")


class ScalarParser:
    """Parses the keywords about strings and numbers; drops those that llguidance rejects."""

    def __init__(self, checker: LlguidanceChecker, diagnostics: SchemaDiagnostics) -> None:
        self._checker = checker
        self._diagnostics = diagnostics

    def parse_string(self, schema: dict[str, Json], place: str) -> Node:
        fields = {
            field: schema[keyword]
            for field, keyword in STRING_KEYWORDS.items()
            if keyword in schema
        }
        lengths = ("min_length", "max_length")
        fields |= {field: int(fields[field]) for field in lengths if field in fields}
        if fields.get("format") not in keywords.FORMATS:
            fields.pop("format", None)
        if "pattern" in fields:
            fields["pattern"] = translate_pattern(fields["pattern"])
            if fields["pattern"] is None:
                self._diagnostics.report_unenforced(f"{place}/pattern")
        keyword_of_field = {field: STRING_KEYWORDS[field] for field in _DROPPED_FIELDS}
        return self._drop_unsupported(String(**fields), keyword_of_field, place)

    def parse_number(self, schema: dict[str, Json], place: str, *, integer: bool) -> Node:
        fields, keyword_of_field = {}, {}
        for bound, (keyword, value) in keywords.read_numeric_bounds(schema).items():
            keyword_of_field[_NUMBER_FIELDS[bound]] = keyword
            fields[_NUMBER_FIELDS[bound]] = json.dumps(value)
        node = self._drop_unsupported(Number(integer, **fields), keyword_of_field, place)
        if not isinstance(node, Number):
            return node
        return bounds.collapse_range(bounds.drop_weaker_bounds(node))

    def _drop_unsupported(
        self, node: String | Number, keyword_of_field: dict[str, str], place: str
    ) -> Node:
        """Drop the constraints that llguidance does not support, first those by themselves."""
        if bounds.has_empty_range(node):
            return NOTHING
        plain: String | Number = String() if isinstance(node, String) else Number(node.integer)
        for only_by_itself in (True, False):
            for field, keyword in keyword_of_field.items():
                value, default = getattr(node, field), getattr(plain, field)
                if value == default or self._checker.check_node(node) != "unsupported":
                    continue
                change: dict[str, Json] = {field: value}
                alone = replace(plain, **change)
                if not only_by_itself or self._checker.check_node(alone) == "unsupported":
                    self._diagnostics.report_unenforced(f"{place}/{keyword}")
                    change[field] = default
                    node = replace(node, **change)
        return NOTHING if self._checker.check_node(node) == "empty" else node
