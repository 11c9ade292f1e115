"""A name, then keys and values, each after a marker of its own."""

from dragoman.output.spec import MarkerPair, ReasoningFormat, TaggedArguments, ToolFormat

SOURCES = "Upstage's vLLM fork and its tests"
TOOLS = ToolFormat(
    name="solar_open2",
    models="Solar Open 2",
    example=(
        "<|tool_call:start|>f\n<|tool_arg:start|>a<|tool_arg:value|>1<|tool_arg:end|>\n"
        "<|tool_call:end|>"
    ),
    section=MarkerPair(open=("<|tool_call:start|>",), close=("<|tool_call:end|>",)),
    bodies=(
        TaggedArguments(
            name_ends=("\n",),
            name_pattern=r"(?P<name>[^\s<>{}]+)",
            key=MarkerPair(open=("<|tool_arg:start|>",), close=("<|tool_arg:value|>",)),
            value=MarkerPair(close=("<|tool_arg:end|>",)),
            trim="none",
        ),
    ),
    ignored_after_call=("<|im:end|>",),
    evidence="parsers",
    sources=SOURCES,
)
REASONING = ReasoningFormat(
    name="solar_open2",
    models="Solar Open 2",
    example="<|think:start|>reasoning<|think:end|>answer",
    open=("<|think:start|>",),
    close=("<|think:end|>",),
    special_token_markers=True,
    starts_inside=True,
    answer_separator="",
    evidence="parsers",
    sources=SOURCES,
)
