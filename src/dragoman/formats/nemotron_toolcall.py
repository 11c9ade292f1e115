"""A JSON list between upper-case tags."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="nemotron_toolcall",
    models="Nemotron Nano v2",
    example='<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>',
    section=MarkerPair(open=("<TOOLCALL>",), close=("</TOOLCALL>",)),
    bodies=(JsonObjects(),),
    aliases=("llama_nemotron",),
)
