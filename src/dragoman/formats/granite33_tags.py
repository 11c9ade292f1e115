"""Thoughts and answer, each between tags."""

from dragoman.output.spec import Pair, Reasoning

REASONING = Reasoning(
    name="granite33_tags",
    models="Granite 3.3",
    example="<think>thoughts</think><response>answer</response>",
    open=("<think>",),
    close=("</think>",),
    wrap=Pair(open=("<response>",), close=("</response>",)),
)
