"""Reasoning between markers; it may contain calls."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="apertus_inner",
    models="Apertus",
    example="<|inner_prefix|>reasoning<|inner_suffix|>answer",
    open=("<|inner_prefix|>",),
    special_token_markers=True,
    close=("<|inner_suffix|>",),
    answer_separator="",
    aliases={"apertus2509": False},
)
