"""JSON objects, one per line, between tags."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="minimax_m1",
    models="MiniMax-M1",
    example='<tool_calls>\n{"name": "f", "arguments": {"a": 1}}\n</tool_calls>',
    section=MarkerPair(open=("<tool_calls>",), close=("</tool_calls>",)),
    bodies=(JsonObjects(),),
    aliases=("minimax",),
)
