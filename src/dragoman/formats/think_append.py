"""As `think`, but the markers stay in the answer along with the thoughts."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="think_append",
    models="MiniMax M2, for clients that split thoughts themselves",
    example="thoughts</think>answer",
    open=("<think>",),
    close=("</think>",),
    keeps_markers=True,
    starts_inside=True,
    aliases={"minimax_m2_append_think": True, "minimax-append-think": True},
)
