"""An id, a name and the arguments, each after its own marker."""

from dragoman.output.spec import MarkerPair, NamedObject, ReasoningFormat, ToolFormat

TOOLS = ToolFormat(
    name="solar_open",
    models="Solar Open",
    example=(
        "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>"
        '{"a": 1}<|tool_call:end|><|calls|>'
    ),
    section=MarkerPair(open=("<|tool_calls|>",), close=("<|calls|>",)),
    call=MarkerPair(open=("<|tool_call:begin|>",), close=("<|tool_call:end|>",)),
    bodies=(
        NamedObject(
            name_ends=("<|tool_call:args|>",),
            name_pattern=r"(?P<id>[^\s{}<>|]*)\s*<\|tool_call:name\|>\s*(?P<name>[^\s{}<>|]+)",
            spellings=("{id}<|tool_call:name|>{name}",),
        ),
    ),
    section_optional=True,
)
REASONING = ReasoningFormat(
    name="solar_open",
    models="Solar Open",
    example="<|begin|>assistant<|think|>reasoning<|end|><|begin|>assistant<|content|>answer<|end|>",
    open=("<|think|>",),
    special_token_markers=True,
    close=("<|end|>", "<|flush|>"),
    dropped=("<|begin|>assistant", "<|content|>"),
    answer_separator="<|begin|>assistant<|content|>",
)
