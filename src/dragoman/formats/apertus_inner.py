"""Thoughts between markers; calls may stand among them."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="apertus_inner",
    models="Apertus",
    example="<|inner_prefix|>thoughts<|inner_suffix|>answer",
    open=("<|inner_prefix|>",),
    special_token_markers=True,
    close=("<|inner_suffix|>",),
    answer_separator="",
)
