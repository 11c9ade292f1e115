"""As `gemma4`, with other marks."""

from dragoman.output.spec import Named, Pair, Tools

TOOLS = Tools(
    name="functiongemma",
    models="FunctionGemma",
    example="<start_function_call>call:f{a:<escape>v<escape>}<end_function_call>",
    section=Pair(open=("<start_function_call>",), close=("<end_function_call>",)),
    bodies=(
        Named(
            name=r"call:\s*(?P<name>[^\s{}]+)",
            written=("call:{name}",),
            bare=True,
            quotes=("<escape>",),
            schema=True,
            casts=True,
        ),
    ),
    aliases=("function_gemma",),
)
