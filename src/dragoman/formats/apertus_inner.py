"""Thoughts between marks; calls may stand among them."""

from dragoman.output.spec import Reasoning

REASONING = Reasoning(
    name="apertus_inner",
    models="Apertus",
    example="<|inner_prefix|>thoughts<|inner_suffix|>answer",
    open=("<|inner_prefix|>",),
    control=True,
    close=("<|inner_suffix|>",),
    answer="",
)
