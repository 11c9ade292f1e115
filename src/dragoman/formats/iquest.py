"""Like `glm47`, in another tag."""

from dragoman.formats import glm47
from dragoman.output.spec import MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="iquest",
    models="IQuest Q1",
    example=("<iquest_tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></iquest_tool_call>"),
    section=MarkerPair(open=("<iquest_tool_call>",), close=("</iquest_tool_call>",)),
    bodies=glm47.TOOLS.bodies,
    default_reasoning="think",
    aliases=("iquest_q1",),
    evidence="parsers",
    sources="SGLang 0.5.23 and smg 1.13, whose cases are recorded from the model",
)
