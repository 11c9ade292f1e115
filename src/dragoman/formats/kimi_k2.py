"""The call's id, which holds its name, then the arguments."""

from dragoman.output.spec import Named, Pair, Tools

TOOLS = Tools(
    name="kimi_k2",
    models="Kimi K2 and K2.5",
    example=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    section=Pair(
        open=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        close=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    ),
    call=Pair(open=("<|tool_call_begin|>",), close=("<|tool_call_end|>",)),
    bodies=(
        Named(
            ends=("<|tool_call_argument_begin|>",),
            name=r"(?P<id>(?:functions\.(?=.*:\d+$)|(?!functions\.))(?P<name>[^\s{}:]+?)(?::\d+)?)",
            written=("functions.{name}:{number}", "{name}:{number}"),
        ),
    ),
    bare=True,
    thoughts="think",
    aliases=("kimik2", "kimi"),
)
