"""Reasoning between markers, and the answer between markers."""

from dragoman.output.spec import MarkerPair, ReasoningFormat

REASONING = ReasoningFormat(
    name="cohere_thinking",
    models="Command A, Command 4",
    example="<|START_THINKING|>reasoning<|END_THINKING|><|START_TEXT|>answer<|END_TEXT|>",
    open=("<|START_THINKING|>",),
    special_token_markers=True,
    close=("<|END_THINKING|>",),
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    skipped=(MarkerPair(open=("<co>",)), MarkerPair(open=("</co:",), close=(">",))),
    ended_by=("<|START_ACTION|>",),
    aliases={"cohere_command3": False, "cohere_command4": True, "cohere_cmd": False},
)
