"""Calls as Python writes them, one on a line, between tags."""

from dragoman.output.spec import Pair, Pythonic, Tools

TOOLS = Tools(
    name="olmo3",
    models="OLMo 3",
    example="<function_calls>\nf(a=1)\n</function_calls>",
    section=Pair(open=("<function_calls>",), close=("</function_calls>",)),
    bodies=(Pythonic(brackets=False),),
)
