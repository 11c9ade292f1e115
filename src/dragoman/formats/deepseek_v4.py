"""Elements that say of every argument whether it is a string."""

from dragoman.output.spec import Pair, Tagged, Tools

TOOLS = Tools(
    name="deepseek_v4",
    models="DeepSeek V4",
    example=(
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
    section=Pair(open=("<｜DSML｜tool_calls>",), close=("</｜DSML｜tool_calls>",)),
    call=Pair(open=("<｜DSML｜invoke name=",), close=("</｜DSML｜invoke>",)),
    bodies=(
        Tagged(
            ends=(">", "/>"),
            written=('"{name}"',),
            key=Pair(open=("<｜DSML｜parameter name=",), close=(">",)),
            keys=r"[\"']?(?P<key>[^\"'<>]+?)[\"']?(?:\s+string=[\"']?(?P<type>\w+)[\"']?)?",
            key_written='"{key}" string="{text}"',
            value=Pair(close=("</｜DSML｜parameter>",)),
            trim="none",
            inner=True,
            json=True,
        ),
    ),
    aliases=("deepseekv4",),
)
