"""Reasoning between `◁think▷` and `◁/think▷`."""

from dragoman.output.spec import ReasoningFormat

REASONING = ReasoningFormat(
    name="kimi_dev_think",
    models="Kimi-VL, Kimi-Dev",
    example="◁think▷reasoning◁/think▷answer",
    open=("◁think▷",),
    close=("◁/think▷",),
    aliases={"kimi_vl": False, "kimi": False},
)
