"""Thoughts that the prompt opens in words, closed by a marker."""

from dragoman.output.spec import MarkerPair, ReasoningFormat

REASONING = ReasoningFormat(
    name="apriel",
    models="Apriel 1.6",
    example="thoughts\n[BEGIN FINAL RESPONSE]\nanswer",
    open=("Here are my reasoning steps:",),
    close=("[BEGIN FINAL RESPONSE]",),
    plain_word_markers=True,
    answer_wrapper=MarkerPair(close=("[END FINAL RESPONSE]",)),
    starts_inside=True,
)
