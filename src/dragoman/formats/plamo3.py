"""A name and the arguments, each between markers of its own."""

from dragoman.output.spec import GAP, MarkerPair, NamedObject, ReasoningFormat, ToolFormat


def mark(side: str, name: str) -> str:
    """Write a marker: `side` is `begin` or `end`."""
    return f"<|plamo:{side}_{name}:plamo|>"


BEGIN_ARGUMENTS = mark("end", "tool_name") + mark("begin", "tool_arguments")
SOURCES = "vLLM 0.32"
TOOLS = ToolFormat(
    name="plamo3",
    models="PLaMo 3",
    example=(
        mark("begin", "tool_requests")
        + mark("begin", "tool_request")
        + mark("begin", "tool_name")
        + f"f{BEGIN_ARGUMENTS}<|plamo:constrain|>json<|plamo:msg|>"
        + '{"a": 1}'
        + mark("end", "tool_arguments")
        + mark("end", "tool_request")
        + mark("end", "tool_requests")
    ),
    section=MarkerPair(
        open=(mark("begin", "tool_requests"),), close=(mark("end", "tool_requests"),)
    ),
    call=MarkerPair(
        open=(mark("begin", "tool_request") + GAP + mark("begin", "tool_name"),),
        close=(mark("end", "tool_request"),),
    ),
    bodies=(
        NamedObject(
            name_ends=(
                f"{BEGIN_ARGUMENTS}<|plamo:constrain|>json<|plamo:msg|>",
                f"{BEGIN_ARGUMENTS}<|plamo:msg|>",
            ),
            name_pattern=r"(?P<name>[^\s{}<>|]+)",
            fence=(mark("end", "tool_arguments"),),
        ),
    ),
    section_optional=True,
    ignored_after_call=("<|plamo:tag|>",),
    evidence="parsers",
    sources=SOURCES,
)
REASONING = ReasoningFormat(
    name="plamo3",
    models="PLaMo 3",
    example=f"{mark('begin', 'think')}reasoning{mark('end', 'think')}answer",
    open=(mark("begin", "think"),),
    close=(mark("end", "think"),),
    ended_by=(mark("begin", "tool_requests"),),
    starts_inside=True,
    evidence="parsers",
    sources=SOURCES,
)
