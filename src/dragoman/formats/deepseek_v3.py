"""A kind, a name, and the arguments in a fence."""

from dragoman.output.spec import Named, Pair, Tools

TOOLS = Tools(
    name="deepseek_v3",
    models="DeepSeek V3 and R1, their distillations, Cogito",
    example=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
        '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    section=Pair(open=("<｜tool▁calls▁begin｜>",), close=("<｜tool▁calls▁end｜>",)),
    call=Pair(open=("<｜tool▁call▁begin｜>",), close=("<｜tool▁call▁end｜>",)),
    bodies=(
        Named(
            ends=("\n```json", "```json"),
            name=r"(?:\w+<｜tool▁sep｜>)?(?P<name>[^\s{}]+)",
            written=("function<｜tool▁sep｜>{name}",),
            fence=("```",),
        ),
    ),
    bare=True,
    aliases=("deepseekv3", "deepseek", "deepseek_r1"),
)
