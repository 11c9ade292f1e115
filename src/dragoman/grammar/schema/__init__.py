"""JSON Schema: parses a client's schema into a few kinds of nodes that the grammar writers use.

`parse_schema` takes a schema and returns a `ParsedSchema`: a root node, the definitions that it
refers to, and warnings about what is not enforced. For example,

    {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
     "additionalProperties": false, "$defs": {"n": {"type": "integer", "minimum": 0}}}

becomes `Object((("n", Number(integer=True, minimum="0")),), frozenset({"n"}), Nothing())`.

The model writes arguments in its own format, so llguidance's schema compiler, which only knows
JSON, cannot be used for most schemas. And a schema is a set of assertions, while a grammar lists
what is allowed. So `schema_parser` parses the keywords (`keywords`) and `algebra` computes what all
parts of a schema allow together; `normalize` then removes definitions that no value matches.
Where nodes cannot express a result, `schema_export` copies that part of the schema for llguidance.
Schemas are untrusted input: `limits` bounds the work. `diagnostics` reports errors and warnings.

Of the grammar compiler, this package uses `regex` and the errors in `complexity`.
"""
