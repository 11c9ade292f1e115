"""A name, then arguments in braces, with strings between their own markers."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="gemma4",
    models="Gemma 4",
    example='<|tool_call>call:f{city:<|"|>Paris<|"|>,n:3,o:{k:true},l:[1,2]}<tool_call|>',
    section=MarkerPair(open=("<|tool_call>",), close=("<tool_call|>",)),
    ignored_after_call=("<|tool_response>",),
    bodies=(
        NamedObject(
            name_pattern=r"call:\s*(?P<name>[^\s{}]+)",
            spellings=("call:{name}",),
            unquoted_values=True,
            string_markers=('<|"|>',),
            types_from_schema=True,
        ),
    ),
)
