"""A JSON object or list anywhere in the answer."""

from dragoman.output.spec import JsonObjects, ToolFormat

TOOLS = ToolFormat(
    name="json_bare",
    models="any model that answers in JSON",
    example='{"name": "f", "arguments": {"a": 1}}',
    unmarked_starts=("{", "["),
    bodies=(JsonObjects(),),
    aliases=("json",),
)
