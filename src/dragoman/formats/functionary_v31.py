"""The name in a tag, then the arguments."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="functionary_v31",
    models="Functionary 3.1",
    example='<function=f>{"a": 1}</function>',
    section=MarkerPair(open=("<function=",), close=("</function>",)),
    ignored_after_call=("<|eom_id|>",),
    bodies=(NamedObject(name_ends=(">",), name_pattern=r"(?P<name>[^\s{}<>]+)"),),
)
