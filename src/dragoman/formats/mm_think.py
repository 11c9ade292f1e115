"""Thoughts between `<mm:think>` and `</mm:think>`."""

from dragoman.output.spec import Reasoning

REASONING = Reasoning(
    name="mm_think",
    models="MiniMax M3",
    example="<mm:think>thoughts</mm:think>answer",
    open=("<mm:think>",),
    close=("</mm:think>",),
    aliases={"minimax_m3": False},
)
