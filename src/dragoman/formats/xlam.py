"""A JSON list as the answer, bare, fenced, or after a mark."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="xlam",
    models="xLAM 2",
    example='[{"name": "f", "arguments": {"a": 1}}]',
    section=Pair(
        open=("<tool_call>", "[TOOL_CALLS]", "```json\n", "```\n"), close=("</tool_call>", "```")
    ),
    first=("[",),
    bodies=(Objects(complete=True),),
)
