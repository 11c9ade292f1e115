"""A JSON list between tags."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="json_list_tool_calls_tag",
    models="Jamba, Hunyuan-A13B, Apriel 1.5 and 1.6",
    example='<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>',
    section=Pair(open=("<tool_calls>",), close=("</tool_calls>",)),
    bodies=(Objects(),),
    aliases=("jamba", "hunyuan_a13b"),
)
