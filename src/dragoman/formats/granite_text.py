"""Reasoning and answer, each announced by a sentence."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="granite_text",
    models="Granite 3.2",
    example="Here is my thought process: reasoning Here is my response: answer",
    open=("Here is my thought process:", "Here's my thought process:"),
    close=("Here is my response:", "Here's my response:"),
    plain_word_markers=True,
    aliases={"granite": False},
)
