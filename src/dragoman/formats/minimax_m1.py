"""JSON objects, one on a line, between tags."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="minimax_m1",
    models="MiniMax-M1",
    example='<tool_calls>\n{"name": "f", "arguments": {"a": 1}}\n</tool_calls>',
    section=Pair(open=("<tool_calls>",), close=("</tool_calls>",)),
    bodies=(Objects(),),
    aliases=("minimax",),
)
