"""A name, then arguments in braces, strings between marks of their own."""

from dragoman.output.spec import Named, Pair, Tools

TOOLS = Tools(
    name="gemma4",
    models="Gemma 4",
    example='<|tool_call>call:f{city:<|"|>Paris<|"|>,n:3,o:{k:true},l:[1,2]}<tool_call|>',
    section=Pair(open=("<|tool_call>",), close=("<tool_call|>",)),
    spare=("<|tool_response>",),
    bodies=(
        Named(
            name=r"call:\s*(?P<name>[^\s{}]+)",
            written=("call:{name}",),
            bare=True,
            quotes=('<|"|>',),
            schema=True,
        ),
    ),
)
