"""A marker, then a name and its arguments; or, from older models, a JSON list."""

from dragoman.output.spec import JsonObjects, MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="mistral",
    models="Mistral, Nemo, Small, Large, Magistral, Devstral, Ministral",
    example='[TOOL_CALLS]f[ARGS]{"a": 1}',
    section=MarkerPair(open=("[TOOL_CALLS]",)),
    bodies=(
        JsonObjects(),
        NamedObject(
            name_ends=("[ARGS]",),
            name_pattern=r"(?P<name>[^\s{}\[\]]+)(?:\[CALL_ID\](?P<id>[^\s\[\]]+))?",
            spellings=("{name}", "{name}[CALL_ID]{id}"),
            name_may_precede=True,
        ),
    ),
    aliases=("mistral_v13",),
)
