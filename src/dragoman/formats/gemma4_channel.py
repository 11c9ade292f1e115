"""Thoughts in a channel whose name is no part of them."""

from dragoman.output.spec import Reasoning

REASONING = Reasoning(
    name="gemma4_channel",
    models="Gemma 4",
    example="<|channel>thought\nthoughts<channel|>answer",
    open=("<|channel>",),
    control=True,
    close=("<channel|>",),
    begins=("thought\n",),
    label=("thought\n",),
    ended_by=("<|tool_call>",),
    aliases={"gemma4": False},
    answer="",
)
