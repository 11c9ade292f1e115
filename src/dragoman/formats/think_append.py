"""As `think`, but the marks stay in the answer along with the thoughts."""

from dragoman.output.spec import Reasoning

REASONING = Reasoning(
    name="think_append",
    models="MiniMax M2, for clients that split thoughts themselves",
    example="thoughts</think>answer",
    open=("<think>",),
    close=("</think>",),
    shown=True,
    inside=True,
    aliases={"minimax_m2_append_think": True, "minimax-append-think": True},
)
