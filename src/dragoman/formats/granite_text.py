"""Thoughts and answer are announced in words."""

from dragoman.output.spec import Reasoning

REASONING = Reasoning(
    name="granite_text",
    models="Granite 3.2",
    example="Here is my thought process: thoughts Here is my response: answer",
    open=("Here is my thought process:", "Here's my thought process:"),
    close=("Here is my response:", "Here's my response:"),
    words=True,
    aliases={"granite": False},
)
