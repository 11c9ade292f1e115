"""A JSON list between tokens without a name of their own."""

from dragoman.output.spec import JsonObjects, MarkerPair, ReasoningFormat, ToolFormat

SOURCES = "the vLLM plugin of omni-npu; no template was found"
TOOLS = ToolFormat(
    name="openpangu",
    models="openPangu Embedded and Ultra",
    example='[unused11][{"name": "f", "arguments": {"a": 1}}][unused12]',
    section=MarkerPair(open=("[unused11]",), close=("[unused12]",)),
    bodies=(JsonObjects(),),
    ignored_after_call=("[unused10]",),
    default_reasoning="openpangu",
    aliases=("pangu",),
    evidence="parsers",
    sources=SOURCES,
)
REASONING = ReasoningFormat(
    name="openpangu",
    models="openPangu Embedded and Ultra",
    example="[unused16]reasoning[unused17]answer",
    open=("[unused16]",),
    close=("[unused17]",),
    ended_by=("[unused11]",),
    aliases={"pangu": False},
    evidence="parsers",
    sources=SOURCES,
)
