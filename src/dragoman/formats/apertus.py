"""A list of objects in which the function's name is the key."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="apertus",
    models="Apertus",
    example='<|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>',
    section=Pair(open=("<|tools_prefix|>",), close=("<|tools_suffix|>",)),
    bodies=(Objects(keyed=True),),
)
