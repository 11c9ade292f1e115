"""Reasoning that a sentence in the prompt opens, closed by a marker."""

from dragoman.output.spec import MarkerPair, ReasoningFormat

REASONING = ReasoningFormat(
    name="apriel",
    models="Apriel 1.6",
    example="reasoning\n[BEGIN FINAL RESPONSE]\nanswer",
    open=("Here are my reasoning steps:",),
    close=("[BEGIN FINAL RESPONSE]",),
    plain_word_markers=True,
    answer_wrapper=MarkerPair(close=("[END FINAL RESPONSE]",)),
    starts_inside=True,
)
