"""Elements with an attribute for each argument: whether it is a string."""

from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="deepseek_v32",
    models="DeepSeek V3.2",
    example=(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    section=MarkerPair(open=("<｜DSML｜function_calls>",), close=("</｜DSML｜function_calls>",)),
    call=MarkerPair(open=("<｜DSML｜invoke name=",), close=("</｜DSML｜invoke>",)),
    bodies=(
        TaggedArguments(
            name_ends=(">", "/>"),
            spellings=('"{name}"',),
            key=MarkerPair(open=("<｜DSML｜parameter name=",), close=(">",)),
            key_pattern=r"[\"']?(?P<key>[^\"'<>]+?)[\"']?(?:\s+string=[\"']?(?P<type>\w+)[\"']?)?",
            key_spelling='"{key}" string="{text}"',
            value=MarkerPair(close=("</｜DSML｜parameter>",)),
            trim="none",
            implicit_end=True,
            accepts_json=True,
        ),
    ),
    aliases=("deepseekv32", "deepseek32"),
)
