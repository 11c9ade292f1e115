"""Like `deepseek_v32`, in elements whose names begin with a space."""

from dragoman.formats.deepseek_v32 import make_body, make_calls, make_example, make_pair
from dragoman.output.spec import ToolFormat

TOOLS = ToolFormat(
    name="deepseek_v41",
    models="DeepSeek V4.1",
    example=make_example("｜DSML｜ ", "calls"),
    section=make_pair("｜DSML｜ calls"),
    call=make_calls("｜DSML｜ "),
    bodies=(make_body("｜DSML｜ "),),
    aliases=("deepseekv41", "deepseek_v4_1", "deepseek_v4.1"),
    evidence="parsers",
    sources="vLLM 0.32, SGLang 0.5.23 and smg 1.13, whose cases are recorded from the model",
)
