"""Like `think`, but the markers and the reasoning stay in the answer."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="think_append",
    models="MiniMax M2, for clients that split reasoning themselves",
    example="reasoning</think>answer",
    open=("<think>",),
    close=("</think>",),
    keeps_markers=True,
    starts_inside=True,
    aliases={"minimax_m2_append_think": True, "minimax-append-think": True},
)
