"""A JSON list as the answer, bare, fenced, or after a marker."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="xlam",
    models="xLAM 2",
    example='[{"name": "f", "arguments": {"a": 1}}]',
    section=MarkerPair(
        open=("<tool_call>", "[TOOL_CALLS]", "```json\n", "```\n"), close=("</tool_call>", "```")
    ),
    unmarked_starts=("[",),
    bodies=(JsonObjects(requires_arguments=True),),
)
