"""An id, a name and the arguments, each after a mark of its own."""

from dragoman.output.spec import Named, Pair, Reasoning, Tools

TOOLS = Tools(
    name="solar_open",
    models="Solar Open",
    example=(
        "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>"
        '{"a": 1}<|tool_call:end|><|calls|>'
    ),
    section=Pair(open=("<|tool_calls|>",), close=("<|calls|>",)),
    call=Pair(open=("<|tool_call:begin|>",), close=("<|tool_call:end|>",)),
    bodies=(
        Named(
            ends=("<|tool_call:args|>",),
            name=r"(?P<id>[^\s{}<>|]*)<\|tool_call:name\|>(?P<name>[^\s{}<>|]+)",
            written=("{id}<|tool_call:name|>{name}",),
        ),
    ),
    bare=True,
)
REASONING = Reasoning(
    name="solar_open",
    models="Solar Open",
    example="<|begin|>assistant<|think|>thoughts<|end|><|begin|>assistant<|content|>answer<|end|>",
    open=("<|think|>",),
    control=True,
    close=("<|end|>", "<|flush|>"),
    drop=("<|begin|>assistant", "<|content|>"),
    answer="<|begin|>assistant<|content|>",
)
