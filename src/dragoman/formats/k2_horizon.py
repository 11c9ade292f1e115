"""Like `glm45`, in a list; a tag may give the type of a value."""

from dragoman.output.spec import (
    JsonObjects,
    MarkerPair,
    ReasoningFormat,
    TaggedArguments,
    ToolFormat,
)

SOURCES = "vLLM 0.32, SGLang 0.5.23 and smg 1.13, whose cases are recorded from the model"
TOOLS = ToolFormat(
    name="k2_horizon",
    models="K2 Horizon",
    example=(
        "<ifm|tool_calls>\n<ifm|tool_call>f\n<ifm|arg_key>a</ifm|arg_key>\n"
        "<ifm|arg_value>1</ifm|arg_value>\n</ifm|tool_call>\n</ifm|tool_calls>"
    ),
    section=MarkerPair(open=("<ifm|tool_calls>",), close=("</ifm|tool_calls>",)),
    call=MarkerPair(open=("<ifm|tool_call>",), close=("</ifm|tool_call>",)),
    bodies=(
        TaggedArguments(
            name_ends=("\n",),
            name_pattern=r"(?P<name>[^\s<>{}]+)",
            key=MarkerPair(open=("<ifm|arg_key>",), close=("</ifm|arg_key>",)),
            type=MarkerPair(open=("<ifm|arg_type>",), close=("</ifm|arg_type>",)),
            value=MarkerPair(open=("<ifm|arg_value>",), close=("</ifm|arg_value>",)),
            trim="none",
        ),
        JsonObjects(),
    ),
    section_optional=True,
    ignored_after_call=("<|ifm|im_end|>",),
    aliases=("k2_v3",),
    evidence="parsers",
    sources=SOURCES,
)
REASONING = ReasoningFormat(
    name="k2_horizon",
    models="K2 Horizon",
    example="<ifm|think>reasoning</ifm|think>answer",
    open=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    close=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    starts_inside=True,
    ended_by=("<ifm|tool_calls>",),
    aliases={"k2_v3": True},
    evidence="parsers",
    sources=SOURCES,
)
