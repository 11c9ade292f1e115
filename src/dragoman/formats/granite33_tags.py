"""Reasoning and answer, each between tags."""

from dragoman.output.spec import MarkerPair, ReasoningFormat

REASONING = ReasoningFormat(
    name="granite33_tags",
    models="Granite 3.3",
    example="<think>reasoning</think><response>answer</response>",
    open=("<think>",),
    close=("</think>",),
    answer_wrapper=MarkerPair(open=("<response>",), close=("</response>",)),
)
