"""Reasoning and answer, each between tags on lines of their own."""

from dragoman.output.spec import MarkerPair, ReasoningFormat

REASONING = ReasoningFormat(
    name="hunyuan_think_answer",
    models="Hunyuan A13B",
    example="<think>\nreasoning\n</think>\n<answer>\nanswer\n</answer>",
    open=("<think>",),
    close=("\n</think>", "</think>"),
    answer_wrapper=MarkerPair(open=("<answer>\n", "<answer>"), close=("\n</answer>", "</answer>")),
    trim="newline",
    template_hints=("<|extra_0|>",),
    aliases={"hunyuan_a13b": False},
    answer_separator="\n<answer>\n",
)
