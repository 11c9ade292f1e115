"""A kind, a name, and the arguments in a fence."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="deepseek_v3",
    models="DeepSeek V3 and R1, their distillations, Cogito",
    example=(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
        '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    section=MarkerPair(open=("<｜tool▁calls▁begin｜>",), close=("<｜tool▁calls▁end｜>",)),
    call=MarkerPair(open=("<｜tool▁call▁begin｜>",), close=("<｜tool▁call▁end｜>",)),
    bodies=(
        NamedObject(
            name_ends=("\n```json", "```json"),
            name_pattern=r"(?:\w+\s*<｜tool▁sep｜>)?\s*(?P<name>[^\s{}]+)",
            spellings=("function<｜tool▁sep｜>{name}",),
            fence=("```",),
        ),
    ),
    section_optional=True,
    aliases=("deepseekv3", "deepseek", "deepseek_r1"),
)
