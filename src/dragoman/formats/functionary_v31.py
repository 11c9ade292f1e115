"""The name in a tag, then the arguments."""

from dragoman.output.spec import Named, Pair, Tools

TOOLS = Tools(
    name="functionary_v31",
    models="Functionary 3.1",
    example='<function=f>{"a": 1}</function>',
    section=Pair(open=("<function=",), close=("</function>",)),
    spare=("<|eom_id|>",),
    bodies=(Named(ends=(">",), name=r"(?P<name>[^\s{}<>]+)"),),
)
