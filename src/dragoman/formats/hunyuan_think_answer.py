"""Thoughts and answer, each between tags on lines of their own."""

from dragoman.output.spec import Pair, Reasoning

REASONING = Reasoning(
    name="hunyuan_think_answer",
    models="Hunyuan A13B",
    example="<think>\nthoughts\n</think>\n<answer>\nanswer\n</answer>",
    open=("<think>",),
    close=("\n</think>", "</think>"),
    wrap=Pair(open=("<answer>\n", "<answer>"), close=("\n</answer>", "</answer>")),
    trim="newline",
    signs=("<|extra_0|>",),
    aliases={"hunyuan_a13b": False},
    answer="\n<answer>\n",
)
