"""A JSON list, as servers that force a call constrain it."""

from dragoman.output.spec import JsonObjects, ToolFormat

TOOLS = ToolFormat(
    name="json_array_constrained",
    models="any, when a call is forced by a JSON schema",
    example='[{"name": "f", "parameters": {"a": 1}}]',
    unmarked_starts=("[",),
    bodies=(JsonObjects(requires_arguments=True),),
)
