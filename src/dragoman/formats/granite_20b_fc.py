"""A marker before each JSON object, without closing markers."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="granite_20b_fc",
    models="Granite 20B function calling",
    example='<function_call> {"name": "f", "arguments": {"a": 1}}',
    section=MarkerPair(open=("<function_call>",), close=("</function_call>",)),
    bodies=(JsonObjects(),),
    aliases=("granite-20b-fc",),
)
