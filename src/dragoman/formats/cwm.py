"""A name in a tag; then one object, or the text of the only parameter, on lines of its own."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="cwm",
    models="Code World Model",
    example='<tool: f>\n{"a": 1}\n</tool>',
    section=MarkerPair(open=("<tool: ",), close=("</tool>",)),
    bodies=(NamedObject(name_ends=(">",), name_pattern=r"(?P<name>[^\s<>{}]+)", free_text=True),),
    default_reasoning="think",
    evidence="documented",
    sources="the model's prompting guide and the server in its repository",
)
