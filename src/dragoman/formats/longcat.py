"""Like `hermes_json`, with its own tags."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="longcat",
    models="LongCat-Flash",
    example='<longcat_tool_call>{"name": "f", "arguments": {"a": 1}}</longcat_tool_call>',
    section=MarkerPair(open=("<longcat_tool_call>",), close=("</longcat_tool_call>",)),
    bodies=(JsonObjects(),),
)
