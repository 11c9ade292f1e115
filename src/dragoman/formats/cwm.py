"""A name in a tag, and the arguments as one object on lines of their own."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="cwm",
    models="Code World Model",
    example='<tool: f>\n{"a": 1}\n</tool>',
    section=MarkerPair(open=("<tool: ",), close=("</tool>",)),
    bodies=(NamedObject(name_ends=(">",), name_pattern=r"(?P<name>[^\s<>{}]+)"),),
    default_reasoning="think",
    evidence="documented",
    sources="the model's prompting guide and the server in its repository",
)
