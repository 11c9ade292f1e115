"""Like `hy_v3`, without a separator after the name; each tag carries the checkpoint's suffix."""

from dataclasses import replace

from dragoman.formats import hy_v3
from dragoman.output.spec import SUFFIX, ToolFormat

TOOLS = ToolFormat(
    name="hy_v4",
    models="Hunyuan Hy4",
    example=(
        "<tool_calls><tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
        "</tool_calls>"
    ).replace(">", f"{SUFFIX}>"),
    section=hy_v3.TOOLS.section,
    call=hy_v3.TOOLS.call,
    bodies=(replace(hy_v3.BODY, name_ends=("\n",)),),
    section_optional=True,
    suffixes=(":opensource", ""),
    ignored_after_call=(f"<｜hy_eos{SUFFIX}｜>",),
    aliases=("hy4",),
    evidence="parsers",
    sources="vLLM 0.32 and smg 1.13, whose cases are recorded from Hy4-preview",
)
