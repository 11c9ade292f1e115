"""Reasoning between `[THINK]` and `[/THINK]`."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="mistral_think",
    models="Magistral, Ministral 3",
    example="[THINK]reasoning[/THINK]answer",
    open=("[THINK]",),
    close=("[/THINK]",),
    aliases={"mistral": False, "mistral_v13": False},
)
