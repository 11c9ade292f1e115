"""A mark, then a name and its arguments; or, from older models, a JSON list."""

from dragoman.output.spec import Named, Objects, Pair, Tools

TOOLS = Tools(
    name="mistral",
    models="Mistral, Nemo, Small, Large, Magistral, Devstral, Ministral",
    example='[TOOL_CALLS]f[ARGS]{"a": 1}',
    section=Pair(open=("[TOOL_CALLS]",)),
    bodies=(
        Objects(),
        Named(
            ends=("[ARGS]",),
            name=r"(?P<name>[^\s{}\[\]]+)(?:\[CALL_ID\](?P<id>[^\s\[\]]+))?",
            written=("{name}", "{name}[CALL_ID]{id}"),
        ),
    ),
)
