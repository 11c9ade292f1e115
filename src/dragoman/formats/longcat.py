"""As `hermes_json`, between tags of its own."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="longcat",
    models="LongCat-Flash",
    example='<longcat_tool_call>{"name": "f", "arguments": {"a": 1}}</longcat_tool_call>',
    section=Pair(open=("<longcat_tool_call>",), close=("</longcat_tool_call>",)),
    bodies=(Objects(),),
)
