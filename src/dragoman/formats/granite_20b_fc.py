"""A mark before every JSON object; nothing closes them."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="granite_20b_fc",
    models="Granite 20B function calling",
    example='<function_call> {"name": "f", "arguments": {"a": 1}}',
    section=Pair(open=("<function_call>",), close=("</function_call>",)),
    bodies=(Objects(),),
    aliases=("granite-20b-fc",),
)
