"""Reasoning between `<mm:think>` and `</mm:think>`."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="mm_think",
    models="MiniMax M3",
    example="<mm:think>reasoning</mm:think>answer",
    open=("<mm:think>",),
    close=("</mm:think>",),
    aliases={"minimax_m3": False, "minimax-m3": False},
)
