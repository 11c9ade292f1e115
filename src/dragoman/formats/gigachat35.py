"""Like `deepseek_v4`, in elements of another prefix."""

from dragoman.formats.deepseek_v32 import make_body, make_calls, make_example, make_pair
from dragoman.output.spec import ToolFormat

TOOLS = ToolFormat(
    name="gigachat35",
    models="GigaChat 3.5",
    example=make_example("｜GCML｜", "tool_calls"),
    section=make_pair("｜GCML｜tool_calls"),
    call=make_calls("｜GCML｜"),
    bodies=(make_body("｜GCML｜"),),
    ignored_after_call=("<|message_sep|>", "</s>"),
    evidence="parsers",
    sources="SGLang 0.5.23 and its documentation",
)
