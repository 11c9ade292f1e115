"""Like `gemma4`, with other markers."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="functiongemma",
    models="FunctionGemma",
    example="<start_function_call>call:f{a:<escape>v<escape>}<end_function_call>",
    section=MarkerPair(open=("<start_function_call>",), close=("<end_function_call>",)),
    bodies=(
        NamedObject(
            name_pattern=r"call:\s*(?P<name>[^\s{}]+)",
            spellings=("call:{name}",),
            unquoted_values=True,
            string_markers=("<escape>",),
            types_from_schema=True,
            casts_strings=True,
        ),
    ),
    aliases=("function_gemma",),
)
