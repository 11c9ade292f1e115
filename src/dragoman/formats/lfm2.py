"""As `pythonic`, between marks; the list may also be JSON."""

from dragoman.output.spec import Pair, Pythonic, Tools

TOOLS = Tools(
    name="lfm2",
    models="LFM2 and LFM2.5",
    example="<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
    section=Pair(open=("<|tool_call_start|>",), close=("<|tool_call_end|>",)),
    bodies=(Pythonic(brackets=False),),
    signs=("<|tool_list_start|>",),
    thoughts="think",
    aliases=("lfm2_5",),
)
