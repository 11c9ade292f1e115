"""A name, a mark, and the arguments."""

from dragoman.output.spec import Named, Pair, Tools

TOOLS = Tools(
    name="deepseek_v31",
    models="DeepSeek V3.1",
    example=(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    section=Pair(open=("<｜tool▁calls▁begin｜>",), close=("<｜tool▁calls▁end｜>",)),
    call=Pair(open=("<｜tool▁call▁begin｜>",), close=("<｜tool▁call▁end｜>",)),
    bodies=(Named(ends=("<｜tool▁sep｜>",)),),
    bare=True,
    aliases=("deepseekv31", "deepseek31"),
)
