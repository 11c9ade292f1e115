"""Thoughts that the prompt opens in words, closed by a mark."""

from dragoman.output.spec import Pair, Reasoning

REASONING = Reasoning(
    name="apriel",
    models="Apriel 1.6",
    example="thoughts\n[BEGIN FINAL RESPONSE]\nanswer",
    open=("Here are my reasoning steps:",),
    close=("[BEGIN FINAL RESPONSE]",),
    words=True,
    wrap=Pair(close=("[END FINAL RESPONSE]",)),
    inside=True,
)
