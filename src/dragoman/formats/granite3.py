"""A JSON list after a marker, without a closing marker."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="granite3",
    models="Granite 3",
    example='<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]',
    section=MarkerPair(open=("<|tool_call|>", "<tool_call>"), close=("</tool_call>",)),
    bodies=(JsonObjects(),),
    aliases=("granite",),
)
