"""Like `pythonic`, between markers; the list may also be JSON."""

from dragoman.output.spec import MarkerPair, PythonCalls, ToolFormat

TOOLS = ToolFormat(
    name="lfm2",
    models="LFM2 and LFM2.5",
    example="<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
    section=MarkerPair(open=("<|tool_call_start|>",), close=("<|tool_call_end|>",)),
    bodies=(PythonCalls(brackets=False),),
    template_hints=("<|tool_list_start|>",),
    default_reasoning="think",
    aliases=("lfm2_5", "lfm2.5"),
)
