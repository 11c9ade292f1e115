"""The call's id, which contains the name, then the arguments."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="kimi_k2",
    models="Kimi K2 and K2.5",
    example=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    section=MarkerPair(
        open=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        close=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    ),
    call=MarkerPair(open=("<|tool_call_begin|>",), close=("<|tool_call_end|>",)),
    bodies=(
        NamedObject(
            name_ends=("<|tool_call_argument_begin|>",),
            name_pattern=r"(?P<id>(?:functions\.(?=.*:\d+$)|(?!functions\.))(?P<name>[^\s{}:]+?)(?::\d+)?)",
            spellings=("functions.{name}:{number}", "{name}:{number}"),
        ),
    ),
    section_optional=True,
    default_reasoning="think",
    aliases=("kimik2", "kimi"),
)
