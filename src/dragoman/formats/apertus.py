"""A list of objects in which the function's name is the key."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="apertus",
    models="Apertus",
    example='<|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>',
    section=MarkerPair(open=("<|tools_prefix|>",), close=("<|tools_suffix|>",)),
    bodies=(JsonObjects(keyed=True),),
    aliases=("apertus2509",),
)
