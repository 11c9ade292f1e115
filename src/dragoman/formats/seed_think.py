"""Reasoning between `<seed:think>` and `</seed:think>`."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="seed_think",
    models="Seed-OSS",
    example="<seed:think>reasoning</seed:think>answer",
    open=("<seed:think>",),
    close=("</seed:think>",),
    aliases={"seed_oss": True},
)
