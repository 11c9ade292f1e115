"""Like `deepseek_v32`, in another section."""

from dragoman.formats.deepseek_v32 import make_body, make_calls, make_example, make_pair
from dragoman.output.spec import ToolFormat

TOOLS = ToolFormat(
    name="deepseek_v4",
    models="DeepSeek V4",
    example=make_example("｜DSML｜", "tool_calls"),
    section=make_pair("｜DSML｜tool_calls"),
    call=make_calls("｜DSML｜"),
    bodies=(make_body("｜DSML｜"),),
    aliases=("deepseekv4",),
)
