"""A name, a marker, and the arguments."""

from dragoman.output.spec import MarkerPair, NamedObject, ToolFormat

TOOLS = ToolFormat(
    name="deepseek_v31",
    models="DeepSeek V3.1",
    example=(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    section=MarkerPair(open=("<｜tool▁calls▁begin｜>",), close=("<｜tool▁calls▁end｜>",)),
    call=MarkerPair(open=("<｜tool▁call▁begin｜>",), close=("<｜tool▁call▁end｜>",)),
    bodies=(NamedObject(name_ends=("<｜tool▁sep｜>",)),),
    section_optional=True,
    aliases=("deepseekv31", "deepseek31"),
)
