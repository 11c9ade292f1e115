"""Calls in Python syntax, one per line, between tags."""

from dragoman.output.spec import MarkerPair, PythonCalls, ToolFormat

TOOLS = ToolFormat(
    name="olmo3",
    models="OLMo 3",
    example="<function_calls>\nf(a=1)\n</function_calls>",
    section=MarkerPair(open=("<function_calls>",), close=("</function_calls>",)),
    bodies=(PythonCalls(brackets=False),),
)
