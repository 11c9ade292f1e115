"""Reasoning in a named channel; the names of channels are not part of their text."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="gemma4_channel",
    models="Gemma 4",
    example="<|channel>thought\nreasoning<channel|>answer",
    open=("<|channel>",),
    special_token_markers=True,
    close=("<channel|>",),
    opens_at_start=("thought\n", "Thought\n", "THOUGHT\n"),
    channels={"thought": "reasoning", "final": "text", "assistant": "text"},
    ended_by=("<|tool_call>",),
    aliases={"gemma4": False},
    answer_separator="",
)
