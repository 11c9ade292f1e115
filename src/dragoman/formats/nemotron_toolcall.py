"""A JSON list between capital tags."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="nemotron_toolcall",
    models="Nemotron Nano v2",
    example='<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>',
    section=Pair(open=("<TOOLCALL>",), close=("</TOOLCALL>",)),
    bodies=(Objects(),),
)
