"""A list as Python writes it, after a mark."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="sarashina",
    models="Sarashina",
    example="<|tool_calls|>[{'name': 'f', 'arguments': {'a': True}}]",
    section=Pair(open=("<|tool_calls|>",)),
    first=("[",),
    bodies=(Objects(complete=True, python=True),),
)
