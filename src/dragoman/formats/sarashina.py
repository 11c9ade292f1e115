"""A list in Python syntax, after a marker."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="sarashina",
    models="Sarashina",
    example="<|tool_calls|>[{'name': 'f', 'arguments': {'a': True}}]",
    section=MarkerPair(open=("<|tool_calls|>",)),
    unmarked_starts=("[",),
    bodies=(JsonObjects(requires_arguments=True, python=True),),
)
