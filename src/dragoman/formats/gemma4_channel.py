"""Reasoning in a channel; the channel name is not part of it."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="gemma4_channel",
    models="Gemma 4",
    example="<|channel>thought\nreasoning<channel|>answer",
    open=("<|channel>",),
    special_token_markers=True,
    close=("<channel|>",),
    opens_at_start=("thought\n",),
    label=("thought\n",),
    ended_by=("<|tool_call>",),
    aliases={"gemma4": False},
    answer_separator="",
)
