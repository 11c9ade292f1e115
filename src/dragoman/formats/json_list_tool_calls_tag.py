"""A JSON list between tags."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="json_list_tool_calls_tag",
    models="Jamba, Hunyuan-A13B, Apriel 1.5 and 1.6",
    example='<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>',
    section=MarkerPair(open=("<tool_calls>",), close=("</tool_calls>",)),
    bodies=(JsonObjects(),),
    aliases=("jamba", "hunyuan_a13b"),
)
