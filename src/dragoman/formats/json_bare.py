"""A JSON object or list anywhere in the answer."""

from dragoman.output.spec import Objects, Tools

TOOLS = Tools(
    name="json_bare",
    models="any model that answers in JSON",
    example='{"name": "f", "arguments": {"a": 1}}',
    first=("{", "["),
    bodies=(Objects(),),
    aliases=("json",),
)
